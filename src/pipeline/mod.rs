//! The order of the stages. Only this module knows it.
//!
//! In: a model's path and a [`Request`], which holds the options of all modules. Out: an [`Outcome`] with the quantized
//! model and its sidecar. It writes no file.

mod collect;
mod compare;
mod data_warnings;
mod doctor;
mod evaluate;
mod record;
mod runnable;
mod stable;
mod tensors;

pub use collect::{CollectRequest, collect};
pub use compare::{CompareRequest, Comparison, compare};
pub use doctor::{Diagnosis, DoctorRequest, doctor};
pub use evaluate::{LABELLED_TOP5, ModelEvaluation, OF_ONE_MODEL, OutputValues, evaluate};
pub use tensors::{ComparedTensor, ComparedTensors};

use crate::calibrate::{self, CalibrationStatistics, SampleSet, observed_tensors};
use crate::check::{Checked, ensure_kept};
use crate::data::add_shapes;
use crate::diag::{WithHint, count, hint_of};
use crate::engine::Parsed;
use crate::equalize::{insertable, with_inserted};
use crate::heads::HeadRequest;
use crate::import::ImportedRanges;
use crate::metrics::{ChannelAxes, OutputGroups};
use crate::mixed::{Mixed, Task, Wanted, choose_precisions, rescue};
use crate::observers::{self, by_spelling};
use crate::onnx;
use crate::onnx::edit::{InsertedMul, ModelEdit, edited};
use crate::onnx::inputs::{Shapes, open_inputs};
use crate::onnx::names::Names;
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::{Placement, Selection, WideNodes, is_transformer, place};
use crate::plan::{Observers, QuantPlan, decide, unlike_tensors, warning_of_unlike};
use crate::prepare::{PreparedGraph, prepare_file, raise_opset};
use crate::progress::Progress;
use crate::quant::GivenRange;
use crate::rewrite::rewrite;
use crate::scheme::{Scheme, WIDE_OPSET, WeightStorage};
use crate::sidecar::Sidecar;
use crate::simulate::{OutputOptions, PreparedNodes};
use crate::tune::accept::BROKEN;
use crate::tune::{
    self, Chosen, EvaluatedTask, Lowest, MethodOutcome, PlannedModel, Proposals, Setup, TensorErrors, Tuned, Whole,
    choose, ensure_gain, propose, tune_planned,
};
use anyhow::{Context, Result, anyhow};
use data_warnings::data_warnings;
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Options of a run.
pub struct Request {
    /// The backend's table, with switches applied.
    pub scheme: Scheme,
    /// Shapes for inputs with open dimensions.
    pub shapes: Shapes,
    /// Tensors to cut the model at; none for the whole model.
    pub outputs: Vec<String>,
    /// Nodes to exclude or select.
    pub selection: Selection,
    /// The calibration data.
    pub calibration: calibrate::CalibrationOptions,
    /// Given ranges of activations, which need no data.
    pub ranges: Option<ImportedRanges>,
    /// Range observers.
    pub observers: observers::ObserverOptions,
    /// Options of tuning.
    pub tune: tune::TuningOptions,
    /// Channel axes that the user gives, by output.
    pub axes: ChannelAxes,
    /// The network's task and head, as far as the user gives them.
    pub head: HeadRequest,
    /// Whether Muls for channel scales may be inserted, where the table allows it.
    pub inserts: bool,
    /// Mixed precision, where the user asks for it.
    pub mixed: Option<Wanted>,
    /// Storage of weights.
    pub storage: WeightStorage,
    /// Samples that run at the same time.
    pub threads: usize,
    /// The request that replaces this one for transformers and for networks that its table breaks, with the table of wider
    /// types.
    pub wider: Option<Box<Request>>,
}

impl Request {
    /// Given ranges, by tensor.
    fn given(&self) -> Option<&BTreeMap<String, GivenRange>> {
        self.ranges.as_ref().map(|imported| &imported.ranges)
    }

    /// The inputs that all methods share.
    fn setup<'a>(&'a self, known: &'a Known, samples: Option<&'a SampleSet>, progress: &'a Progress<'a>) -> Setup<'a> {
        Setup {
            scheme: &self.scheme,
            value_info: &known.value_info,
            selection: &known.selection,
            insertable: &known.insertable,
            copies: &known.copies,
            shapes: &known.shapes,
            observers: &self.observers,
            has_given_ranges: self.ranges.is_some(),
            has_goal: self.mixed.is_some(),
            options: &self.tune,
            outputs: OutputOptions {
                axes: &self.axes,
                head: &self.head,
                input: samples.and_then(SampleSet::image_size),
            },
            prepared: &known.prepared,
            samples,
            progress,
        }
    }

    /// Whether ranges of activations are written.
    fn has_ranges(&self) -> bool {
        self.scheme.has_ranges(self.storage)
    }

    /// Whether samples are run again after calibration.
    pub fn runs_again(&self) -> bool {
        self.tune.looks_again() || self.mixed.is_some()
    }

    /// Later uses of the samples.
    fn data_use(&self) -> calibrate::Use {
        let batch_size = self.observers.activation.observer.batch_size;
        calibrate::Use { batch_size, loads_again: self.runs_again() }
    }
}

/// Facts about a prepared model before anything runs.
struct Known {
    /// Types and shapes, also of tensors that may be inserted.
    value_info: ValueInfos,
    /// Nodes to exclude or select.
    selection: Selection,
    /// Candidate Muls for channel scales.
    insertable: Vec<InsertedMul>,
    /// Names for copies of tensors at the borders of a region of wider types, by tensor.
    copies: BTreeMap<String, String>,
    /// Shapes of open inputs.
    shapes: Shapes,
    /// Nodes that passes share.
    prepared: PreparedNodes,
}

impl Known {
    fn new(
        model: &ModelProto,
        value_info: ValueInfos,
        placement: &Placement,
        request: &Request,
        shapes: Shapes,
    ) -> Result<Known> {
        let graph = model.graph()?;
        let inserts = request.inserts && request.scheme.insert_scales.is_some() && request.ranges.is_none();
        let insertable = if inserts { insertable(graph, &value_info, placement) } else { Vec::new() };
        let is_float = request.scheme.scales_in_float();
        let names = insertable.iter().filter(|_| is_float).flat_map(InsertedMul::names).cloned();
        let selection = request.selection.with_scaling(names.collect());
        let mut value_info = with_inserted(value_info, &insertable);
        let mut copies = BTreeMap::new();
        let may_have_region =
            request.scheme.region.is_some() && (request.tune.looks_again() || !placement.tails.is_empty());
        if may_have_region && raise_opset(&mut model.clone(), WIDE_OPSET).is_ok() {
            let mut names = Names::of(graph);
            for quantizer in &placement.activations {
                let copy = names.fresh(&format!("{}_converted", quantizer.tensor));
                value_info.copy(&quantizer.tensor, &copy);
                copies.insert(quantizer.tensor.clone(), copy);
            }
        }
        Ok(Known { value_info, selection, insertable, copies, shapes, prepared: PreparedNodes::default() })
    }
}

/// The result of a run.
pub struct Outcome {
    /// The model with Q/DQ.
    pub model: Checked,
    /// The float model that it was made from, as at placement; shares the data of its tensors.
    pub prepared: ModelProto,
    /// The part of the float model after the tensors that it was cut at.
    pub tail: Option<ModelProto>,
    /// Whether tensors are written to a file of their own.
    pub has_external_data: bool,
    /// The sidecar.
    pub sidecar: Sidecar,
    /// Where it is quantized.
    pub placement: Placement,
    /// Parameters of all quantizers.
    pub plan: QuantPlan,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// One line per input with fixed dimensions in place of open ones.
    pub fixed: Vec<String>,
    /// Share of the multiply-adds that run on integers, 0 to 1; `None` if shapes are unknown or only weights are quantized.
    pub integer_share: Option<f64>,
    /// Results of tuning methods.
    pub improved: Improved,
    /// The lowest figure of the network on held-out samples; `None` where none was measured.
    lowest: Option<Lowest>,
    /// Why the table of wider types replaced the backend's own, if it did.
    pub replaced: Option<String>,
}

/// Results of the tuning methods on the first plan.
#[skip_serializing_none]
#[derive(Clone, Serialize)]
pub struct Improved {
    /// Outcomes of the methods, in the order in which they were tried.
    pub methods: Vec<MethodOutcome>,
    /// The final range observer of activations, with its options; absent where it is the table's.
    pub observer: Option<&'static str>,
    /// The channels of the outputs, as used by the overlap; empty where nothing was evaluated.
    #[serde(skip)]
    pub outputs: Vec<OutputGroups>,
    /// The network's task, where it is known.
    pub task: Option<EvaluatedTask>,
    /// The result of mixed precision, where the user asked for it.
    #[serde(rename = "mixed_precision")]
    pub mixed: Option<Mixed>,
    /// The result of tuning layers, where there was some.
    pub tuned: Option<Tuned>,
    /// The error of each tensor, where layers were tuned.
    #[serde(skip)]
    pub tensor_errors: Option<TensorErrors>,
}

/// Runs one model through all stages.
///
/// `progress` gets the number of samples and returns a function to call after each.
///
/// # Errors
/// As the stages; the message begins with the model's path.
pub fn run(path: &Path, request: &Request, progress: &Progress) -> Result<Outcome> {
    let wider = request.wider.as_deref();
    let calibration = &request.calibration;
    let (shapes, differing) = shapes_with_data(path, &request.shapes, &calibration.data, calibration.limit)?;
    let (prepared, is_transformer) =
        prepare_for(path, &request.scheme, wider.map(|other| &other.scheme), &request.outputs, &shapes)?;
    let (request, wider) = match wider.filter(|_| is_transformer) {
        Some(wider) => (wider, None),
        None => (request, wider),
    };
    if let Some(differing) = differing.filter(|_| request.scheme.static_shapes && !calibration.skip_bad_data) {
        let of_table =
            format!("backend `{}` fixes the shapes of a model, expected samples of one shape", request.scheme.name);
        let hint = "pad the samples to one length, or give the shape of those to use with --shape and --skip-bad-data";
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

/// A network that its table leaves broken, quantized by the table of wider types; the broken one where that fails or is
/// no better.
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
            let reason = format!("`{table}` breaks the network ({})", lowest.spelled());
            let warning =
                format!("{reason}: `{name}` is used instead, which has wider types; --rescue 0 keeps `{table}`");
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

/// `shapes`, and those of open inputs as the largest sample of the data has them; and how samples differ, where they do.
fn shapes_with_data(
    model: &Path,
    shapes: &Shapes,
    data: &[String],
    limit: Option<usize>,
) -> Result<(Shapes, Option<String>)> {
    let mut shapes = shapes.clone();
    let loaded = onnx::load(model)?;
    let (open, n_inputs) = open_inputs(loaded.graph()?, &shapes);
    if open.is_empty() {
        return Ok((shapes, None));
    }
    let seen = add_shapes(data, &open, n_inputs, limit, &mut shapes);
    Ok((shapes, seen.differing(&open)))
}

/// The model prepared for `scheme`, or for the table of wider types where it is a transformer; and whether it is the latter.
///
/// # Errors
/// As [`prepare_file`].
pub fn prepare_for(
    path: &Path,
    scheme: &Scheme,
    wider: Option<&Scheme>,
    outputs: &[String],
    shapes: &Shapes,
) -> Result<(PreparedGraph, bool)> {
    let prepared = prepare_file(path, scheme, outputs, shapes)?;
    match wider {
        Some(other) if is_transformer(prepared.model.graph()?, &prepared.value_info, other) => {
            Ok((prepare_file(path, other, outputs, shapes)?, true))
        }
        _ => Ok((prepared, false)),
    }
}

/// Runs the stages after preparation.
fn finish(
    path: &Path,
    request: &Request,
    prepared: PreparedGraph,
    shapes: Shapes,
    progress: &Progress,
) -> Result<Outcome> {
    let fixed = prepared.fixed_shapes();
    compare::outputs(&prepared.model, &request.axes)?;
    let about_model = record::about_model(path, &prepared)?;
    if let Some(saved) = &request.calibration.saved {
        saved.ensure_of(&about_model.sha256)?;
    }
    let PreparedGraph { model, value_info, has_external_data, tail, parsed, .. } = prepared;
    let mut placement = place(model.graph()?, &value_info, &request.scheme, &request.selection);
    if !request.calibration.has_samples() && !request.has_ranges() {
        placement.activations.clear();
    }
    let known = Known::new(&model, value_info, &placement, request, shapes)?;
    let samples = open_data(&parsed, &placement, request)?;
    let data_warnings = match &samples {
        Some(samples) => data_warnings(path, &known.shapes, samples, &request.calibration, progress),
        None => Vec::new(),
    };
    let wide = wide_tails(&model, &placement, &known, request)?;
    let known = Known { selection: known.selection.with_wide(wide.outputs.clone()), ..known };
    let edits: Vec<ModelEdit> = wide.copies.iter().cloned().map(ModelEdit::InsertCopy).collect();
    let setup = request.setup(&known, samples.as_ref(), progress);
    let plain = model;
    let model = edited(&plain, &edits)?;
    if !edits.is_empty() {
        placement = place(model.graph()?, setup.value_info, setup.scheme, setup.selection);
    }
    let proposals = propose(setup, &model, &placement);
    let mut calibration = observe(parsed, &plain, &placement, &proposals, &wide, setup, request)?;
    calibration.copy(&wide.copies);
    let unlike = match setup.has_given_ranges {
        true => BTreeSet::new(),
        false => unlike_tensors(&placement, &calibration.of(&placement), &request.scheme),
    };
    let has_unlike = !unlike.is_empty();
    let known = Known { selection: known.selection.with_unlike(unlike), ..known };
    let setup = request.setup(&known, samples.as_ref(), progress);
    if has_unlike {
        placement = place(model.graph()?, setup.value_info, setup.scheme, setup.selection);
    }
    let statistics = calibration.of(&placement);
    let (given, observers) = (request.given(), setup.range_observers());
    let (plan, warnings) = decide(model.graph()?, &placement, &statistics, given, setup.scheme, observers)?;
    let mut planned = PlannedModel { edits, warnings, ..PlannedModel::new(model, placement, plan) };
    let (improved, lowest) = improve(setup, request, &mut planned, proposals, &mut calibration)?;
    add_warnings(&mut planned, &calibration, &request.selection)?;
    planned.warnings.extend(data_warnings);
    if let Some(lack) = samples.as_ref().and_then(SampleSet::lack) {
        return Err(lack);
    }
    if !request.has_ranges() {
        // They stood for ranges that the target computes on each run.
        planned.placement.activations.clear();
        planned.plan.activations.clear();
    }
    let sidecar = record::sidecar(about_model, setup, request, &planned, &calibration, &improved)?;
    let PlannedModel { model, placement, plan, mut warnings, .. } = planned;
    let on_integers = request.has_ranges() || request.storage == WeightStorage::Dynamic;
    let integer_share = Some(model.graph()?)
        .filter(|_| on_integers)
        .and_then(|graph| placement.integer_share(graph, &known.value_info));
    let prepared = edited(&model, &plan.learned_weights(model.graph()?))?;
    let mut quantized = rewrite(model, &plan, request.storage)?;
    if plan.activations.iter().any(|planned| planned.qtype.is_wide()) {
        quantized = quantized.changed(|model| raise_opset(model, WIDE_OPSET))?;
    }
    let model = ensure_kept(quantized, &request.scheme)?;
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

/// The nodes of detector tails that get the types of the table's region, before anything runs.
fn wide_tails(model: &ModelProto, placement: &Placement, known: &Known, request: &Request) -> Result<WideNodes> {
    let region =
        request.scheme.region.as_ref().filter(|_| request.ranges.is_none() && !placement.activations.is_empty());
    let Some(region) = region else { return Ok(WideNodes::default()) };
    let wide = WideNodes::of_tails(model.graph()?, &known.value_info, placement, region, &known.copies);
    Ok(wide.unwrap_or_default())
}

/// Runs `work` on a pool with `n` threads, for all its parallel parts.
fn on_threads<T: Send>(n: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    // As large as that of a main thread, because the engine handles models on these threads.
    const STACK: usize = 8 << 20;
    // A thread whose start lacks memory aborts the process. Where there is too little for all, this ends the run.
    const START: usize = STACK + (1 << 20);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(n.max(1).saturating_mul(START))));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n.max(1)).stack_size(STACK);
    let no_threads = |error| anyhow!("--threads: {} cannot be started: {error}", count(n, "thread"));
    pool.build().map_err(|error| no_threads(error).hint("use fewer with --threads"))?.install(work)
}

/// The calibration data, where there is something to observe.
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

/// Calibrates `model` on the data or its saved statistics, where there are some. It lacks the copies of `wide`.
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

/// The tensors whose channels are observed, too: inputs of a transformer's linear layers.
fn linear_tensors(placement: &Placement) -> BTreeSet<String> {
    let linear = placement.activations.iter().filter(|quantizer| quantizer.linear);
    linear.map(|quantizer| quantizer.tensor.clone()).collect()
}

/// Runs all methods on the first plan: on the float model, on the whole plan, then on single layers, with mixed
/// precision where the user asks for it. Returns the lowest final figure beside the results.
fn improve(
    setup: Setup,
    request: &Request,
    planned: &mut PlannedModel,
    proposals: Proposals,
    calibration: &mut CalibrationStatistics,
) -> Result<(Improved, Option<Lowest>)> {
    let plain = planned.clone();
    let (mut methods, mut known) = proposals.evaluate(setup, planned, calibration);
    let Chosen { outcomes, observer, .. } = choose(setup, planned, calibration, &mut known);
    methods.extend(outcomes);
    let chosen = observer.map(by_spelling).transpose()?;
    let observers = setup.range_observers();
    let activation = chosen.as_ref().unwrap_or(observers.activation);
    let observers = Observers { activation, ..observers };
    let (mixed, tuned) = match &request.mixed {
        None => {
            let rescued = rescue(setup, observers, planned, calibration, known.as_ref());
            if rescued.as_ref().is_some_and(|rescued| rescued.accepted) {
                // The float network is as before.
                known.iter_mut().for_each(|known| known.reference.measured = None);
            }
            methods.extend(rescued);
            (None, tune_planned(setup, planned, known.as_ref())?)
        }
        Some(wanted) => {
            let task = Task { wanted, setup, observers, given: request.given(), known: known.as_ref() };
            let (mixed, tuned) = choose_precisions(task, planned, calibration)?;
            (Some(mixed), tuned)
        }
    };
    methods.extend(tuned.iter().flat_map(|tuned| tuned.methods.clone()));
    let outputs = tuned.as_ref().map(|tuned| tuned.measured.prepared().groups().to_vec()).unwrap_or_default();
    let head = tuned.as_ref().and_then(|tuned| tuned.measured.prepared().head());
    let task = head.map(EvaluatedTask::new);
    let mut improved = Improved { methods, observer, outputs, task, mixed, tuned, tensor_errors: None };
    let held_out = improved.tuned.as_ref().map(Tuned::held_out);
    let whole = match improved.mixed {
        None => ensure_gain(setup, plain, planned, improved.tuned.as_ref(), &improved.methods)?,
        Some(_) => Whole::default(),
    };
    if let Some(undone) = whole.undone {
        improved.methods.iter_mut().filter(|outcome| outcome.accepted).for_each(|outcome| {
            (outcome.accepted, outcome.reason) = (false, Some("undone together with all other changes".to_string()));
        });
        (improved.observer, improved.tuned) = (None, None);
        improved.methods.push(undone);
    }
    improved.tensor_errors = TensorErrors::measure(setup, planned, held_out)?;
    Ok((improved, whole.lowest))
}

/// Adds warnings that no stage has given.
fn add_warnings(planned: &mut PlannedModel, calibration: &CalibrationStatistics, selection: &Selection) -> Result<()> {
    let PlannedModel { model, placement, plan, warnings, .. } = planned;
    let skipped = calibration.skipped.iter().map(|reason| format!("skipped sample: {reason}"));
    warnings.splice(0..0, skipped);
    warnings.extend(warning_of_unlike(model.graph()?, placement, plan));
    for pattern in selection.unmatched(model.graph()?) {
        warnings.push(format!("`{pattern}` matches no node name and no operator type of the model"));
    }
    if plan.activations.is_empty() && plan.weights.is_empty() {
        warnings.push("no node was quantized: the written model is the float model; -v prints the reasons".to_string());
    }
    Ok(())
}
