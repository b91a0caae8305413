//! Chooses precisions of single layers: splits the samples for the choice, and alternates search and tuning.

use super::{Goal, MIN_SAMPLES, Missed, Mixed, Planner, Search, Task, max_analysis, max_held_out};
use crate::calibrate::{CalibrationStatistics, SampleSet};
use crate::diag::{WithHint, count};
use crate::simulate::Samples;
use crate::tune::methods::bias::BIAS;
use crate::tune::methods::of_plan;
use crate::tune::{PlannedModel, Tuned, tune_planned};
use anyhow::{Context, Error, Result, ensure};
use std::ops::Range;
use std::time::Instant;

/// Approximate limit on the bytes of held-out inputs.
const MAX_BYTES: usize = 1 << 28;
/// Minimum samples for evaluation that tuning has not learned from, where there are so many.
const MIN_APART: usize = 8;
/// Maximum rounds if the tuned plan misses the goal.
const MAX_ROUNDS: usize = 5;
/// The hint of a missed goal.
const MISSED: &str =
    "relax the goal or raise --effort; `--keep-float 0 --verbose` prints the error of each layer alone";

/// Chooses precisions for `planned`, and replaces it by the tuned plan with these precisions. Where the tuned plan
/// misses the goal, more layers are chosen.
///
/// # Errors
/// If the final plan misses the goal: an error of type [`Missed`].
pub fn choose_precisions(
    task: Task,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
) -> Result<(Mixed, Option<Tuned>)> {
    let Task { setup, known, .. } = task;
    let start = Instant::now();
    let (mut search, first_evaluated) = begin(task, planned, calibration)?;
    let mut margin = 0.0;
    let mut round = 1;
    let (mut chosen, mixed, tuned) = loop {
        search.go_on(margin)?;
        let mut chosen = search.planned()?;
        // `known` is valid only for the first plan, and only if it shares no sample with the evaluation, because its
        // biases were learned from its samples.
        let known = known.filter(|known| !search.has_chosen() && known.samples.end <= first_evaluated);
        let tuned = tune_planned(setup, &mut chosen, known)?;
        let (mut mixed, shortfall) = search.outcome(&chosen)?;
        mixed.seconds = start.elapsed().as_secs_f64();
        if mixed.met {
            break (chosen, mixed, tuned);
        }
        if round == MAX_ROUNDS || !search.can_go_on() {
            return Err(Error::new(Missed(Box::new(mixed), search.lack())).hint(MISSED));
        }
        margin += shortfall;
        round += 1;
    };
    planned.edits.extend(std::mem::take(&mut chosen.edits));
    planned.replan((chosen.plan, chosen.warnings));
    (planned.model, planned.placement) = (chosen.model, chosen.placement);
    Ok((mixed, tuned))
}

/// Starts a search from `planned`. Returns the search, and the position of the first sample of the evaluation. Fails if
/// there are too few samples, or a node cannot be run by itself.
pub(super) fn begin<'a>(
    task: Task<'a>,
    planned: &'a PlannedModel,
    calibration: &'a mut CalibrationStatistics,
) -> Result<(Search<'a>, usize)> {
    let Task { wanted, setup, .. } = task;
    let PlannedModel { model, placement, plan, .. } = planned;
    let samples = setup
        .samples
        .with_context(|| format!("{}: found no samples to choose the layers, expected --data", wanted.goal.option()))?;
    let methods = of_plan(&setup, placement, plan);
    let n_tune = match methods.is_empty() {
        true => 0,
        false => setup.options.effort.n_tune(setup.n_samples(samples, model, methods.n_of_layers())),
    };
    let [analysis, evaluation] = sample_ranges(samples, &wanted.goal, n_tune)?;
    let first_evaluated = evaluation.start;
    let graph = model.graph.as_ref().context("model has no graph")?;
    let (groups, weights) = Default::default();
    let planner = Planner { task, model, graph, samples, calibration, groups, weights };
    let (names, analysis, evaluation) = (samples.names(), samples.values(analysis)?, samples.values(evaluation)?);
    let of = |values| Samples { names: &names, values };
    let search = Search::new(planner, placement, of(&analysis), of(&evaluation), methods.contains(BIAS.name))?;
    Ok((search, first_evaluated))
}

/// Returns the samples of the sensitivity analysis and of the evaluation, as positions by content. Tuning learns from
/// the first `n_tune`.
fn sample_ranges(samples: &SampleSet, goal: &Goal, n_tune: usize) -> Result<[Range<usize>; 2]> {
    let n = samples.by_content().len();
    ensure!(n >= MIN_SAMPLES, "found {} to choose the layers, expected {MIN_SAMPLES} or more", count(n, "sample"));
    let n_analysis = max_analysis(goal).min(n / 2);
    let first = n_analysis.max(n_tune.min(n.saturating_sub(MIN_APART)));
    let bytes: usize = samples.inputs.iter().map(|input| 4 * input.shape.iter().product::<usize>()).sum();
    let fit = (MAX_BYTES / bytes.max(1)).max(1);
    Ok([0..n_analysis, n - (n - first).min(max_held_out(goal)).min(fit)..n])
}
