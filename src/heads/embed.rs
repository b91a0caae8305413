//! Heads of networks that compute embeddings.

use super::kind::{HeadKind, described};
use super::part::{OutputPart, OutputView};
use super::task::TaskName;
use crate::diag::count;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The embeddings of a network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbedHead {
    /// `embed`.
    pub task: TaskName,
    /// The part whose values, taken together, are the embedding of a sample.
    pub embedding: OutputPart,
}

impl EmbedHead {
    /// Returns the embedding.
    ///
    /// # Errors
    /// If the output is missing, or has only one value.
    pub fn embedding(&self, outputs: &[OutputView]) -> Result<Vec<f32>> {
        let values = self.embedding.rows(outputs).context("`embedding`")?.values;
        ensure!(values.len() > 1, "`embedding`: found {}, expected more than one", count(values.len(), "value"));
        Ok(values)
    }
}

impl HeadKind for EmbedHead {
    fn fits(&self, outputs: &[OutputView], _: Option<[usize; 2]>) -> Result<()> {
        self.embedding(outputs).map(drop)
    }

    fn recognizes(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Option<String> {
        let outputs = images.first()?;
        self.fits(outputs, input).ok()?;
        Some(format!("{}, the only one", described(&self.embedding.outputs(outputs).ok()?)))
    }
}
