//! How far the outputs of a quantized network are from those of the float one.
//!
//! In: outputs of both. Out: figures. What is NaN or infinite is never a good figure. It runs no network.

mod classes;
mod compare;
mod decibels;
mod error;
mod outputs;
pub mod task;

pub use classes::n_classes;
pub use compare::{InOrder, Merge, NonFinite, OutputComparison, OutputFigures};
pub use decibels::{MAX_DB, relative_error_db};
pub use error::{Gain, LIKELY, LikelyPositions, Part, QuantizationError, Units, ValuePair, gain_db, mean_sqnr_db};
pub use outputs::OutputErrors;

/// A float value and what the other is off, in double precision; both 0 for an infinity that both are.
fn value_and_error(float: f32, other: f32) -> (f64, f64) {
    if float.is_infinite() && float == other {
        return (0.0, 0.0);
    }
    (f64::from(float), f64::from(float) - f64::from(other))
}
