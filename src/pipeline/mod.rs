//! The order of the stages. The only room that knows it.
//!
//! In: a model's path and a [`Request`], the sum of the rooms' options. Out: an [`Outcome`] with the quantized model and
//! its sidecar. It writes no file.

mod compare;
mod ran;
mod record;
mod task;

pub use compare::{CompareRequest, Comparison, compare};
pub use task::TaskRequest;

use crate::calibrate::{self, CalibrationStatistics, SampleSet, observed_tensors};
use crate::check::{Checked, ensure_kept};
use crate::diag::{WithHint, hint_of};
use crate::engine::Parsed;
use crate::equalize::{insertable, inserted_names, with_inserted};
use crate::import::ImportedRanges;
use crate::mixed::{Mixed, Task, Wanted, choose_precisions};
use crate::observers;
use crate::onnx::edit::edited;
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::onnx::value_info::ValueInfos;
use crate::place::{Placement, Selection, place};
use crate::plan::{Observers, QuantPlan, decide};
use crate::prepare::{PreparedGraph, prepare_file};
use crate::progress::Progress;
use crate::quant::GivenRange;
use crate::rewrite::rewrite;
use crate::scheme::{Scheme, WeightStorage};
use crate::sidecar::Sidecar;
use crate::tune::{
    self, Equalized, ObserverChoice, PlannedModel, Proposal, Setup, Tuned, choose_observer, propose, tune_planned,
};
use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;
use std::path::Path;

/// What a run of the main job is asked for.
pub struct Request {
    /// The backend's table, switches applied.
    pub scheme: Scheme,
    /// Shapes of inputs that the model leaves open.
    pub shapes: Shapes,
    /// Which nodes to leave out, or to keep.
    pub selection: Selection,
    /// The calibration data.
    pub calibration: calibrate::CalibrationOptions,
    /// Ranges of activations that need no data.
    pub ranges: Option<ImportedRanges>,
    /// What ranges are by.
    pub observers: observers::ObserverOptions,
    /// How much work goes into better weights.
    pub tune: tune::TuningOptions,
    /// Whether Muls may be inserted for channel scales, where the target runs them.
    pub inserts: bool,
    /// Which layers get another precision than their rows', where that is asked for.
    pub mixed: Option<Wanted>,
    /// How weights are stored.
    pub storage: WeightStorage,
    /// Samples run at the same time.
    pub threads: usize,
}

impl Request {
    /// Ranges that are given, by tensor.
    fn given(&self) -> Option<&BTreeMap<String, GivenRange>> {
        self.ranges.as_ref().map(|imported| &imported.ranges)
    }

    /// What methods go by.
    fn setup<'a>(&'a self, value_info: &'a ValueInfos, samples: Option<&'a SampleSet>) -> Setup<'a> {
        Setup {
            scheme: &self.scheme,
            value_info,
            shapes: &self.shapes,
            observers: &self.observers,
            has_given_ranges: self.ranges.is_some(),
            options: self.tune,
            selection: &self.selection,
            samples,
        }
    }

    /// What the samples are for.
    fn data_use(&self) -> calibrate::Use {
        calibrate::Use {
            batch_size: self.observers.activation.observer.batch_size,
            loads_again: self.tune.looks_again() || self.mixed.is_some(),
        }
    }
}

/// What a run gives.
pub struct Outcome {
    /// The model with Q/DQ.
    pub model: Checked,
    /// The float model that it was made from, as placement saw it; shares its tensors' data.
    pub prepared: ModelProto,
    /// Whether tensors go into a file of their own.
    pub has_external_data: bool,
    /// The sidecar.
    pub sidecar: Sidecar,
    /// Where it is quantized.
    pub placement: Placement,
    /// With which parameters.
    pub plan: QuantPlan,
    /// A line per input whose open dimensions got numbers in the model that is written.
    pub fixed: Vec<String>,
    /// What methods did.
    pub improved: Improved,
}

/// What methods did to the first plan.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct Improved {
    /// Equalization, where it was asked for.
    pub equalized: Option<Equalized>,
    /// How the range observer of activations was chosen, where others were tried.
    pub observer: Option<ObserverChoice>,
    /// Which layers got another precision, where that was asked for.
    #[serde(rename = "mixed_precision")]
    pub mixed: Option<Mixed>,
    /// Tuning, where it did something.
    pub tuned: Option<Tuned>,
}

/// The main job: one model through all stages.
///
/// `progress` is told the number of samples, and gives what to call after each.
///
/// # Errors
/// As the stages; the message begins with the model's path.
pub fn run(path: &Path, request: &Request, progress: &Progress) -> Result<Outcome> {
    let prepared = prepare_file(path, &request.scheme, &request.shapes)?;
    on_threads(request.threads, || finish(path, request, prepared, progress))
        .with_context(|| format!("`{}`", path.display()))
}

/// The stages behind preparing.
fn finish(path: &Path, request: &Request, prepared: PreparedGraph, progress: &Progress) -> Result<Outcome> {
    let fixed = prepared.fixed_shapes();
    let about_model = record::about_model(path, &prepared)?;
    let PreparedGraph { mut model, value_info, has_external_data, mut parsed, .. } = prepared;
    let mut placement = place(graph(&model)?, &value_info, &request.scheme, &request.selection);
    if request.calibration.data.is_empty() && !request.scheme.has_ranges(request.storage) {
        placement.activations.clear();
    }
    let insertable = match request.scheme.float_operators && request.inserts {
        true => insertable(graph(&model)?, &value_info, &placement),
        false => Vec::new(),
    };
    let value_info = with_inserted(&value_info, &insertable);
    let selection = request.selection.with_scaling(inserted_names(&insertable));
    let samples = open_data(&parsed, &placement, request)?;
    let setup = Setup { selection: &selection, ..request.setup(&value_info, samples.as_ref()) };
    let proposal = propose(setup, &model, &placement, insertable, progress)?;
    if let Some(with) = proposal.as_ref().and_then(Proposal::with_muls) {
        (model, placement) = (with.model.clone(), with.placement.clone());
        parsed = Parsed::new(&model, &request.shapes);
    }
    let mut calibration = observe(parsed, &placement, proposal.as_ref(), setup, request, progress)?;
    let statistics = calibration.of(&placement);
    let (given, observers) = (request.given(), setup.range_observers());
    let plan = decide(graph(&model)?, &placement, &statistics, given, setup.scheme, observers)?;
    let mut planned = PlannedModel { model, placement, plan };
    let improved = improve(setup, request, &mut planned, proposal, &mut calibration, progress)?;
    add_warnings(&mut planned, &calibration, &request.selection)?;
    if !request.scheme.has_ranges(request.storage) {
        // They stood for the ranges of each run.
        planned.placement.activations.clear();
        planned.plan.activations.clear();
    }
    let sidecar = record::sidecar(about_model, setup, request, &planned, &calibration, &improved)?;
    let PlannedModel { model, placement, mut plan } = planned;
    let prepared = edited(&model, &plan.learned_weights(graph(&model)?))?;
    let quantized = rewrite(model, &plan, request.storage)?;
    let model = ensure_kept(quantized.into_model(), &request.scheme)?;
    plan.warnings.extend(model.warnings.iter().cloned());
    Ok(Outcome { model, prepared, has_external_data, sidecar, placement, plan, fixed, improved })
}

fn graph(model: &ModelProto) -> Result<&GraphProto> {
    model.graph.as_ref().context("model has no graph")
}

/// Runs `work` on a pool of so many threads, for all that it does in parallel.
fn on_threads<T: Send>(n: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    // As a main thread has it: the engine takes models apart there.
    const STACK: usize = 8 << 20;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n.max(1)).stack_size(STACK);
    pool.build()?.install(work)
}

/// The calibration data, where there is something to observe.
fn open_data(parsed: &Result<Parsed>, placement: &Placement, request: &Request) -> Result<Option<SampleSet>> {
    if let (Some(ranges), true) = (&request.ranges, request.calibration.data.is_empty()) {
        ranges.ensure_all(placement.activations.iter().map(|q| q.tensor.as_str()))?;
    }
    let has_enough = request.ranges.is_some() || request.calibration.data.is_empty();
    if has_enough && observed_tensors(placement, request.given()).is_empty() {
        return Ok(None);
    }
    let parsed = parsed.as_ref().map_err(|error| anyhow!("{}", error.root_cause()).hint(hint_of(error)))?;
    SampleSet::open(parsed, &request.calibration, request.data_use()).map(Some)
}

/// Runs the data, where there are some.
fn observe(
    parsed: Result<Parsed>,
    placement: &Placement,
    proposal: Option<&Proposal>,
    setup: Setup,
    request: &Request,
    progress: &Progress,
) -> Result<CalibrationStatistics> {
    let Some(samples) = setup.samples else { return Ok(CalibrationStatistics::default()) };
    let observed = observed_tensors(placement, request.given());
    let scalings = proposal.map(Proposal::scalings).unwrap_or_default();
    CalibrationStatistics::collect(parsed?, observed, &scalings, samples, progress)
}

/// What methods make of the first plan: equalization, then the observer of activations, then precisions of single layers
/// with tuning or tuning alone.
fn improve(
    setup: Setup,
    request: &Request,
    planned: &mut PlannedModel,
    proposal: Option<Proposal>,
    calibration: &mut CalibrationStatistics,
    progress: &Progress,
) -> Result<Improved> {
    let evaluated = proposal.map(|proposal| proposal.evaluate(setup, planned, calibration)).transpose()?;
    let (equalized, mut known) = evaluated.unwrap_or_default();
    let observer = choose_observer(setup, planned, calibration, &mut known);
    let chosen = observer.as_ref().map(ObserverChoice::chosen).transpose()?;
    let observers = setup.range_observers();
    let activation = chosen.as_ref().unwrap_or(observers.activation);
    let observers = Observers { activation, ..observers };
    let (mixed, tuned) = match &request.mixed {
        None => (None, tune_planned(setup, planned, known.as_ref())?),
        Some(wanted) => {
            let (selection, given) = (setup.selection, request.given());
            let known = known.as_ref();
            let task = Task { wanted, setup, observers, selection, given, known };
            let (mixed, tuned) = choose_precisions(task, planned, calibration, progress)?;
            (Some(mixed), tuned)
        }
    };
    Ok(Improved { equalized, observer, mixed, tuned })
}

/// What the user is told besides what the stages said.
fn add_warnings(planned: &mut PlannedModel, calibration: &CalibrationStatistics, selection: &Selection) -> Result<()> {
    let PlannedModel { model, plan, .. } = planned;
    let skipped = calibration.skipped.iter().map(|reason| format!("left out: {reason}"));
    plan.warnings.splice(0..0, skipped);
    for pattern in selection.unmatched(graph(model)?) {
        plan.warnings.push(format!("`{pattern}` matches no node"));
    }
    if plan.activations.is_empty() && plan.weights.is_empty() {
        plan.warnings.push("nothing was quantized: see the reasons in the sidecar".to_string());
    }
    Ok(())
}
