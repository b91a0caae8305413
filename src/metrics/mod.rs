//! Metrics of how similar a quantized network's outputs are to those of the float network.
//!
//! In: outputs of both networks, sample by sample. Out: figures. NaN or infinite values give the worst possible figure,
//! never a good one. This module runs no network.
//!
//! [`METRICS`] lists all metrics. [`PreparedMetrics`] is the only accumulator: it prepares the metrics on float
//! outputs, sums samples, and computes the figures. `mqq compare`, the acceptance of methods and mixed precision use
//! it.

mod agreement;
mod characters;
mod classes;
mod coco;
mod coco_precision;
mod cosine;
mod decibels;
mod detect;
mod equal;
mod gain;
mod gate;
mod groups;
mod jackknife;
mod layout;
mod map;
mod masks;
mod max_error;
mod metric;
mod miou;
mod neighbours;
mod non_finite;
mod outputs;
mod overlap;
mod points;
mod prepared;
mod row_agreement;
mod sqnr;
mod task_outputs;
mod top1;
mod top5;

pub use agreement::AGREEMENT;
pub use characters::CHARACTERS;
pub use classes::{argmax, is_among_best, n_classes};
pub use coco::COCO_MAP;
pub use cosine::{COSINE, cosine};
pub use decibels::{MAX_DB, relative_error_db, sqnr_db};
pub use detect::{BOX_IOU, BOX_OVERLAP, F1};
pub use equal::EQUAL;
pub use gain::{Gain, GroupChange, TaskChange};
pub use gate::{MetricBound, MissedGate};
pub use groups::{ChannelGroup, OutputGroups};
pub use layout::FloatOutput;
pub use map::{MAP_SQNR, SSIM};
pub use masks::MASK_IOU;
pub use max_error::MAX_ERROR;
pub use metric::{Better, Figure, FigureScale, FoundCounts, Measure, Metric, OutputPair, SamplePair};
pub use miou::MIOU;
pub use neighbours::NEIGHBOURS;
pub use non_finite::{NonFinite, NonFiniteCounts};
pub use outputs::{ChannelAxes, EvaluatedOutput, center_along};
pub use overlap::OVERLAP;
pub use points::PCK;
pub use prepared::{InOrder, Measurement, OVERLAPS, PreparedMetrics, SampleSums};
pub use row_agreement::ROW_AGREEMENT;
pub use sqnr::{SQNR, relative_error};
pub use top1::{TOP1, TOP1_DROP};
pub use top5::TOP5;

use crate::diag::none_of;
use crate::heads::TaskHead;
use anyhow::Result;

/// Every metric, in the order of printing. The first of a task evaluates changes of its networks.
pub const METRICS: &[Metric] = &[
    OVERLAP, SQNR, COSINE, AGREEMENT, TOP1, MAX_ERROR, EQUAL, TOP1_DROP, TOP5, ROW_AGREEMENT, F1, BOX_IOU, BOX_OVERLAP,
    MASK_IOU, COCO_MAP, MIOU, NEIGHBOURS, MAP_SQNR, SSIM, PCK, CHARACTERS,
];

/// Finds a metric by its name in any case.
///
/// # Errors
/// If there is no such metric. The message lists the names.
pub fn by_name(name: &str) -> Result<Metric> {
    let found = METRICS.iter().copied().find(|metric| metric.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let words = name.replace(['-', '_'], " ");
        let is_title = |metric: &&Metric| metric.title.replace('-', " ").eq_ignore_ascii_case(&words);
        // Figures are printed with their title, so a user may give that.
        let meant = METRICS.iter().find(is_title).map_or(name, |metric| metric.name);
        none_of(format_args!("metric `{name}` is unknown"), meant, METRICS.iter().map(|metric| metric.name))
    })
}

/// Returns the metric that evaluates changes of a network by its task; `None` if the head is not known.
pub fn of_task(head: Option<&TaskHead>) -> Option<Metric> {
    let task = head?.head.task();
    METRICS.iter().find(|metric| metric.task == Some(task)).copied()
}

/// Returns the sums of squares of `float` and of the errors of `other`, as [`value_and_error`] defines them.
pub fn energies(float: &[f32], other: &[f32]) -> [f64; 2] {
    // Sums are in lanes, so that several values are computed at a time.
    const N: usize = 8;
    let (mut signal, mut noise) = ([0.0; N], [0.0; N]);
    for (float, other) in float.chunks(N).zip(other.chunks(N)) {
        for ((&float, &other), (signal, noise)) in float.iter().zip(other).zip(signal.iter_mut().zip(&mut noise)) {
            let (value, error) = value_and_error(float, other);
            *signal += value * value;
            *noise += error * error;
        }
    }
    [signal.iter().sum(), noise.iter().sum()]
}

/// Returns a float value and its error in double precision. Both are 0 for an infinity that both networks have.
pub fn value_and_error(float: f32, other: f32) -> (f64, f64) {
    let (value, error) = (f64::from(float), f64::from(float) - f64::from(other));
    if float.abs() == f32::INFINITY && float == other { (0.0, 0.0) } else { (value, error) }
}
