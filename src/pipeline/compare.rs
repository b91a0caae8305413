//! Compares two models on the same data.

use super::sample_sums::{MAX_FIRST, SampleOutputs, Sums, add};
use super::tensors::{ComparedTensors, chosen, compare_tensors, parsed};
use super::{on_threads, shapes_with_data};
use crate::calibrate::each_sample;
use crate::check::{is_quantized, non_finite_constants};
use crate::data::{Array, BoxLabels, Dataset, Labels, Preprocessing, Sample, ensure_supported, same_preprocessing};
use crate::diag::{WithHint, count};
use crate::engine::{ShapedEngines, ShapedSession};
use crate::export::scaled_float_model;
use crate::heads::{HeadRequest, TaskHead, TaskName};
use crate::matching::{AsQdq, as_qdq};
use crate::metrics::{ChannelAxes, EvaluatedOutput, Measurement, MetricBound, MissedGate, NonFiniteCounts};
use crate::onnx;
use crate::onnx::inputs::{InputSpec, Shapes, close_given, inputs_of};
use crate::onnx::proto::{GraphProto, ModelProto, ValueInfoProto};
use crate::prepare::default_opset;
use crate::progress::Progress;
use crate::sidecar::Sidecar;
use crate::tune::warning_of_no_box;
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

/// Samples, and the options of their use.
pub struct SampleData<'a> {
    /// Files and folders, as `--data` gives them.
    pub sources: &'a [String],
    /// Preprocessing of images.
    pub preprocessing: Preprocessing,
    /// Maximum samples.
    pub limit: Option<usize>,
    /// Shapes for inputs with open dimensions.
    pub shapes: Shapes,
    /// Classes of the samples, by file.
    pub labels: Option<Labels>,
    /// Boxes of the images, by file.
    pub boxes: Option<BoxLabels>,
    /// The network's task and head, as far as the user gives them.
    pub head: HeadRequest,
    /// Samples that run at the same time.
    pub threads: usize,
}

impl SampleData<'_> {
    /// Returns the given shapes and, for other open inputs of a model, those of the largest sample.
    pub(super) fn shapes_for(&self, model: &Path) -> Result<Shapes> {
        Ok(shapes_with_data(model, &self.shapes, self.sources, self.limit, &self.preprocessing)?.0)
    }

    /// Opens the samples for the inputs of a model.
    pub(super) fn open(&self, inputs: &[InputSpec]) -> Result<Dataset> {
        let mut inputs = inputs.to_vec();
        close_given(&mut inputs, &self.shapes);
        Dataset::open(self.sources, &inputs, &self.preprocessing, self.limit)
    }
}

/// The models and options of a comparison.
pub struct CompareRequest<'a> {
    /// The float model and the quantized one.
    pub models: [&'a Path; 2],
    /// Evaluation data.
    pub data: SampleData<'a>,
    /// Channel axes that the user gives, by output.
    pub axes: ChannelAxes,
    /// Whether tensors inside the models are compared too.
    pub tensors: bool,
}

/// Figures of a quantized model against its float model.
pub struct Comparison {
    /// All metrics, over all samples.
    pub measured: Measurement,
    /// NaN and infinite values of each output.
    pub non_finite: Vec<NonFiniteCounts>,
    /// Number of samples.
    pub n_samples: usize,
    /// The head for metrics of tasks; absent where it is not known.
    pub head: Option<TaskHead>,
    /// The preprocessing of images, in words; absent for arrays.
    pub preprocessing: Option<String>,
    /// Figures of the tensors inside the models, where the request asks for them.
    pub tensors: Option<ComparedTensors>,
    /// Whether weights, biases and other constants of both models are finite.
    pub has_finite_constants: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl Comparison {
    /// Returns the missed gates. An output with NaN or infinite values misses all gates, and so do models with such
    /// constants.
    pub fn missed(&self, gates: &[MetricBound]) -> Vec<MissedGate> {
        let has_figures = self.n_samples > 0 && self.has_finite_constants;
        let is_known = |output_idx: usize| has_figures && !self.non_finite[output_idx].any();
        gates.iter().flat_map(|gate| gate.missed(&self.measured, is_known)).collect()
    }
}

/// Runs both models and compares their outputs: by name where the models have the same names, else by position. Inputs
/// are paired in the same way.
///
/// # Errors
/// If a model or a sample cannot be run, the models have different inputs or outputs, the first one is quantized, a
/// sample has no label or no output for it, or no head fits the outputs.
pub fn compare(request: &CompareRequest, progress: &Progress) -> Result<Comparison> {
    let CompareRequest { models, data, axes, tensors } = request;
    let with_data = data.shapes_for(models[0])?;
    let [float, mut quantized] = [onnx::load_valid(models[0])?, onnx::load_valid(models[1])?];
    if is_quantized(&float) && !is_quantized(&quantized) {
        return Err(anyhow!(
            "`{}` is quantized and `{}` is not, expected the float model first",
            models[0].display(),
            models[1].display()
        )
        .hint("give the models in the other order"));
    }
    let not_quantized = warning_of_no_quantizer(models[1], &quantized);
    put_in_order_of(float.graph()?, quantized.graph_mut()?);
    let are_scores = (data.head.given_task() == Some(TaskName::Classify)).then_some(true);
    let outputs = outputs(&float, axes, are_scores)?;
    let n_quantized = quantized.graph()?.output.len();
    ensure!(outputs.len() == n_quantized, other_outputs(models[1], n_quantized, outputs.len()));
    let AsQdq { model: quantized, integers } = as_qdq(quantized);
    let mut warnings: Vec<String> = models.iter().zip([&float, &quantized]).flat_map(non_finite).collect();
    let has_finite_constants = warnings.is_empty();
    warnings.extend(not_quantized);
    warnings.extend(other_names(&float, &quantized));
    let opset = default_opset(&quantized).unwrap_or_default();
    let inside = tensors.then(|| [with_channel_scales(*models).unwrap_or_else(|| float.clone()), quantized.clone()]);
    let built =
        [(models[0], float), (models[1], quantized)].map(|(path, model)| engines(path, &model, opset, &with_data));
    let [float, quantized] = built;
    let engines = [float?, quantized?];
    ensure_same_inputs(*models, [engines[0].inputs(), engines[1].inputs()])?;
    let dataset = data.open(engines[0].inputs())?;
    warnings.extend(other_preprocessing(models[1], &dataset));
    let comparison = over_samples(data, &outputs, &engines, &dataset, (&|_| Ok(()), "comparison", progress))?;
    warnings.extend(comparison.warnings.iter().cloned());
    drop(engines);
    let tensors = inside.map(|models| {
        let tick = progress("tensors", chosen(&dataset).len());
        let compare = || compare_tensors(request.models, &models, (opset, &with_data), &dataset, &tick);
        on_threads(data.threads, compare)
    });
    let mut tensors = tensors.transpose()?;
    for tensor in tensors.iter_mut().flat_map(|tensors| &mut tensors.tensors) {
        // The file knows the tensor by another name.
        if let Some(integers) = integers.get(&tensor.about.read) {
            tensor.about.read.clone_from(integers);
        }
    }
    Ok(Comparison { tensors, has_finite_constants, warnings, ..comparison })
}

/// Returns the float model with the channel scales of the quantized one, whose sidecar lies beside it; `None` without
/// edits, or if they do not belong to these models.
fn with_channel_scales([float, quantized]: [&Path; 2]) -> Option<ModelProto> {
    let sidecar = Sidecar::beside(quantized).filter(|sidecar| sidecar.is_sidecar_of(quantized))?;
    (!sidecar.edits.is_empty()).then(|| scaled_float_model(&sidecar, float).ok()).flatten()
}

/// Returns a warning if the second model of a comparison is not quantized.
fn warning_of_no_quantizer(path: &Path, model: &ModelProto) -> Option<String> {
    let path = path.display();
    let warning =
        || format!("`{path}` is not quantized: it has no QuantizeLinear, DequantizeLinear or integer operator");
    (!is_quantized(model)).then(warning)
}

/// Returns the error that the quantized model has `n_found` outputs instead of `n_expected`.
fn other_outputs(quantized: &Path, n_found: usize, n_expected: usize) -> Error {
    let found = count(n_found, "output");
    let error = anyhow!("`{}` has {found}, expected {n_expected} as in the float model", quantized.display());
    let tail = quantized.with_extension("tail.onnx");
    match tail.is_file() {
        true => error.hint(format!(
            "`{}` computes the outputs of the float model: join both models (`join.py` of docs/troubleshooting.md)",
            tail.display()
        )),
        false => error,
    }
}

/// Refuses models whose inputs do not take the same samples.
fn ensure_same_inputs(models: [&Path; 2], [float, quantized]: [&[InputSpec]; 2]) -> Result<()> {
    let fits = |(float, quantized): (&InputSpec, &InputSpec)| quantized.accepts(&float.shape);
    let same = float.len() == quantized.len() && float.iter().zip(quantized).all(fits);
    let list = |inputs: &[InputSpec]| {
        let inputs: Vec<String> = inputs.iter().map(|input| format!("`{}` {}", input.name, input.expected())).collect();
        inputs.join(", ")
    };
    let [of_float, of_quantized] = models.map(Path::display);
    ensure!(
        same,
        anyhow!(
            "the models have different inputs: `{of_quantized}` has {}, expected {} as in `{of_float}`",
            list(quantized),
            list(float)
        )
        .hint("compare a quantized model with the float model that it was made from")
    );
    Ok(())
}

/// Builds the engines of a model.
pub(super) fn engines(path: &Path, model: &ModelProto, opset: i64, shapes: &Shapes) -> Result<ShapedEngines> {
    let engines = parsed(model, opset, shapes).and_then(|parsed| ShapedEngines::new(parsed, &[]));
    let engines = engines.and_then(|engines| engines.inputs().iter().try_for_each(ensure_supported).map(|()| engines));
    engines.with_context(|| format!("`{}`", path.display()))
}

/// A function that is called with the outputs of each sample, from any thread.
pub(super) type OutputsVisitor<'v> = &'v (dyn Fn(&SampleOutputs) -> Result<()> + Sync);

/// Runs the models on all samples: the float one and the quantized one, or one model that is compared with itself.
pub(super) fn over_samples(
    data: &SampleData,
    outputs: &[EvaluatedOutput],
    engines: &[ShapedEngines],
    dataset: &Dataset,
    (visit, stage, progress): (OutputsVisitor, &str, &Progress),
) -> Result<Comparison> {
    // Metrics are prepared on the first samples of the data, whatever their shapes.
    let by_shape = dataset.by_shape(MAX_FIRST);
    let positions = by_shape.as_ref().map(|order| places(order));
    let n_labels = data.labels.as_ref().and_then(Labels::n_classes);
    let labels = data.labels.as_ref().map(|labels| labels.of_dataset(dataset)).transpose()?;
    let truths = data.boxes.as_ref().map(|boxes| boxes.of_dataset(dataset)).transpose()?;
    let tick = progress(stage, dataset.len());
    let of_boxes = data.boxes.as_ref().map(|_| TaskName::Detect);
    let asked = HeadRequest { task: data.head.task.or(of_boxes), head: data.head.head.clone() };
    let sums = Mutex::new(Sums::new(asked, outputs, dataset));
    let start = || Ok(((), engines.iter().map(ShapedEngines::session).collect::<Result<Vec<ShapedSession>>>()?));
    let job = |_: &mut (), sessions: &mut Vec<ShapedSession>, sample_idx: usize, loaded: Result<Sample>| {
        let (sample, name) = (loaded?, dataset.name(sample_idx));
        let run = |session: &mut ShapedSession| {
            session.run(&sample, &mut |_, _, _| Ok(())).with_context(|| format!("`{name}`"))
        };
        let ran_models: Vec<Vec<Array>> = sessions.iter_mut().map(run).collect::<Result<_>>()?;
        let mut ran_models = ran_models.into_iter();
        let first = ran_models.next().context("internal error: no model")?;
        let second = ran_models.next().unwrap_or_else(|| first.clone());
        let sample_outputs = SampleOutputs {
            outputs: [first, second],
            n_classes: n_labels,
            labels: labels.as_ref().map(|labels| &labels[sample_idx][..]),
            truths: truths.as_ref().map(|truths| &truths[sample_idx][..]),
        };
        sample_outputs.check(outputs, dataset.batch()).with_context(|| format!("`{name}`"))?;
        visit(&sample_outputs)?;
        let position = positions.as_ref().map_or(sample_idx, |positions| positions[sample_idx]);
        add(&sums, [sample_idx, position], &name, sample_outputs)
    };
    on_threads(data.threads, || each_sample(dataset, by_shape.as_deref(), &*tick, start, job))?;
    let sums = sums.into_inner().map_err(|error| anyhow!("{error}"))?;
    let shifted = sums.shifted_labels();
    let (measured, non_finite, head) = sums.finish()?;
    let no_box = warning_of_no_box(&measured, &count(dataset.len(), "sample"));
    Ok(Comparison {
        measured,
        non_finite,
        n_samples: dataset.len(),
        head,
        preprocessing: dataset.describe(),
        tensors: None,
        has_finite_constants: true,
        warnings: no_box.into_iter().chain(shifted).collect(),
    })
}

/// Returns the place of each sample in an order.
fn places(order: &[usize]) -> Vec<usize> {
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &sample_idx)| places[sample_idx] = place);
    places
}

/// Warnings about constants that are NaN or infinite. The engine's Relu takes NaN for 0, so outputs may not show them.
pub(super) fn non_finite((path, model): (&&Path, &ModelProto)) -> Vec<String> {
    let found = non_finite_constants(model).into_iter();
    found.map(|finding| format!("`{}`: {finding}, so a runtime gives NaN outputs", path.display())).collect()
}

/// Puts the inputs and outputs of `quantized` in the order of `float`, where the names are the same.
fn put_in_order_of(float: &GraphProto, quantized: &mut GraphProto) {
    put_in_order(&inputs_of(float).collect::<Vec<_>>(), &mut quantized.input);
    put_in_order(&float.output.iter().collect::<Vec<_>>(), &mut quantized.output);
}

/// Sorts `values` in the order of `expected`, by name, with other values behind. Changes nothing where a name is
/// missing.
fn put_in_order(expected: &[&ValueInfoProto], values: &mut [ValueInfoProto]) {
    let place = |name: &str| expected.iter().position(|value| value.name() == name);
    let n_found = values.iter().filter(|value| place(value.name()).is_some()).count();
    if n_found == expected.len() {
        values.sort_by_key(|value| place(value.name()).unwrap_or(usize::MAX));
    }
}

/// Returns a warning if compared outputs have different names, or if the second model ends at a tensor inside the
/// first.
fn other_names(float: &ModelProto, quantized: &ModelProto) -> Option<String> {
    let made: BTreeSet<&str> =
        float.graph.iter().flat_map(|graph| &graph.node).flat_map(|node| &node.output).map(String::as_str).collect();
    let outputs = [float, quantized].map(|model| model.graph.iter().flat_map(|graph| &graph.output));
    let [float, quantized] = outputs.map(|outputs| outputs.map(|output| output.name()).collect::<Vec<_>>());
    let others = || float.iter().zip(&quantized).filter(|(a, b)| a != b);
    let turned = others().find(|(a, _)| quantized.contains(a));
    let cut = others().find(|(_, b)| made.contains(*b) && !float.contains(b));
    if let (None, Some((a, b))) = (turned, cut) {
        return Some(format!(
            "output `{a}` is compared with `{b}`, a tensor inside the float model: the second model is cut there"
        ));
    }
    let (a, b) = turned.or_else(|| others().next())?;
    Some(format!("outputs are compared by position, because names differ: `{a}` is compared with `{b}`"))
}

/// Returns a warning if images are preprocessed differently than for the calibration of `quantized`, by the sidecar
/// beside it.
pub(super) fn other_preprocessing(quantized: &Path, dataset: &Dataset) -> Option<String> {
    let here = dataset.describe()?;
    let path = quantized.with_extension("json");
    let there = Sidecar::beside(quantized)?.calibration.preprocessing?;
    (!same_preprocessing(&here, &there)).then(|| {
        format!("the preprocessing differs from that of calibration: {here}; in `{}`: {there}", path.display())
    })
}

/// Returns the outputs of a graph, with the channel axes that the user gives. `are_scores` says whether outputs are
/// class scores, if the user says so. Fails if an axis is given for something that is not an output, or the output does
/// not have that axis.
pub(super) fn outputs(
    model: &ModelProto,
    axes: &ChannelAxes,
    are_scores: Option<bool>,
) -> Result<Vec<EvaluatedOutput>> {
    let graph = model.graph()?;
    for (name, &axis) in axes {
        let Some(output) = graph.output.iter().find(|output| output.name() == name) else {
            let names: Vec<&str> = graph.output.iter().map(|output| output.name()).collect();
            bail!("--channel-axis names `{name}`, expected one of the outputs: {}", names.join(", "));
        };
        let shape = output.tensor_type().and_then(|tensor| tensor.shape.as_ref());
        if let Some(rank) = shape.map(|shape| shape.dim.len()).filter(|rank| axis >= *rank) {
            bail!("--channel-axis {name}={axis}: output `{name}` has {rank} axes, expected an axis below {rank}");
        }
    }
    Ok(EvaluatedOutput::of_scores(graph, axes, are_scores))
}
