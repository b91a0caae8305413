//! The sidecar: every scale with the reason for it, as JSON.
//!
//! In: the quantized graph of a run as a [`Record`], or the file of an earlier run, which is read and checked. Out: a
//! [`Sidecar`], byte-identical for an identical plan. This module decides nothing. `docs/sidecar.md` describes the
//! keys. Keys with the same meaning as in AIMET's encodings 2.0 have the same names.

mod encoding;
pub mod packed;
mod read;
mod record;
mod schema;

pub use record::Record;
pub use schema::{
    CalibrationRecord, Encoding, FloatNodeRecord, GraphRecord, HistogramRecord, InputRecord, ModelRecord, NodeRecord,
    OneOrMany, Producer, QuantizedRecord, RangesFrom, SCHEMA_VERSION, SchemeRecord, Sidecar, TuningRecord,
};

/// Name of the sidecar as a format, in the export lists of tables and for files that ranges are read from. It is always
/// written.
pub const NAME: &str = "sidecar";
