//! The sidecar: every scale with the reason for it, as JSON.
//!
//! In: the outcome of a run as a [`Record`]; or the file of an earlier run, which is read and checked. Out: a
//! [`Sidecar`], byte-identical for an identical plan. It decides nothing. `docs/sidecar.md` describes the keys; keys
//! with the same meaning as in AIMET's encodings 2.0 have the same names.

mod encoding;
mod fill;
pub mod packed;
mod pair;
mod read;
mod schema;

pub use fill::Record;
pub use schema::{
    CalibrationRecord, Encoding, FloatNodeRecord, GraphRecord, HistogramRecord, InputRecord, ModelRecord, NodeRecord,
    OneOrMany, Producer, QuantizedRecord, RangesFrom, SCHEMA_VERSION, SchemeRecord, ShapesRecord, Sidecar,
    TuningRecord,
};

/// The name under which tables ask for the sidecar (which is always written) and ranges are read from it.
pub const NAME: &str = "sidecar";
