//! Precisions of single layers: the samples that choose them, and what more is observed for that.

use super::{
    AnalysisSamples, ChosenPrecisions, Goal, HeldOut, MAX_ANALYSIS, MIN_SAMPLES, Missed, Mixed, Observe, PlanSource,
    Planner, Search, Wanted, max_held_out,
};
use crate::calibrate::{CalibrationStatistics, SampleSet, observe_more};
use crate::place::Selection;
use crate::plan::Observers;
use crate::progress::Progress;
use crate::quant::GivenRange;
use crate::simulate::Samples;
use crate::tune::{Evaluation, PlannedModel, Setup, Tuned, tune_planned};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Bytes of inputs that are held to evaluate by, about.
const MAX_BYTES: usize = 1 << 28;
/// Samples to evaluate by that tuning has not learned from, where there are so many.
const MIN_APART: usize = 8;
/// Times that more layers are chosen because the tuned plan misses the goal.
const MAX_ROUNDS: usize = 5;

/// What precisions are chosen for, and by.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// What is asked for.
    pub wanted: &'a Wanted,
    /// What tuning goes by.
    pub setup: Setup<'a>,
    /// The range observers; that of activations may have been chosen.
    pub observers: Observers<'a>,
    /// Which nodes the user takes out or asks for.
    pub selection: &'a Selection,
    /// SampleRanges that need no statistics.
    pub given: Option<&'a BTreeMap<String, GivenRange>>,
    /// An earlier evaluation of the plan.
    pub known: Option<&'a Evaluation>,
}

/// Chooses precisions, beginning with `planned`, and tunes the plan, which takes its place. Where the
/// tuned plan misses the goal, more layers are chosen.
///
/// # Errors
/// If the final plan misses the goal: an error of type [`Missed`].
pub fn choose_precisions(
    task: Task,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
    progress: &Progress,
) -> Result<(Mixed, Option<Tuned>)> {
    let Task { wanted, setup, observers, selection, given, known } = task;
    let PlannedModel { model, placement, plan } = &*planned;
    let start = Instant::now();
    let samples = setup.samples.with_context(|| {
        format!("{}: there are no samples, expected --data to choose layers by", wanted.goal.option())
    })?;
    let methods = setup.methods(plan);
    let n_tune = match methods.is_empty() {
        true => 0,
        false => setup.options.effort.n_tune(setup.n_samples(samples, model, methods)),
    };
    let SampleRanges { analysis, evaluation } = SampleRanges::of(samples, wanted.goal, n_tune)?;
    let source = PlanSource {
        graph: model.graph.as_ref().context("model has no graph")?,
        value_info: setup.value_info,
        scheme: setup.scheme,
        selection,
        observers,
        given,
    };
    let mut observe = |tensors: &[String]| observe_more(model, setup.shapes, tensors, samples, progress);
    let observe: &mut Observe = &mut observe;
    let (names, analyzed) = (samples.names(), samples.values(analysis)?);
    let first_evaluated = evaluation.start;
    let evaluated = samples.values(evaluation)?;
    let mut held_out = HeldOut::new(model, Samples { names: &names, values: &evaluated })?;
    drop(evaluated);
    let mut planner = Planner::new(source, calibration.take(), observe);
    let samples = Samples { names: &names, values: &analyzed };
    let analysis = AnalysisSamples { samples, corrected: methods.touches().corrects_biases() };
    let mut search = Search::new(model, placement, &mut planner, wanted, analysis, &mut held_out, progress)?;
    let mut margin = 0.0;
    let mut round = 1;
    let (mut chosen, mixed, tuned) = loop {
        search.go_on(margin)?;
        let ChosenPrecisions { placement, plan, mut mixed } = search.choice()?;
        let mut chosen = PlannedModel { model: model.clone(), placement, plan };
        // Of the plan as it was; and biases that come with it are of no sample that evaluates.
        let known = known.filter(|known| mixed.layers.is_empty() && known.samples.end <= first_evaluated);
        let tuned = tune_planned(setup, &mut chosen, known)?;
        search.evaluate(&chosen.model, &chosen.plan, &mut mixed)?;
        mixed.seconds = start.elapsed().as_secs_f64();
        if mixed.met {
            break (chosen, mixed, tuned);
        }
        if round == MAX_ROUNDS || !search.can_go_on() {
            return Err(Missed(Box::new(mixed)).into());
        }
        margin += mixed.shortfall();
        round += 1;
    };
    // It has edits and warnings of equalization; warnings about tensors came again with the new plan.
    chosen.plan.replace(std::mem::take(&mut planned.plan));
    *planned = chosen;
    Ok((mixed, tuned))
}

/// Positions in the samples by content.
struct SampleRanges {
    /// The samples of the sensitivity analysis.
    analysis: Range<usize>,
    /// Those that evaluate.
    evaluation: Range<usize>,
}

impl SampleRanges {
    /// For a goal, where tuning learns from the first `n_tune`.
    fn of(samples: &SampleSet, goal: Goal, n_tune: usize) -> Result<SampleRanges> {
        let n = samples.by_content().len();
        ensure!(n >= MIN_SAMPLES, "{n} samples to choose layers by, expected {MIN_SAMPLES} or more");
        let n_analysis = MAX_ANALYSIS.min(n / 2);
        let first = n_analysis.max(n_tune.min(n.saturating_sub(MIN_APART)));
        let bytes: usize = samples.inputs.iter().map(|input| 4 * input.shape.iter().product::<usize>()).sum();
        let fit = (MAX_BYTES / bytes.max(1)).max(1);
        let limit = max_held_out(goal).min(fit);
        Ok(SampleRanges { analysis: 0..n_analysis, evaluation: n - (n - first).min(limit)..n })
    }
}
