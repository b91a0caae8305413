//! What is written beside the model.
//!
//! In: a finished plan, calibration as a [`Sidecar`]. Out: files, byte for byte the same for the same plan. It
//! decides nothing. [`EMITTERS`] is the open list of formats that other tools read; `docs/formats.md` has
//! their shapes and sources. Every one is made from the sidecar alone, or from it and the float model.

mod encoding;
mod formats;
mod gather;
mod graph;
mod packed;
mod sidecar;
mod source;

pub use gather::sidecar;
pub use graph::uses;
pub use packed::unpack;
pub use sidecar::{
    BiasFacts, CalibrationFacts, DeclinedFacts, Encoding, EqualizationFacts, FloatNode, GraphFacts,
    InputFacts, ModelFacts, NodeFacts, OneOrMany, Producer, RangesFrom, SCHEMA_VERSION,
    SchemeFacts, Sidecar, SpaceFacts, StepFacts, TriedObserver, TuningFacts,
};
pub use source::Source;

use crate::diag::{WithHint, did_you_mean};
use anyhow::{Result, anyhow};

/// A format that another tool reads.
pub trait Emitter: Sync {
    /// Its name on the command line and in tables.
    fn name(&self) -> &'static str;

    /// One line: what it holds and who reads it.
    fn description(&self) -> &'static str;

    /// What replaces `onnx` at the end of the quantized model's file name.
    fn suffix(&self) -> &'static str;

    /// Whether [`Source::model`] must be there.
    fn needs_model(&self) -> bool {
        false
    }

    /// Whether it can hold the grids of NNIE, whose codes are logarithms.
    fn holds_nnie_codes(&self) -> bool {
        false
    }

    /// Whether it can hold a scale per block of a weight.
    fn holds_blocks(&self) -> bool {
        false
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// If the format cannot express the plan; the message names the tensor.
    fn emit(&self, source: &Source) -> Result<Vec<u8>>;
}

/// Every format besides the sidecar.
pub const EMITTERS: &[&dyn Emitter] = &[
    &formats::MqbenchTensorrt,
    &formats::Ppq,
    &formats::TrtCache,
    &formats::OrtJson,
    &formats::OrtCache,
    &formats::OrtFlatbuffers,
    &formats::Snpe,
    &formats::Encodings061,
    &formats::Encodings100,
    &formats::Encodings200,
    &formats::Ppl,
    &formats::PplCuda,
    &formats::Vitis,
    &formats::Nnie,
    &formats::Stpu,
    &formats::Tengine,
    &formats::Ncnn,
    &formats::Mnn,
    &formats::Tidl,
    &formats::TidlQuantParams,
    &formats::OpenvinoFq,
    &formats::Deploy,
];

/// The name by which tables ask for the sidecar, which is always written.
pub const SIDECAR: &str = "sidecar";

/// The format of this name.
///
/// # Errors
/// If there is none; the message lists them.
pub fn by_name(name: &str) -> Result<&'static dyn Emitter> {
    let names = || EMITTERS.iter().map(|emitter| emitter.name());
    match EMITTERS.iter().find(|emitter| emitter.name() == name) {
        Some(emitter) => Ok(*emitter),
        None => Err(anyhow!(
            "format `{name}` is unknown, expected one of: {}",
            names().collect::<Vec<_>>().join(", ")
        )
        .hint(did_you_mean(name, names()))),
    }
}

/// The formats of these names, each once, in the order of [`EMITTERS`]; [`SIDECAR`] is passed over.
///
/// # Errors
/// As [`by_name`].
pub fn by_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'static dyn Emitter>> {
    let mut wanted = Vec::new();
    for name in names.into_iter().filter(|&name| name != SIDECAR) {
        wanted.push(by_name(name)?.name());
    }
    Ok(EMITTERS.iter().copied().filter(|emitter| wanted.contains(&emitter.name())).collect())
}
