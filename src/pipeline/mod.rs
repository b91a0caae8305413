//! The order of the stages. Only this module knows it.
//!
//! In: a model's path and a [`Request`], which holds the options of all modules. Out: an [`Outcome`] with the quantized
//! model and its sidecar. It writes no file.

mod collect;
mod compare;
mod data_warnings;
mod doctor;
mod evaluate;
mod improve;
mod prepared;
mod record;
mod request;
mod sample_sums;
mod stable;
mod tensors;
mod warnings;

pub use collect::{CollectRequest, collect};
pub use compare::{CompareRequest, Comparison, SampleData, compare};
pub use doctor::{Diagnosis, DoctorRequest, doctor};
pub use evaluate::{LABELLED_TOP5, ModelEvaluation, OF_ONE_MODEL, OutputValues, evaluate};
pub use improve::Improved;
pub use prepared::prepare_for;
pub use request::Request;
pub use tensors::{ComparedTensor, ComparedTensors};

use crate::calibrate::{CalibrationStatistics, SampleSet, observed_tensors};
use crate::check::{Checked, ensure_kept};
use crate::data::{Preprocessing, add_shapes};
use crate::diag::{WithHint, count, hint_of};
use crate::engine::Parsed;
use crate::onnx;
use crate::onnx::edit::{ModelEdit, edited};
use crate::onnx::inputs::{Shapes, open_inputs};
use crate::onnx::proto::ModelProto;
use crate::place::{Placement, WideNodes, place};
use crate::plan::{
    Decided, Observers, QuantPlan, decide, narrow_tensors, off_grid, warning_of_off_grid, warning_of_unlike,
};
use crate::prepare::{PreparedGraph, prepare_file, raise_opset};
use crate::progress::Progress;
use crate::rewrite::rewrite;
use crate::scheme::{WIDE_OPSET, WeightStorage};
use crate::sidecar::Sidecar;
use crate::tune::accept::BROKEN;
use crate::tune::{Lowest, PlannedModel, Proposals, Setup, propose};
use anyhow::{Context, Result, anyhow};
use data_warnings::data_warnings;
use improve::improve;
use request::Known;
use std::collections::BTreeSet;
use std::path::Path;
use warnings::add_warnings;

/// The result of a run.
pub struct Outcome {
    /// The quantized model, after its checks.
    pub model: Checked,
    /// The float model from which the quantized one was made, as at placement. Both share the data of tensors.
    pub prepared: ModelProto,
    /// The part of the float model after the tensors at which it was cut.
    pub tail: Option<ModelProto>,
    /// Whether tensors are written to a file of their own.
    pub has_external_data: bool,
    /// The sidecar.
    pub sidecar: Sidecar,
    /// Where the model is quantized.
    pub placement: Placement,
    /// Parameters of all quantizers.
    pub plan: QuantPlan,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// One line per input with fixed dimensions in place of open ones.
    pub fixed: Vec<String>,
    /// Share of the multiply-adds that run on integers, 0 to 1; `None` if shapes are unknown or only weights are
    /// quantized.
    pub integer_share: Option<f64>,
    /// Results of tuning methods.
    pub improved: Improved,
    /// The lowest figure of the network on held-out samples; `None` where none was measured.
    lowest: Option<Lowest>,
    /// Reason for which the table of wider types replaced the backend's own table; `None` where it did not.
    pub replaced: Option<String>,
}

/// Runs one model through all stages.
///
/// `progress` gets the number of samples and returns a function to call after each sample.
///
/// # Errors
/// As the stages; the message begins with the model's path.
pub fn run(path: &Path, request: &Request, progress: &Progress) -> Result<Outcome> {
    let wider = request.wider.as_deref();
    let calibration = &request.calibration;
    let (shapes, differing) =
        shapes_with_data(path, &request.shapes, &calibration.data, calibration.limit, &calibration.preprocessing)?;
    let (prepared, is_transformer) =
        prepare_for(path, &request.scheme, wider.map(|other| &other.scheme), &request.outputs, &shapes)?;
    let backend = &request.scheme.name;
    let (request, wider) = match wider.filter(|_| is_transformer) {
        Some(wider) => (wider, None),
        None => (request, wider),
    };
    if let Some(differing) = differing.filter(|_| request.scheme.static_shapes && !calibration.skip_bad_data) {
        let of_table = format!(
            "the model's inputs get fixed shapes (by --static-shapes or backend `{backend}`), expected samples of one shape"
        );
        let hint =
            "pad the samples to one length, or use only the samples of one shape with --shape and --skip-bad-data";
        return Err(anyhow!("`{}`: {differing}: {of_table}", path.display()).hint(hint));
    }
    let work = || {
        let outcome = finish(path, request, prepared, shapes.clone(), progress)?;
        let broken = outcome.lowest.filter(|lowest| lowest.figure < BROKEN);
        let wider = wider.filter(|_| request.tune.rescue > 0.0 && request.mixed.is_none());
        Ok(match (wider, broken) {
            (Some(wider), Some(lowest)) => with_wider(path, wider, shapes, (outcome, lowest), progress),
            _ => outcome,
        })
    };
    let outcome = on_threads(request.threads, work).with_context(|| format!("`{}`", path.display()))?;
    let replaced = is_transformer.then(|| "the network is a transformer".to_string());
    Ok(Outcome { replaced: replaced.or(outcome.replaced), ..outcome })
}

/// Quantizes a network that its own table breaks by the table of wider types. Returns the `broken` outcome where that
/// fails or is no better.
fn with_wider(
    path: &Path,
    wider: &Request,
    shapes: Shapes,
    (mut broken, lowest): (Outcome, Lowest),
    progress: &Progress,
) -> Outcome {
    let (name, table) = (&wider.scheme.name, broken.sidecar.scheme.backend.clone());
    let prepared = prepare_file(path, &wider.scheme, &wider.outputs, &shapes);
    match prepared.and_then(|prepared| finish(path, wider, prepared, shapes, progress)) {
        Ok(mut outcome) if outcome.lowest.is_some_and(|wider| wider.figure > lowest.figure) => {
            let reason = format!("`{table}` destroys the accuracy ({})", lowest.spelled());
            let warning =
                format!("{reason}: `{name}`, which has wider types, is used instead; --rescue 0 keeps `{table}`");
            let graph = broken.prepared.graph.as_ref();
            let unlike = graph.and_then(|graph| warning_of_unlike(graph, &broken.placement, &broken.plan));
            let unlike = unlike.map(|unlike| format!("with `{table}`, {unlike}"));
            outcome.warnings.splice(0..0, std::iter::once(warning).chain(unlike));
            Outcome { replaced: Some(reason), ..outcome }
        }
        Ok(_) => broken,
        Err(error) => {
            broken.warnings.push(format!("`{name}`, which has wider types, could not be tried: {error:#}"));
            broken
        }
    }
}

/// Adds the shapes of open inputs to `shapes`, as the largest sample of the data has them. Returns all shapes, and how
/// samples differ in shape, where they do. Fails if the model cannot be read, or as [`add_shapes`].
fn shapes_with_data(
    model: &Path,
    shapes: &Shapes,
    data: &[String],
    limit: Option<usize>,
    preprocessing: &Preprocessing,
) -> Result<(Shapes, Option<String>)> {
    let mut shapes = shapes.clone();
    let loaded = onnx::load(model)?;
    let (open, n_inputs) = open_inputs(loaded.graph()?, &shapes);
    if open.is_empty() {
        return Ok((shapes, None));
    }
    let seen = add_shapes(data, &open, n_inputs, limit, preprocessing, &mut shapes)
        .with_context(|| format!("`{}`", model.display()))?;
    Ok((shapes, seen.differing(&open)))
}

/// Runs the stages after preparation.
fn finish(
    path: &Path,
    request: &Request,
    mut prepared: PreparedGraph,
    shapes: Shapes,
    progress: &Progress,
) -> Result<Outcome> {
    compare::outputs(&prepared.model, &request.axes, None)?;
    let about_model = record::about_model(path, &prepared)?;
    if let Some(saved) = &request.calibration.saved {
        saved.ensure_of(&about_model.sha256)?;
    }
    let (fixed, has_external_data, tail) = (prepared.fixed_shapes(), prepared.has_external_data, prepared.tail.take());
    let placed = place_quantizers(path, request, prepared, shapes, progress)?;
    let Quantization { planned, known, samples, calibration, improved, lowest } =
        plan_and_improve(placed, request, progress)?;
    let setup = request.setup(&known, samples.as_ref(), progress);
    let sidecar = record::sidecar(about_model, setup, request, &planned, &calibration, &improved)?;
    let PlannedModel { model, placement, plan, mut warnings, .. } = planned;
    let on_integers = request.has_ranges() || request.storage == WeightStorage::Dynamic;
    let integer_share = Some(model.graph()?)
        .filter(|_| on_integers)
        .and_then(|graph| placement.integer_share(graph, &known.value_info, &request.scheme));
    let prepared = edited(&model, &plan.learned_weights(model.graph()?))?;
    let model = rewrite_and_check(model, &plan, &sidecar, request)?;
    warnings.extend(model.warnings.iter().cloned());
    Ok(Outcome {
        model,
        prepared,
        tail,
        has_external_data,
        sidecar,
        placement,
        plan,
        warnings,
        fixed,
        integer_share,
        improved,
        lowest,
        replaced: None,
    })
}

/// A prepared model with its quantizers placed, before anything is observed.
struct PlacedModel {
    /// The model without `edits`.
    plain: ModelProto,
    /// The model with `edits`.
    model: ModelProto,
    /// The model without `edits`, as the engine has parsed it.
    parsed: Result<Parsed>,
    /// Copies of tensors at the borders of regions of wider types.
    edits: Vec<ModelEdit>,
    wide: WideNodes,
    placement: Placement,
    known: Known,
    samples: Option<SampleSet>,
    /// Warnings of preparation and about the data.
    warnings: Vec<String>,
}

/// Places the quantizers and opens the data.
fn place_quantizers(
    path: &Path,
    request: &Request,
    prepared: PreparedGraph,
    shapes: Shapes,
    progress: &Progress,
) -> Result<PlacedModel> {
    let PreparedGraph { model: plain, value_info, mut warnings, parsed, .. } = prepared;
    let mut placement = place(plain.graph()?, &value_info, &request.scheme, &request.selection);
    if !request.calibration.has_samples() && !request.has_ranges() {
        placement.activations.clear();
    }
    let mut known = Known::new(&plain, value_info, &placement, request, shapes)?;
    let samples = open_data(&parsed, &placement, request)?;
    if let Some(samples) = &samples {
        warnings.extend(data_warnings(path, &known.shapes, samples, &request.calibration, progress));
    }
    let wide = wide_tails(&plain, &placement, &known, request)?;
    known.selection.wide = wide.outputs.clone();
    let edits: Vec<ModelEdit> = wide.copies.iter().cloned().map(ModelEdit::InsertCopy).collect();
    let model = edited(&plain, &edits)?;
    if !edits.is_empty() {
        placement = place(model.graph()?, &known.value_info, &request.scheme, &known.selection);
    }
    Ok(PlacedModel { plain, model, parsed, edits, wide, placement, known, samples, warnings })
}

/// The decided and improved parameters of a model, with what they are made from.
struct Quantization {
    planned: PlannedModel,
    known: Known,
    samples: Option<SampleSet>,
    calibration: CalibrationStatistics,
    improved: Improved,
    lowest: Option<Lowest>,
}

/// Observes the float model, decides the parameters from the observed values, and improves them.
fn plan_and_improve(placed: PlacedModel, request: &Request, progress: &Progress) -> Result<Quantization> {
    let PlacedModel { plain, model, parsed, edits, wide, placement, known, samples, warnings: earlier } = placed;
    let setup = request.setup(&known, samples.as_ref(), progress);
    let proposals = propose(setup.for_methods(), &model, &placement);
    let mut calibration = observe(parsed, &plain, &placement, &proposals, &wide, setup, request)?;
    calibration.set_statistics(calibration.of_copies(&wide.copies));
    let (known, placement, (plan, warnings)) = placed_and_decided(&model, placement, known, &calibration, request)?;
    let setup = request.setup(&known, samples.as_ref(), progress);
    let mut planned = PlannedModel { edits, warnings, ..PlannedModel::new(model, placement, plan) };
    let (improved, lowest) = improve(setup.for_methods(), request, &mut planned, proposals, &mut calibration)?;
    add_warnings(&mut planned, &calibration, setup, request)?;
    planned.warnings.extend(earlier);
    if let Some(lack) = samples.as_ref().and_then(SampleSet::first_lack) {
        return Err(lack);
    }
    if !request.has_ranges() {
        // These activations stood for ranges that the target computes on each run.
        planned.placement.activations.clear();
        planned.plan.activations.clear();
    }
    Ok(Quantization { planned, known, samples, calibration, improved, lowest })
}

/// Writes the plan into the model and checks the result against the rules of the target.
fn rewrite_and_check(model: ModelProto, plan: &QuantPlan, sidecar: &Sidecar, request: &Request) -> Result<Checked> {
    let mut quantized = rewrite(model, plan, request.storage)?.with_edit(|model| {
        let version = sidecar.producer.version.clone();
        onnx::set_metadata(model, vec![("mqq.version", version), ("mqq.backend", sidecar.scheme.backend.clone())]);
        Ok(())
    })?;
    if plan.activations.iter().any(|planned| planned.qtype.needs_wide_opset()) {
        quantized = quantized.with_edit(|model| raise_opset(model, WIDE_OPSET))?;
    }
    ensure_kept(quantized, &request.scheme)
}

/// Decides the parameters from the observed values. Places the model again where tensors are much narrower than those
/// that they are joined with, and where no grid holds a tensor's values; returns what is known then.
fn placed_and_decided(
    model: &ModelProto,
    mut placement: Placement,
    mut known: Known,
    calibration: &CalibrationStatistics,
    request: &Request,
) -> Result<(Known, Placement, Decided)> {
    let (graph, scheme) = (model.graph()?, &request.scheme);
    let placed = |known: &Known| place(graph, &known.value_info, scheme, &known.selection);
    let decided = |placement: &Placement| {
        let statistics = calibration.for_quantizers(placement);
        decide(graph, placement, &statistics, request.given(), scheme, Observers::of(&request.observers))
    };
    if request.ranges.is_none() {
        let narrow_tensors = narrow_tensors(&placement, &calibration.for_quantizers(&placement), scheme);
        if !narrow_tensors.is_empty() {
            known.selection.narrow_tensors = narrow_tensors;
            placement = placed(&known);
        }
    }
    let (mut plan, mut warnings) = decided(&placement)?;
    let found = off_grid(graph, &plan, &calibration.for_quantizers(&placement));
    if !found.is_empty() {
        known.selection.off_grid = found;
        placement = placed(&known);
        (plan, warnings) = decided(&placement)?;
        if !scheme.allows_float_nodes() {
            let left = off_grid(graph, &plan, &calibration.for_quantizers(&placement));
            warnings.extend(warning_of_off_grid(&left, scheme));
        }
    }
    Ok((known, placement, (plan, warnings)))
}

/// Finds the nodes of detector tails that get the types of the table's region. Nothing is run for that.
fn wide_tails(model: &ModelProto, placement: &Placement, known: &Known, request: &Request) -> Result<WideNodes> {
    let region =
        request.scheme.region.as_ref().filter(|_| request.ranges.is_none() && !placement.activations.is_empty());
    let Some(region) = region else { return Ok(WideNodes::default()) };
    Ok(WideNodes::of_tails(model.graph()?, &known.value_info, placement, region, &known.copies))
}

/// Runs `work` and all its parallel parts on a pool of `n` threads.
fn on_threads<T: Send>(n: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    // As large as the stack of a main thread, because the engine handles models on these threads.
    const STACK: usize = 8 << 20;
    // A thread that lacks memory to start aborts the process. Where memory is too small for all threads, this
    // allocation ends the run instead.
    const START: usize = STACK + (1 << 20);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(n.max(1).saturating_mul(START))));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n.max(1)).stack_size(STACK);
    let no_threads = |error| anyhow!("--threads: {} cannot be started: {error}", count(n, "thread"));
    pool.build().map_err(|error| no_threads(error).hint("use fewer with --threads"))?.install(work)
}

/// Opens the calibration data, where there is something to observe.
fn open_data(parsed: &Result<Parsed>, placement: &Placement, request: &Request) -> Result<Option<SampleSet>> {
    if let (Some(ranges), false) = (&request.ranges, request.calibration.has_samples()) {
        ranges.ensure_all(placement.activations.iter().map(|q| q.tensor.as_str()))?;
    }
    let has_enough = request.ranges.is_some() || !request.calibration.has_samples();
    if has_enough && observed_tensors(placement, request.given()).is_empty() {
        return Ok(None);
    }
    let parsed = parsed.as_ref().map_err(|error| anyhow!("{}", error.root_cause()).hint(hint_of(error)))?;
    SampleSet::open(parsed, &request.calibration, &request.shapes, request.data_use()).map(Some)
}

/// Calibrates `model`, which lacks the copies of `wide`, on the data or on saved statistics. Without either, statistics
/// are empty.
fn observe(
    parsed: Result<Parsed>,
    model: &ModelProto,
    placement: &Placement,
    proposals: &Proposals,
    wide: &WideNodes,
    setup: Setup,
    request: &Request,
) -> Result<CalibrationStatistics> {
    let Some(samples) = setup.samples else { return Ok(CalibrationStatistics::default()) };
    let mut wanted = observed_tensors(placement, request.given());
    if request.ranges.is_none() {
        wanted.extend(proposals.observed());
    }
    let mut seen = BTreeSet::new();
    let sources = wanted.iter().map(|tensor| wide.source(tensor).to_string());
    let observed: Vec<String> = sources.filter(|tensor| seen.insert(tensor.clone())).collect();
    let (mut scaled, by_channel) = (proposals.scaled(), linear_tensors(placement));
    scaled.iter_mut().for_each(|scaled| scaled.source = wide.source(&scaled.source).to_string());
    if let Some(saved) = &samples.saved {
        let sha256 = onnx::model_sha256(model);
        let known = CalibrationStatistics::of_saved(saved, &sha256, &observed, &scaled, &by_channel, samples)?;
        if let Some(known) = known {
            if samples.used_again() {
                samples.put_in_order(setup.progress)?;
            }
            return Ok(known);
        }
    }
    CalibrationStatistics::collect(parsed?, observed, scaled, &by_channel, samples, setup.progress)
}

/// Returns the tensors whose channels are observed as well: inputs of a transformer's linear layers.
fn linear_tensors(placement: &Placement) -> BTreeSet<String> {
    let linear = placement.activations.iter().filter(|quantizer| quantizer.linear);
    linear.map(|quantizer| quantizer.tensor.clone()).collect()
}
