//! Chooses the channel scales of each group.

use super::descent::{MAX_EXPONENT, PER_OCTAVE, descend, error, factor};
use super::objective::{Objective, OtherScales, Setting};
use super::{ChannelStatistics, EqualizationGroup, Reason};
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::GraphProto;
use crate::place::Placement;
use crate::scheme::Scheme;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Maximum rounds over the groups. Groups depend on each other through per-tensor weights.
const MAX_ROUNDS: usize = 3;

/// Start values as pairs of exponents: of a channel's range, and of the largest weight that multiplies it. 0.5 and 0.5
/// is SmoothQuant, 1 and 0 gives all channels the same range, 0 and 0 changes nothing.
const STARTS: [[f64; 2]; 9] =
    [[0.0, 0.0], [0.25, 0.0], [0.5, 0.0], [0.75, 0.0], [1.0, 0.0], [0.25, 0.25], [0.5, 0.25], [0.5, 0.5], [0.75, 0.25]];

/// Requirements for channel scales.
#[derive(Debug, Clone, Copy)]
pub struct ScaleOptions {
    /// Minimum predicted reduction of the quantization error, in dB.
    pub least_gain_db: f64,
    /// Minimum range that is assumed for a channel, as a share of the median range. A channel with small values on
    /// these samples may have large ones on others.
    pub least_share: f32,
}

/// Returns the channel scales of each of `groups`, or the reason that it gets none, such as too little gain. There is
/// one scale per channel, 2 to the power of a multiple of 1/4. `statistics` holds the tensors that
/// [`observed_tensors`](super::observed_tensors) names.
pub fn choose(
    groups: &[EqualizationGroup],
    statistics: &BTreeMap<String, ChannelStatistics>,
    graph: &GraphProto,
    placement: &Placement,
    scheme: &Scheme,
    options: ScaleOptions,
) -> Vec<Result<Vec<f32>, Reason>> {
    let index = GraphIndex::new(graph);
    let ScaleOptions { least_gain_db, least_share } = options;
    let setting = Setting { graph, index: &index, placement, scheme, statistics, least_share };
    let mut choices: Vec<Result<Vec<f32>, Reason>> = vec![Err(Reason::NoGain); groups.len()];
    for _ in 0..MAX_ROUNDS {
        let (mut depends, mut changed) = (false, false);
        for at in 0..groups.len() {
            let others = other_scales(groups, &choices, at);
            let objective = Objective::of(&groups[at], &setting, &others);
            depends |= objective.as_ref().is_some_and(|objective| objective.depends);
            let choice = objective.as_ref().ok_or(Reason::NoGain).and_then(|objective| best(objective, least_gain_db));
            changed |= choice != choices[at];
            choices[at] = choice;
        }
        if !depends || !changed {
            break;
        }
    }
    choices
}

/// Returns the channel scales that all groups except group `at` give to the weights at their ends.
fn other_scales(groups: &[EqualizationGroup], choices: &[Result<Vec<f32>, Reason>], at: usize) -> OtherScales {
    let mut others = OtherScales::new();
    for (other, (group, choice)) in groups.iter().zip(choices).enumerate() {
        let Ok(scales) = choice else { continue };
        if other == at {
            continue;
        }
        let ends = group.producers.iter().map(|end| (end, true));
        for (end, is_output) in ends.chain(group.consumers.iter().map(|end| (end, false))) {
            others.insert((end.node, is_output), end.channels.by_entry(scales));
        }
    }
    others
}

fn best(objective: &Objective, least_gain_db: f64) -> Result<Vec<f32>, Reason> {
    let before = error(objective, &vec![0; objective.n]);
    let mut starts: Vec<Vec<i32>> = STARTS.iter().map(|&exponents| start(objective, exponents)).collect();
    starts.extend(equal_weights(objective));
    let start = |start: Vec<i32>| (error(objective, &start), start);
    let starts: Vec<(f64, Vec<i32>)> = starts.into_par_iter().map(start).collect();
    let best = starts.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((_, mut exponents)) = best else { return Err(Reason::NoGain) };
    let after = descend(objective, &mut exponents);
    let expected_db = 10.0 * (before / after).log10();
    if !(expected_db.is_finite() && expected_db > least_gain_db) {
        return Err(Reason::NoGain);
    }
    Ok(exponents.iter().map(|&exponent| factor(exponent) as f32).collect())
}

/// Returns the exponents of `reach^alpha / peak^beta`, relative to the channel with the largest range, which stays
/// unchanged.
fn start(objective: &Objective, [alpha, beta]: [f64; 2]) -> Vec<i32> {
    let furthest = (0..objective.n).filter(|&c| objective.is_live(c));
    let furthest = furthest.max_by(|&a, &b| objective.activation_peak[a].total_cmp(&objective.activation_peak[b]));
    let Some(furthest) = furthest else { return vec![0; objective.n] };
    let log = |c: usize| alpha * objective.activation_peak[c].log2() - beta * objective.weight_peak[c].log2();
    rounded(objective, |c| log(c) - log(furthest))
}

/// Returns the exponents of cross-layer equalization, `sqrt(r1 / r2)`: the weights of producers and readers get the
/// same range in every channel. `None` unless producers have per-tensor weights.
fn equal_weights(objective: &Objective) -> Option<Vec<i32>> {
    let usable = (0..objective.n).all(|c| !objective.is_live(c) || objective.producer_peak[c] > 0.0);
    let log = |c: usize| 0.5 * (objective.producer_peak[c] / objective.weight_peak[c]).log2();
    usable.then(|| rounded(objective, log))
}

/// Returns the nearest exponents for channel scales with these base-2 logarithms.
fn rounded(objective: &Objective, log: impl Fn(usize) -> f64) -> Vec<i32> {
    let nearest = |c: usize| (f64::from(PER_OCTAVE) * log(c)).round() as i32;
    let exponent = |c: usize| if objective.is_live(c) { nearest(c).clamp(-MAX_EXPONENT, MAX_EXPONENT) } else { 0 };
    (0..objective.n).map(exponent).collect()
}
