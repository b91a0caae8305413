//! What is written beside the model.
//!
//! In: a finished plan. Out: files, byte for byte the same for the same plan. It decides nothing.

mod sidecar;

pub use sidecar::{CalibrationFacts, InputFacts, ModelFacts, SCHEMA_VERSION, Sidecar, sidecar};
