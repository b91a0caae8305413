//! The order of the stages. The only file that knows it.

mod compare;
mod equalize;
mod mixed;
mod observer;
mod tune;

pub use compare::compare;
pub use equalize::Equalized;
use equalize::Judged;
pub use observer::ObserverChoice;

use crate::calibrate::{self, CalibrationStatistics, Observed, SampleSet};
use crate::check;
use crate::diag::{WithHint, hint_of};
use crate::engine::Parsed;
use crate::import::ImportedRanges;
use crate::mixed::{Mixed, Wanted};
use crate::observers;
use crate::onnx::edit::apply;
use crate::onnx::inputs::{Shapes, resolve_inputs};
use crate::onnx::proto::ModelProto;
use crate::onnx::sha256;
use crate::place::{Placement, Selection, place};
use crate::plan::{Observers, QuantPlan, decide};
use crate::prepare::{Change, PreparedGraph, prepare_file};
use crate::progress::Progress;
use crate::quant::GivenRange;
use crate::rewrite::rewrite;
use crate::scheme::{Scheme, WeightStorage};
use crate::sidecar::{CalibrationRecord, InputRecord, ModelRecord, RangesFrom, Record, Sidecar};
use crate::tune::{self as tuning, Tuned};
use anyhow::{Context, Result, anyhow};
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
    pub calibration: calibrate::Options,
    /// Ranges of activations that need no data.
    pub ranges: Option<ImportedRanges>,
    /// What ranges are by.
    pub observers: observers::Options,
    /// How much work goes into better weights.
    pub tune: tuning::Options,
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

    /// What the samples are for.
    fn data_use(&self) -> calibrate::Use {
        calibrate::Use {
            batch_size: self.observers.activation.observer.batch_size,
            loads_again: self.tune.looks_again() || self.mixed.is_some(),
        }
    }
}

/// What a run gives.
pub struct Quantized {
    /// The model with Q/DQ.
    pub model: ModelProto,
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
    /// Samples observed.
    pub n_samples: usize,
    /// How images became inputs.
    pub preprocessing: Option<String>,
    /// A line per input whose open dimensions got numbers in the model that is written.
    pub fixed: Vec<String>,
    /// What equalization did, where it was asked for.
    pub equalized: Option<Equalized>,
    /// How the range observer of activations was chosen, where others were tried.
    pub observer: Option<ObserverChoice>,
    /// Which layers got another precision, where that was asked for.
    pub mixed: Option<Mixed>,
    /// What tuning did, where it did something.
    pub tuned: Option<Tuned>,
}

/// The main job: one model through all stages.
///
/// `progress` is told the number of samples, and gives what to call after each.
///
/// # Errors
/// As the stages; the message begins with the model's path.
pub fn quantize(path: &Path, request: &Request, progress: &Progress) -> Result<Quantized> {
    let prepared = prepare_file(path, &request.scheme, &request.shapes)?;
    on_threads(request.threads, || finish(path, request, prepared, progress))
        .with_context(|| format!("`{}`", path.display()))
}

/// Runs `work` on a pool of so many threads, for all that it does in parallel.
fn on_threads<T: Send>(n: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    // As a main thread has it: the engine takes models apart there.
    const STACK: usize = 8 << 20;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n.max(1)).stack_size(STACK);
    pool.build()?.install(work)
}

/// The calibration data, where there is something to observe.
fn open_data(
    parsed: &Result<Parsed>,
    placement: &Placement,
    observed: &Observed,
    request: &Request,
) -> Result<Option<SampleSet>> {
    if let (Some(ranges), true) = (&request.ranges, request.calibration.data.is_empty()) {
        ranges.ensure_all(placement.activations.iter().map(|q| q.tensor.as_str()))?;
    }
    if request.ranges.is_some() && observed.is_empty() {
        return Ok(None);
    }
    let parsed =
        parsed.as_ref().map_err(|error| anyhow!("{}", error.root_cause()).hint(hint_of(error)))?;
    SampleSet::open(parsed, &request.calibration, request.data_use()).map(Some)
}

fn finish(
    path: &Path,
    request: &Request,
    prepared: PreparedGraph,
    progress: &Progress,
) -> Result<Quantized> {
    let fixed = prepared.fixed_shapes();
    let PreparedGraph { mut model, value_info, changes, opset, has_external_data, parsed } =
        prepared;
    let graph = model.graph.as_ref().context("model has no graph")?;
    let mut placement = place(graph, &value_info, &request.scheme, &request.selection);
    let given = request.given();
    let observed = Observed::new(&placement, given);
    let samples = open_data(&parsed, &placement, &observed, request)?;
    let inputs = match &samples {
        Some(samples) => samples.inputs.clone(),
        None => resolve_inputs(&model, &request.shapes)?,
    };
    let samples = samples.as_ref();
    let stage = equalize::Stage {
        model: &model,
        value_info: &value_info,
        placement: &placement,
        request,
        samples,
    };
    let proposal = equalize::propose(stage, progress)?;
    let units = proposal.as_ref().map(equalize::Proposal::units).unwrap_or_default();
    let mut calibration = match samples {
        Some(samples) => {
            CalibrationStatistics::collect(parsed?, observed, &units, samples, progress)?
        }
        None => CalibrationStatistics::default(),
    };
    let (scheme, observers) = (&request.scheme, Observers::of(&request.observers));
    let statistics = calibration.of(&placement);
    let mut plan = decide(graph, &placement, &statistics, given, scheme, observers)?;
    let judged = proposal.map(|it| it.judge(stage, &mut plan, &mut calibration));
    let Judged { equalized, replaced, mut known } = judged.unwrap_or_default();
    if let Some(replaced) = replaced {
        (model, plan) = replaced;
    }
    let stage = equalize::Stage {
        model: &model,
        value_info: &value_info,
        placement: &placement,
        request,
        samples,
    };
    let observer = observer::choose(stage, &mut plan, &calibration, &mut known);
    let taken = observer.as_ref().map(ObserverChoice::observer).transpose()?;
    let activation = taken.as_ref().unwrap_or(observers.activation);
    let observers = Observers { activation, ..observers };
    let known = known.as_ref();
    let stage =
        mixed::Stage { model: &model, value_info: &value_info, request, observers, known, samples };
    let (tuned, mixed) = match mixed::mixed(stage, &placement, &plan, &mut calibration, progress)? {
        None => {
            let tuned = tune::tune(
                &mut model,
                &mut plan,
                &mut placement,
                &value_info,
                request,
                samples,
                known,
            )?;
            (tuned, None)
        }
        Some(chosen) => {
            // Those about equalization; those about tensors come again with the new plan.
            let earlier = plan.warnings;
            (model, placement, plan) = (chosen.model, chosen.placement, chosen.plan);
            plan.keep_warnings(earlier);
            (chosen.tuned, Some(chosen.mixed))
        }
    };
    let graph = model.graph.as_ref().context("model has no graph")?;
    let skipped = calibration.skipped.iter().map(|reason| format!("left out: {reason}"));
    plan.warnings.splice(0..0, skipped);
    for pattern in request.selection.unmatched(graph) {
        plan.warnings.push(format!("`{pattern}` matches no node"));
    }
    if plan.activations.is_empty() {
        plan.warnings.push("nothing was quantized: see the reasons in the sidecar".to_string());
    }
    let preprocessing = samples.and_then(|samples| samples.dataset.describe());
    let record = CalibrationRecord {
        n_samples: calibration.n_samples,
        n_skipped: calibration.skipped.len(),
        activation_observer: observer.as_ref().map_or_else(
            || request.observers.activation.spelling.clone(),
            |chosen| chosen.observer.clone(),
        ),
        tried_observers: observer.as_ref().map(|chosen| chosen.tried.clone()).unwrap_or_default(),
        weight_observer: request.observers.weight.spelling.clone(),
        ranges_from: request.ranges.as_ref().map(|imported| RangesFrom {
            file: imported.file.clone(),
            format: imported.format.to_string(),
        }),
        preprocessing: preprocessing.clone(),
        inputs: inputs.into_iter().map(|i| InputRecord { name: i.name, shape: i.shape }).collect(),
    };
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let done = changes.iter().map(Change::to_string).collect();
    let sidecar = Record {
        graph,
        value_info: &value_info,
        scheme: &request.scheme,
        placement: &placement,
        plan: &plan,
        model: ModelRecord { file, sha256: sha256(path)?, opset, prepared: done },
        calibration: record,
        equalization: equalized.as_ref().map(Equalized::facts),
        mixed_precision: mixed.clone(),
        tuned: tuned.as_ref(),
    }
    .sidecar()?;
    let learned = plan.learned_weights(graph);
    let mut prepared = model.clone();
    apply(prepared.graph.as_mut().context("model has no graph")?, &learned)?;
    rewrite(&mut model, &plan, request.storage)?;
    plan.warnings.extend(check::ensure_kept(&model, &request.scheme)?);
    Ok(Quantized {
        model,
        prepared,
        has_external_data,
        sidecar,
        placement,
        plan,
        n_samples: calibration.n_samples,
        preprocessing,
        fixed,
        equalized,
        observer,
        mixed,
        tuned,
    })
}
