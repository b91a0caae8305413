//! Which layers get another precision than the table's rows give them.
//!
//! In: a prepared model, what was observed of it, a [`Wanted`], some calibration samples. Out: the placement
//! and the plan with the chosen layers float, or of wider or narrower types, and a [`Mixed`] that says how
//! they were chosen. It does not change weights or ranges: a plan is what the main job decides for that
//! placement. A sensitivity analysis simulates the layers one at a time; they are changed one after the other, each evaluated
//! together with those before it.

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
pub use rescue::rescue;
pub use task::Task;

use planner::Planner;
use search::Search;

/// Samples of the sensitivity analysis, at most.
pub const MAX_ANALYSIS: usize = 16;
/// Samples of it at least, where there are so many, however large the network is.
const MIN_ANALYSIS: usize = 8;
/// KiB of values that it computes for all layers, about, with more than those samples.
const MAX_WORK: usize = 1 << 26;
/// Fewest samples of the analysis and held-out ones, together.
pub const MIN_SAMPLES: usize = 4;
/// Bytes of intermediate values that are kept between two plans, about.
const MAX_BYTES: usize = 1 << 30;

/// Held-out samples that a choice is evaluated by, at most.
pub fn max_held_out(goal: &Goal) -> usize {
    // A share of samples is coarser than a mean over their values.
    let is_share = goal.metric().is_some_and(|metric| metric.unit == "%");
    if is_share { 128 } else { 32 }
}
