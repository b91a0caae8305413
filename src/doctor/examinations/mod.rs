//! The examinations.

mod channels;
mod data;
mod enough;
mod preprocessing;
mod tail;
mod target;
mod weights;

pub use enough::{ENOUGH_SHARE, MIN_RANGE_SAMPLES, RangeAgreement, range_agreement};

use super::{Examination, Examined, Facts};

/// Every examination, in the order of the report.
pub const EXAMINATIONS: &[Examination] = &[
    preprocessing::PREPROCESSING,
    data::READABLE_DATA,
    data::FINITE_DATA,
    data::CONSTANT_DATA,
    data::REPEATED_DATA,
    data::RANDOM_DATA,
    data::ONE_CLASS,
    enough::ENOUGH_DATA,
    weights::FINITE_WEIGHTS,
    weights::SUBNORMAL_WEIGHTS,
    weights::DEAD_WEIGHTS,
    channels::DEAD_CHANNELS,
    channels::OUTLIER_CHANNELS,
    channels::OUTLIER_WEIGHTS,
    tail::MIXED_UNITS,
    target::FLOAT_OPERATORS,
    target::FLOAT_ISLANDS,
];

/// The reason that examinations of data give without data.
pub const NO_DATA: &str = "no data is given (--data)";
/// The reason that examinations of a backend give without a backend.
const NO_BACKEND: &str = "no backend is given (--backend)";
