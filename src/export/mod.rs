//! Files for other tools, made from the sidecar, some also from the float model.
//!
//! In: a [`Sidecar`], and the prepared float model for formats with a graph or constants. Out: a file's bytes,
//! identical for an identical sidecar. It decides nothing. [`FORMATS`] is the open list; `docs/formats.md` has their
//! structure and sources.

mod formats;
mod graph;
mod index;
mod replay;

pub use formats::FORMATS;
pub use index::SidecarIndex;
pub use replay::{float_model, scaled_float_model};

use crate::diag::{WithHint, none_of};
use crate::onnx::proto::ModelProto;
use crate::quant::Symmetry;
use crate::scheme::{QType, Scheme};
use crate::sidecar::{self, Sidecar};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeSet;

/// A file format of another tool.
pub struct Format {
    /// Name of the format on the command line and in tables.
    pub name: &'static str,
    /// One line about the content and the reader.
    pub description: &'static str,
    /// Suffix that replaces `onnx` at the end of the quantized model's file name.
    pub suffix: &'static str,
    /// Whether the format needs [`SidecarIndex::model`].
    pub needs_model: bool,
    /// Whether the format holds only symmetric int8 activations.
    pub needs_int8: bool,
    /// Whether the format can express the parameters of NNIE, whose codes are logarithms.
    pub holds_nnie_codes: bool,
    /// Whether the format can express scales per block.
    pub holds_blocks: bool,
    /// Function that returns the file's bytes. Its error names the tensor that the format cannot express.
    write: fn(&SidecarIndex) -> Result<Vec<u8>>,
}

impl Format {
    /// Fails for a table that has activation types, but none that this format can express.
    ///
    /// # Errors
    /// If the format needs symmetric int8, and the table's activation types are all others.
    pub fn ensure_takes(&self, scheme: &Scheme) -> Result<()> {
        let names: BTreeSet<&String> =
            scheme.ops.values().flat_map(|row| row.input.iter().chain(&row.output)).collect();
        let types: Vec<&QType> = names.into_iter().filter_map(|name| scheme.types.get(name)).collect();
        let is_int8 = |qtype: &&QType| qtype.bits == 8 && qtype.signed && qtype.symmetry == Symmetry::Symmetric;
        ensure!(
            !self.needs_int8 || types.is_empty() || types.iter().any(is_int8),
            anyhow!(
                "format `{}` holds only symmetric int8 activations, but backend `{}` has none",
                self.name,
                scheme.name
            )
            .hint("`mqq export --list` lists the formats, `mqq backends NAME` prints the types of a table")
        );
        Ok(())
    }

    /// Returns the file's bytes. `prepared` is the prepared float model that `sidecar` was made for.
    ///
    /// # Errors
    /// If the format cannot express the plan, or needs a model and has none; the message names the format and the
    /// tensor.
    pub fn bytes(&self, sidecar: &Sidecar, prepared: Option<&ModelProto>) -> Result<Vec<u8>> {
        let index = SidecarIndex::new(sidecar, prepared);
        let bytes = index.ensure_expressible_in(self).and_then(|()| (self.write)(&index));
        let bytes = bytes.with_context(|| format!("format `{}`", self.name));
        bytes.map_err(|error| error.hint(format!("docs/formats.md lists the requirements of `{}`", self.name)))
    }
}

/// The format with this name.
///
/// # Errors
/// If there is none; the message lists the names.
pub fn by_name(name: &str) -> Result<&'static Format> {
    let names = FORMATS.iter().map(|format| format.name);
    let found = FORMATS.iter().find(|format| format.name == name);
    found.ok_or_else(|| none_of(format_args!("format `{name}` is unknown"), name, names))
}

/// The formats with these names, each once, in the order of [`FORMATS`]; [`sidecar::NAME`] is ignored.
///
/// # Errors
/// As [`by_name`].
pub fn by_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'static Format>> {
    let names = names.into_iter().filter(|&name| name != sidecar::NAME);
    let wanted = names.map(|name| Ok(by_name(name)?.name)).collect::<Result<Vec<_>>>()?;
    Ok(FORMATS.iter().filter(|format| wanted.contains(&format.name)).collect())
}
