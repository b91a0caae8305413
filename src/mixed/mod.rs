//! Mixed precision: layers with other precisions than the table's rows give them.
//!
//! In: a prepared model, calibration statistics, a [`Wanted`], some calibration samples. Out: a placement and a plan
//! whose chosen layers are float, wider or narrower, and a [`Mixed`] that says how they were chosen. It does not change
//! weights or ranges by itself: these are decided for the new placement as for any other. A sensitivity analysis
//! simulates one quantized layer at a time. Layers are then changed one after the other, and each is evaluated on top
//! of those before it.

mod bias;
mod budget;
mod choose;
mod goal;
mod held_out;
mod layers;
mod planner;
mod report;
mod rescue;
mod search;
mod sensitivity;
mod task;

pub use choose::choose_precisions;
pub use goal::{Bounded, Goal, RESCUE, Wanted};
pub use report::{ChosenLayer, CurvePoint, LayerSensitivity, Missed, Mixed};
pub use rescue::{Rescued, rescue};
pub use sensitivity::layer_sensitivity;
pub use task::Task;

use planner::Planner;
use search::Search;

/// Maximum samples of the sensitivity analysis.
pub const MAX_ANALYSIS: usize = 16;
/// Minimum samples of the sensitivity analysis, however large the network, where there are so many.
const MIN_ANALYSIS: usize = 8;
/// Approximate limit on the values, in KiB, that the analysis of all layers computes with more than `MIN_ANALYSIS`
/// samples.
const MAX_WORK: usize = 1 << 26;
/// Minimum samples of the analysis and of the evaluation together.
pub const MIN_SAMPLES: usize = 4;
/// Approximate limit on the bytes of intermediate values kept between two plans.
const MAX_BYTES: usize = 1 << 30;

/// Returns the maximum samples of the sensitivity analysis; fewer for rescue, which runs unasked.
fn max_analysis(goal: &Goal) -> usize {
    if goal.is_rescue() { MIN_ANALYSIS } else { MAX_ANALYSIS }
}

/// Returns the maximum held-out samples of the evaluation.
pub fn max_held_out(goal: &Goal) -> usize {
    // A share of samples is coarser than a mean over their values.
    let is_share = goal.metric().is_some_and(|metric| metric.scale.unit == "%");
    if is_share { 128 } else { 32 }
}
