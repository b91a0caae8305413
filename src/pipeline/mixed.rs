//! Precisions of single layers: the samples that choose them, and what more is observed for that.

use super::Request;
use super::tune::{self, Known};
use crate::calibrate::{CalibrationStatistics, SampleSet, observe_more};
use crate::mixed::{
    Choice, Judge, MAX_RANKING, MIN_SAMPLES, Missed, Mixed, Observe, Planner, Ranking, Search,
    Source, max_judges,
};
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::Placement;
use crate::plan::{Observers, QuantPlan};
use crate::progress::Progress;
use crate::simulate::Samples;
use crate::tune::{Method, Methods, Tuned};
use anyhow::{Context, Result, ensure};
use std::ops::Range;
use std::time::Instant;

/// Bytes of inputs that are held to judge by, about.
const MAX_BYTES: usize = 1 << 28;
/// Samples to judge by that tuning has not learned from, where there are so many.
const MIN_APART: usize = 8;

/// Times that more layers are chosen because the tuned plan misses the goal.
const MAX_ROUNDS: usize = 5;

/// What precisions are chosen for.
#[derive(Clone, Copy)]
pub(super) struct Stage<'a> {
    /// The prepared model.
    pub model: &'a ModelProto,
    /// Types and shapes of its tensors.
    pub value_info: &'a ValueInfos,
    /// What was asked for.
    pub request: &'a Request,
    /// The range observers.
    pub observers: Observers<'a>,
    /// What is known of the float network and the plan as it is.
    pub known: Option<&'a Known>,
    /// The calibration data; none where nothing was run.
    pub samples: Option<&'a SampleSet>,
}

/// A model with chosen layers, tuned.
pub(super) struct Chosen {
    /// The model, with its final biases.
    pub model: ModelProto,
    /// Where it is quantized.
    pub placement: Placement,
    /// With which parameters.
    pub plan: QuantPlan,
    /// What tuning did.
    pub tuned: Option<Tuned>,
    /// How the layers were chosen.
    pub mixed: Mixed,
}

/// Chooses the precisions that the request asks for, beginning with `placement`, and tunes the plan. Where the
/// tuned plan misses the goal, more layers are chosen.
///
/// # Errors
/// If the final plan misses the goal: an error of type [`Missed`].
pub(super) fn mixed(
    stage: Stage,
    placement: &Placement,
    plan: &QuantPlan,
    calibration: &mut CalibrationStatistics,
    progress: &Progress,
) -> Result<Option<Chosen>> {
    let Stage { model, value_info, request, observers, known, samples: run } = stage;
    let Some(wanted) = &request.mixed else { return Ok(None) };
    let start = Instant::now();
    let run = run.with_context(|| {
        format!(
            "{}: there are no samples, expected --data to choose layers by",
            wanted.goal.option()
        )
    })?;
    let corrected = tune::methods(request, plan).contains(Method::Bias);
    let largest = value_info.largest_activation(model);
    let (ranking, judging) = ranges(run, plan, largest, request)?;
    let source = Source {
        graph: model.graph.as_ref().context("model has no graph")?,
        value_info,
        scheme: &request.scheme,
        selection: &request.selection,
        observers,
        given: request.ranges.as_ref().map(|imported| &imported.ranges),
    };
    let mut observe =
        |tensors: &[String]| observe_more(model, &request.shapes, tensors, run, progress);
    let observe: &mut Observe = &mut observe;
    let (names, ranked) = (run.names(), run.values(ranking)?);
    let first_judge = judging.start;
    let judged = run.values(judging)?;
    let mut judge = Judge::new(model, Samples { names: &names, values: &judged })?;
    drop(judged);
    let mut planner = Planner::new(source, calibration.take(), observe);
    let samples = Samples { names: &names, values: &ranked };
    let ranking = Ranking { samples, corrected };
    let mut search =
        Search::new(model, placement, &mut planner, wanted, ranking, &mut judge, progress)?;
    let mut margin = 0.0;
    for round in 1.. {
        search.go_on(margin)?;
        let Choice { mut placement, mut plan, mut mixed } = search.choice()?;
        let mut model = model.clone();
        // Of the plan as it was; and biases that come with it are of no sample that judges.
        let known =
            known.filter(|known| mixed.layers.is_empty() && known.samples.end <= first_judge);
        let tuned = tune::tune(
            &mut model,
            &mut plan,
            &mut placement,
            value_info,
            request,
            Some(run),
            known,
        )?;
        search.judge(&model, &plan, &mut mixed)?;
        mixed.seconds = start.elapsed().as_secs_f64();
        if mixed.met {
            return Ok(Some(Chosen { model, placement, plan, tuned, mixed }));
        }
        if round == MAX_ROUNDS || !search.can_go_on() {
            return Err(Missed(Box::new(mixed)).into());
        }
        margin += mixed.shortfall();
    }
    Ok(None)
}

/// The samples that layers are ranked by, and those that judge: positions in the samples by content. The largest
/// activation has `largest` values.
fn ranges(
    run: &SampleSet,
    plan: &QuantPlan,
    largest: usize,
    request: &Request,
) -> Result<(Range<usize>, Range<usize>)> {
    let n = run.by_content().len();
    ensure!(n >= MIN_SAMPLES, "{n} samples to choose layers by, expected {MIN_SAMPLES} or more");
    let n_ranking = MAX_RANKING.min(n / 2);
    let methods = tune::methods(request, plan);
    let learns = methods != Methods::default();
    let n_looked_at = tune::n_samples(run, largest, request, methods);
    let n_learned = if learns { request.tune.effort.n_tune(n_looked_at) } else { 0 };
    let first = n_ranking.max(n_learned.min(n.saturating_sub(MIN_APART)));
    let bytes: usize =
        run.inputs.iter().map(|input| 4 * input.shape.iter().product::<usize>()).sum();
    let fit = (MAX_BYTES / bytes.max(1)).max(1);
    let goal = request.mixed.as_ref().map(|wanted| wanted.goal);
    let limit = goal.map_or(1, max_judges).min(fit);
    Ok((0..n_ranking, n - (n - first).min(limit)..n))
}
