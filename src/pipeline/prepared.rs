//! A float model, prepared for the tables of a run.

use crate::onnx::inputs::Shapes;
use crate::onnx::{Loaded, model_sha256};
use crate::place::is_transformer;
use crate::prepare::{Demands, PreparedGraph, load_float};
use crate::scheme::Scheme;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// A loaded model, prepared once for all tables with the same demands.
pub(super) struct PreparedModels<'a> {
    loaded: Loaded,
    shapes: &'a Shapes,
    known: Vec<(Demands, PreparedGraph)>,
    /// Hashes of prepared models, by position.
    hashes: BTreeMap<usize, String>,
}

impl PreparedModels<'_> {
    /// Loads the model of a file. `shapes` fixes inputs with open dimensions.
    ///
    /// # Errors
    /// As [`load_float`].
    pub fn load<'a>(path: &Path, shapes: &'a Shapes) -> Result<PreparedModels<'a>> {
        Ok(PreparedModels { loaded: load_float(path)?, shapes, known: Vec::new(), hashes: BTreeMap::new() })
    }

    /// Returns the position of the model prepared for a table.
    fn of(&mut self, scheme: &Scheme, outputs: &[String]) -> Result<usize> {
        let demands = Demands::of(scheme, outputs);
        if let Some(at) = self.known.iter().position(|(known, _)| *known == demands) {
            return Ok(at);
        }
        let has_external_data = self.loaded.has_external_data;
        let prepared = PreparedGraph::new(self.loaded.model.clone(), &demands, self.shapes)?;
        self.known.push((demands, PreparedGraph { has_external_data, ..prepared }));
        Ok(self.known.len() - 1)
    }

    /// Prepares the model for `scheme`, or for the table `wider` if the model is a transformer. Returns the position of
    /// the prepared model, and whether `wider` was used.
    ///
    /// # Errors
    /// As [`PreparedGraph::new`].
    pub fn for_tables(&mut self, scheme: &Scheme, wider: Option<&Scheme>, outputs: &[String]) -> Result<(usize, bool)> {
        let at = self.of(scheme, outputs)?;
        let prepared = self.at(at);
        match wider {
            Some(other) if is_transformer(prepared.model.graph()?, &prepared.value_info, other) => {
                Ok((self.of(other, outputs)?, true))
            }
            _ => Ok((at, false)),
        }
    }

    /// Returns the prepared model at a position.
    pub fn at(&self, at: usize) -> &PreparedGraph {
        &self.known[at].1
    }

    /// Returns the hash of the prepared model at a position.
    pub fn sha256(&mut self, at: usize) -> String {
        self.hashes.entry(at).or_insert_with(|| model_sha256(&self.known[at].1.model)).clone()
    }

    /// Returns the prepared models whose hashes were asked for, with these.
    pub fn into_hashed(mut self) -> impl Iterator<Item = (String, PreparedGraph)> {
        let prepared = self.known.into_iter().enumerate();
        prepared.filter_map(move |(at, (_, prepared))| Some((self.hashes.remove(&at)?, prepared)))
    }
}

/// Prepares the model of a file for `scheme`, or for the table `wider` if the model is a transformer. Also returns
/// whether `wider` was used.
///
/// # Errors
/// As [`prepare_file`](crate::prepare::prepare_file).
pub fn prepare_for(
    path: &Path,
    scheme: &Scheme,
    wider: Option<&Scheme>,
    outputs: &[String],
    shapes: &Shapes,
) -> Result<(PreparedGraph, bool)> {
    let name = || format!("`{}`", path.display());
    let mut models = PreparedModels::load(path, shapes)?;
    let (at, is_wider) = models.for_tables(scheme, wider, outputs).with_context(name)?;
    let (_, prepared) = models.known.swap_remove(at);
    Ok((PreparedGraph { parsed: prepared.parsed.with_context(name), ..prepared }, is_wider))
}
