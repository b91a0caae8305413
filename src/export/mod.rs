//! Files of other tools, made of the sidecar alone, or of it and the float model.
//!
//! In: a [`Sidecar`], and the prepared float model where a format holds a graph or constants. Out: a file's bytes, the
//! same for the same sidecar. It decides nothing. [`FORMATS`] is the open list; `docs/formats.md` has their shapes and
//! sources.

mod formats;
mod graph;
mod index;
mod replay;

pub use formats::FORMATS;
pub use index::SidecarIndex;
pub use replay::float_model;

use crate::diag::none_of;
use crate::onnx::proto::ModelProto;
use crate::sidecar::{self, Sidecar};
use anyhow::{Context, Result};

/// A format that another tool reads.
pub struct Format {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    /// One line: what it holds and who reads it.
    pub description: &'static str,
    /// What replaces `onnx` at the end of the quantized model's file name.
    pub suffix: &'static str,
    /// Whether [`SidecarIndex::model`] must be there.
    pub needs_model: bool,
    /// Whether it can hold the quantization parameters of NNIE, whose codes are logarithms.
    pub holds_nnie_codes: bool,
    /// Whether it can hold a scale per block of a weight.
    pub holds_blocks: bool,
    /// The file's bytes; an error names the tensor that the format cannot express.
    write: fn(&SidecarIndex) -> Result<Vec<u8>>,
}

impl Format {
    /// The bytes of this format; `prepared` is the float model that `sidecar` was made for.
    ///
    /// # Errors
    /// If the format cannot express the plan, or the model is needed and not there; the message names the format and the
    /// tensor.
    pub fn bytes(&self, sidecar: &Sidecar, prepared: Option<&ModelProto>) -> Result<Vec<u8>> {
        let index = SidecarIndex::new(sidecar, prepared);
        let bytes = index.ensure_held_by(self).and_then(|()| (self.write)(&index));
        bytes.with_context(|| format!("format `{}`", self.name))
    }
}

/// The format of this name.
///
/// # Errors
/// If there is none; the message lists them.
pub fn by_name(name: &str) -> Result<&'static Format> {
    let names = FORMATS.iter().map(|format| format.name);
    let found = FORMATS.iter().find(|format| format.name == name);
    found.ok_or_else(|| none_of(format_args!("format `{name}` is unknown"), name, names))
}

/// The formats of these names, each once, in the order of [`FORMATS`]; [`sidecar::NAME`] is passed over.
///
/// # Errors
/// As [`by_name`].
pub fn by_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'static Format>> {
    let names = names.into_iter().filter(|&name| name != sidecar::NAME);
    let wanted = names.map(|name| Ok(by_name(name)?.name)).collect::<Result<Vec<_>>>()?;
    Ok(FORMATS.iter().filter(|format| wanted.contains(&format.name)).collect())
}
