//! The sidecar: every scale with the reason for it, as JSON.
//!
//! In: the outcome of a run as a [`Record`]. Out: a [`Sidecar`], byte for byte the same for the same plan; or one that an
//! earlier run wrote, read and checked. It decides nothing. `docs/sidecar.md` describes the keys; names that AIMET's
//! encodings 2.0 have are used where they mean the same.

mod encoding;
mod fill;
pub mod packed;
mod read;
mod schema;

pub use fill::Record;
pub use schema::{
    CalibrationRecord, Encoding, FloatNodeRecord, GraphRecord, InputRecord, ModelRecord, NodeRecord, OneOrMany,
    Producer, RangesFrom, SCHEMA_VERSION, SchemeRecord, Sidecar, TuningRecord,
};

/// The name by which tables ask for the sidecar, which is always written, and by which ranges are read from it.
pub const NAME: &str = "sidecar";
