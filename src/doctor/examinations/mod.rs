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
    Examination::of(
        "preprocessing",
        "scale of the pixels and order of the color channels, judged by the network's own outputs",
        preprocessing::preprocessing,
    ),
    Examination::of("readable_data", "samples that cannot be read, or do not fit the inputs", data::readable_data),
    Examination::of("finite_data", "NaN and infinite values in samples", data::finite_data),
    Examination::of("constant_data", "samples with an input that holds a single value", data::constant_data),
    Examination::of("repeated_data", "samples with the same values", data::repeated_data),
    Examination::of(
        "random_data",
        "images whose neighboring pixels are unrelated, as in random arrays",
        data::random_data,
    ),
    Examination::of("one_class", "a classifier that gives all samples the same class", data::one_class),
    Examination::of("enough_data", "ranges of tensors that still grow with the number of samples", enough::enough_data),
    Examination::of("finite_weights", "NaN and infinite weights", weights::finite_weights),
    Examination::of(
        "subnormal_weights",
        "weights below 1.2e-38, which are slow in float and 0 on any grid",
        weights::subnormal_weights,
    ),
    Examination::of("dead_weights", "output channels whose weights are all 0", weights::dead_weights),
    Examination::of(
        "dead_channels",
        "channels of activations that have one value on all samples",
        channels::dead_channels,
    ),
    Examination::of(
        "outlier_channels",
        "quantized activations with a channel that is many times as wide as the median channel, so that few levels are left for the others",
        channels::outlier_channels,
    ),
    Examination::of(
        "outlier_weights",
        "weights with one scale per tensor and an output channel that is many times as wide as the median channel",
        channels::outlier_weights,
    ),
    Examination::of(
        "mixed_units",
        "a detector's tail that joins boxes in pixels with scores: one grid for both leaves scores too few levels",
        tail::mixed_units,
    ),
    Examination::of(
        "float_operators",
        "convolutions and matrix products that the backend leaves float, by their share of the multiply-adds",
        target::float_operators,
    ),
    Examination::of(
        "float_islands",
        "float nodes between integer layers: values are converted to float and back",
        target::float_islands,
    ),
];

/// The reason that examinations of data give without data.
pub const NO_DATA: &str = "no data is given (--data)";
/// The reason that examinations of a backend give without a backend.
const NO_BACKEND: &str = "no backend is given (--backend)";
