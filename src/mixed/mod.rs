//! Which layers get another precision than the table's rows give them.
//!
//! In: a prepared model, what was observed of it, a [`Wanted`], some calibration samples. Out: the placement
//! and the plan with the chosen layers float, or of wider or narrower types, and a [`Mixed`] that says how
//! they were chosen. It does not change weights or ranges: a plan is what the main job decides for that
//! placement. Layers are ranked by simulation, one at a time, and changed one after the other, each judged
//! together with those before it.

mod bias;
mod budget;
mod choose;
mod goal;
mod judge;
mod layers;
mod planner;
mod report;
mod search;

pub use choose::{Task, choose_precisions};
pub use goal::{Goal, Wanted};
pub use judge::Judge;
pub use planner::{Observe, Planner, Source};
pub use report::{ChosenLayer, CurvePoint, LayerNoise, Missed, Mixed};
pub use search::Search;

use crate::place::Placement;
use crate::plan::QuantPlan;
use crate::simulate::Samples;

/// Samples that layers are ranked by, at most.
pub const MAX_RANKING: usize = 16;
/// Samples that they are ranked by at least, where there are so many, however large the network is.
const MIN_RANKING: usize = 8;
/// KiB of values that are computed for the ranking of all layers, about, with more than those samples.
const MAX_WORK: usize = 1 << 26;
/// Fewest samples to rank and to judge by, together.
pub const MIN_SAMPLES: usize = 4;
/// Bytes of intermediate values that are kept between two plans, about.
const MAX_BYTES: usize = 1 << 30;

/// Samples that a choice is judged by, at most.
pub fn max_judges(goal: Goal) -> usize {
    match goal {
        Goal::MaxDrop(_) => 128,
        _ => 32,
    }
}

/// The samples that layers are ranked by.
#[derive(Clone, Copy)]
pub struct Ranking<'a> {
    /// Values of the network's inputs.
    pub samples: Samples<'a>,
    /// Whether biases will be corrected: then they are on the way, too.
    pub corrected: bool,
}

/// What was chosen.
pub struct Choice {
    /// Where the model is quantized.
    pub placement: Placement,
    /// With which parameters.
    pub plan: QuantPlan,
    /// How it was chosen.
    pub mixed: Mixed,
}
