//! Compares two models on the same data.

use super::on_threads;
use crate::calibrate::each_sample;
use crate::check::is_quantized;
use crate::data::{Array, BoxLabels, Dataset, ImageTruth, Labels, Preprocessing, Sample, Values};
use crate::diag::WithHint;
use crate::engine::{Engine, Parsed, Session};
use crate::heads::{HeadRequest, OutputView, TaskHead, TaskName};
use crate::metrics::{
    ChannelAxes, EvaluatedOutput, FloatOutput, InOrder, METRICS, Measurement, MetricBound, MissedGate, NonFiniteCounts,
    OutputPair, PreparedMetrics, SamplePair, n_classes,
};
use crate::onnx;
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::progress::Progress;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Maximum samples for preparing metrics.
const MAX_FIRST: usize = 64;
/// Minimum samples for preparing metrics, however large the outputs, where there are so many.
const MIN_FIRST: usize = 4;
/// Approximate limit on the bytes of their outputs.
const MAX_BYTES: usize = 1 << 28;

/// The models and options of a comparison.
pub struct CompareRequest<'a> {
    /// The float model and the quantized one.
    pub models: [&'a Path; 2],
    /// Evaluation data, as `--data` gives it.
    pub data: &'a [String],
    /// Preprocessing of images.
    pub preprocessing: Preprocessing,
    /// Maximum samples.
    pub limit: Option<usize>,
    /// Shapes for inputs with open dimensions.
    pub shapes: Shapes,
    /// Channel axes that the user gives, by output.
    pub axes: ChannelAxes,
    /// Classes of the samples, by file.
    pub labels: Option<Labels>,
    /// Boxes of the images, by file.
    pub boxes: Option<BoxLabels>,
    /// The network's task and head, as far as the user gives them.
    pub head: HeadRequest,
    /// Samples that run at the same time.
    pub threads: usize,
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
}

impl Comparison {
    /// The missed gates. An output with NaN or infinite values misses all of them.
    pub fn missed(&self, gates: &[MetricBound]) -> Vec<MissedGate> {
        let is_known = |output_idx: usize| self.n_samples > 0 && !self.non_finite[output_idx].any();
        gates.iter().flat_map(|gate| gate.missed(&self.measured, is_known)).collect()
    }
}

/// Runs both models and compares their outputs by position.
///
/// # Errors
/// If a model or a sample cannot be run, the models have different outputs, the first one is quantized, a sample has no
/// label or no output for it, or no head fits the outputs.
pub fn compare(request: &CompareRequest, progress: &Progress) -> Result<Comparison> {
    let CompareRequest { models, data, preprocessing, limit, shapes, axes, labels, threads, .. } = request;
    let shapes = &super::shapes_with_data(models[0], shapes, data)?;
    let [float, quantized] = [onnx::load_whole(models[0])?.model, onnx::load_whole(models[1])?.model];
    if is_quantized(&float) && !is_quantized(&quantized) {
        return Err(anyhow!(
            "`{}` is quantized and `{}` is not, expected the float model first",
            models[0].display(),
            models[1].display()
        )
        .hint("give the models in the other order"));
    }
    let outputs = outputs(&float, axes)?;
    let n_quantized = self::outputs(&quantized, &ChannelAxes::new())?.len();
    ensure!(
        outputs.len() == n_quantized,
        "`{}` has {n_quantized} outputs, expected {} as the float model",
        models[1].display(),
        outputs.len()
    );
    let build = |path: &Path, model: ModelProto| {
        let engine = Parsed::new(&model, shapes).and_then(|parsed| parsed.build(&[]));
        engine.with_context(|| format!("`{}`", path.display()))
    };
    let (float, quantized): (Engine, Engine) = (build(models[0], float)?, build(models[1], quantized)?);
    let dataset = Dataset::open(data, float.inputs(), preprocessing, *limit)?;
    let labels = labels.as_ref().map(|labels| labels.of_dataset(&dataset)).transpose()?;
    let truths = request.boxes.as_ref().map(|boxes| boxes.of_dataset(&dataset)).transpose()?;
    let tick = progress("comparison", dataset.len());
    let sums = Mutex::new(Sums::new(request, &outputs, &dataset));
    let start = || Ok(((), [float.session()?, quantized.session()?]));
    let job = |_: &mut (), [float, quantized]: &mut [Session; 2], sample_idx: usize, loaded: Result<Sample>| {
        let (sample, name) = (loaded?, dataset.name(sample_idx));
        let run =
            |session: &mut Session| session.run(&sample, &mut |_, _, _| Ok(())).with_context(|| format!("`{name}`"));
        let ran = Ran {
            outputs: [run(float)?, run(quantized)?],
            labels: labels.as_ref().map(|labels| &labels[sample_idx][..]),
            truths: truths.as_ref().map(|truths| &truths[sample_idx][..]),
        };
        ran.check(&outputs, dataset.batch()).with_context(|| format!("`{name}`"))?;
        add(&sums, sample_idx, &name, ran)
    };
    on_threads(*threads, || each_sample(&dataset, &*tick, start, job))?;
    sums.into_inner().map_err(|error| anyhow!("{error}"))?.finish()
}

/// The outputs of a graph, with the axes that the user gives.
///
/// # Errors
/// If an axis is given for something that is not an output, or the output does not have that axis.
pub(super) fn outputs(model: &ModelProto, axes: &ChannelAxes) -> Result<Vec<EvaluatedOutput>> {
    let graph = model.graph.as_ref().context("model has no graph")?;
    for (name, &axis) in axes {
        let Some(output) = graph.output.iter().find(|output| output.name() == name) else {
            let names: Vec<&str> = graph.output.iter().map(|output| output.name()).collect();
            bail!("--channel-axis names `{name}`, expected one of the outputs: {}", names.join(", "));
        };
        let shape = output.tensor_type().and_then(|tensor| tensor.shape.as_ref());
        if let Some(rank) = shape.map(|shape| shape.dim.len()).filter(|rank| axis >= *rank) {
            bail!("--channel-axis {name}={axis}: output `{name}` has {rank} axes, expected one below {rank}");
        }
    }
    Ok(EvaluatedOutput::of(graph, axes))
}

/// A sample that both models have run on.
struct Ran<'a> {
    /// Outputs of the float and of the quantized model.
    outputs: [Vec<Array>; 2],
    /// The class of each entry of the batch.
    labels: Option<&'a [usize]>,
    /// The boxes of each image of the batch.
    truths: Option<&'a [ImageTruth]>,
}

fn f32s(array: &Array) -> &[f32] {
    match &array.values {
        Values::F32(values) => values,
        _ => &[],
    }
}

impl Ran<'_> {
    fn check(&self, outputs: &[EvaluatedOutput], batch: usize) -> Result<()> {
        let [float, quantized] = &self.outputs;
        for (output, (a, b)) in outputs.iter().zip(float.iter().zip(quantized)) {
            let (Values::F32(x), Values::F32(y)) = (&a.values, &b.values) else {
                bail!("internal error: output `{}` is not float32", output.name)
            };
            ensure!(
                x.len() == y.len(),
                "output `{}` has shape {:?}, expected {:?} as in the float model",
                output.name,
                b.shape,
                a.shape
            );
        }
        let has_scores = |labels: &[usize]| {
            let is_scores = |(output, array): (&EvaluatedOutput, &Array)| {
                output.is_float && n_classes(&array.shape, batch).is_some() && array.shape[0] == labels.len()
            };
            outputs.iter().zip(float).any(is_scores)
        };
        ensure!(
            self.labels.is_none_or(has_scores),
            "no output is class scores, expected one of shape [{batch}, classes] for --labels; found {}",
            float.iter().map(|array| format!("{:?}", array.shape)).collect::<Vec<_>>().join(", ")
        );
        Ok(())
    }

    fn pairs(&self) -> Vec<Option<OutputPair<'_>>> {
        let [float, quantized] = &self.outputs;
        let mut pairs = Vec::with_capacity(float.len());
        for (a, b) in float.iter().zip(quantized) {
            pairs.push(Some(OutputPair { shape: &a.shape, float: f32s(a), quantized: f32s(b) }));
        }
        pairs
    }

    /// The float model's outputs for the first image.
    fn views<'v>(&'v self, outputs: &'v [EvaluatedOutput], batch: usize) -> Vec<OutputView<'v>> {
        let view = |(about, array): (&'v EvaluatedOutput, &'v Array)| {
            OutputView::of_image(&about.name, &array.shape, f32s(array), (batch, 0))
        };
        outputs.iter().zip(&self.outputs[0]).map(view).collect()
    }

    fn n_bytes(&self) -> usize {
        self.outputs.iter().flatten().map(|array| 4 * f32s(array).len()).sum()
    }
}

/// Sums of all metrics, in the order of the samples. The first samples wait until the metrics are prepared on them.
struct Sums<'a> {
    request: &'a CompareRequest<'a>,
    outputs: &'a [EvaluatedOutput],
    batch: usize,
    input: Option<[usize; 2]>,
    head: Option<TaskHead>,
    n_samples: usize,
    /// Number of samples for preparing metrics; not known before the first.
    n_first: Option<usize>,
    waiting: BTreeMap<usize, Ran<'a>>,
    in_order: Option<InOrder>,
    non_finite: Vec<NonFiniteCounts>,
}

impl<'a> Sums<'a> {
    fn new(request: &'a CompareRequest<'a>, outputs: &'a [EvaluatedOutput], dataset: &Dataset) -> Sums<'a> {
        Sums {
            request,
            outputs,
            batch: dataset.batch(),
            input: dataset.image_size(),
            head: None,
            n_samples: dataset.len(),
            n_first: None,
            waiting: BTreeMap::new(),
            in_order: None,
            non_finite: vec![NonFiniteCounts::default(); outputs.len()],
        }
    }

    fn prepared(&self) -> Option<Arc<PreparedMetrics>> {
        self.in_order.as_ref().map(|in_order| in_order.prepared().clone())
    }

    /// Stores a sample until all samples for preparing metrics are there.
    fn wait(&mut self, sample_idx: usize, ran: Ran<'a>) -> Result<()> {
        let fit = (MAX_BYTES / ran.n_bytes().max(1)).clamp(MIN_FIRST, MAX_FIRST);
        let n_first = *self.n_first.get_or_insert(fit.min(self.n_samples));
        self.waiting.insert(sample_idx, ran);
        if (0..n_first).all(|i| self.waiting.contains_key(&i)) {
            self.prepare(n_first)?;
        }
        Ok(())
    }

    /// Prepares the metrics on the first samples, and adds the waiting samples.
    fn prepare(&mut self, n_first: usize) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let first: Vec<&Ran> = waiting.range(..n_first).map(|(_, ran)| ran).collect();
        let float = self.outputs.iter().enumerate().map(|(i, about)| FloatOutput {
            about,
            batch: self.batch,
            shape: first.first().map_or(&[], |ran| &ran.outputs[0][i].shape),
            samples: first.iter().map(|ran| f32s(&ran.outputs[0][i])).collect(),
        });
        let float: Vec<FloatOutput> = float.collect();
        let images: Vec<_> = first.iter().take(MIN_FIRST).map(|ran| ran.views(self.outputs, self.batch)).collect();
        let of_boxes = self.request.boxes.as_ref().map(|_| TaskName::Detect);
        let asked = HeadRequest { task: self.request.head.task.or(of_boxes), head: self.request.head.head.clone() };
        let head = asked.resolve(&images, self.input)?;
        let prepared = Arc::new(PreparedMetrics::new(METRICS, &float, head.as_ref()));
        let in_order = self.in_order.insert(InOrder::new(prepared.clone()));
        for (sample_idx, ran) in &waiting {
            in_order.add(
                *sample_idx,
                prepared.sums(&SamplePair { outputs: &ran.pairs(), labels: ran.labels, truths: ran.truths }),
            );
        }
        self.head = head;
        Ok(())
    }

    fn finish(mut self) -> Result<Comparison> {
        if self.in_order.is_none() {
            self.prepare(self.n_samples)?;
        }
        let in_order = self.in_order.context("internal error: nothing was measured")?;
        Ok(Comparison {
            measured: in_order.into_total(),
            non_finite: self.non_finite,
            n_samples: self.n_samples,
            head: self.head,
        })
    }
}

/// Adds a sample; its sums are computed without holding the lock.
fn add<'a>(sums: &Mutex<Sums<'a>>, sample_idx: usize, name: &str, ran: Ran<'a>) -> Result<()> {
    let locked = || sums.lock().map_err(|error| anyhow!("{error}"));
    let counts = |pair: &Option<OutputPair>| {
        pair.map(|pair| NonFiniteCounts::of((sample_idx, name), pair.float, pair.quantized)).unwrap_or_default()
    };
    let counts: Vec<NonFiniteCounts> = ran.pairs().iter().map(counts).collect();
    let mut locked_sums = locked()?;
    locked_sums.non_finite.iter_mut().zip(counts).for_each(|(all, one)| all.merge(one));
    let Some(prepared) = locked_sums.prepared() else {
        return locked_sums.wait(sample_idx, ran);
    };
    drop(locked_sums);
    let one = prepared.sums(&SamplePair { outputs: &ran.pairs(), labels: ran.labels, truths: ran.truths });
    if let Some(in_order) = &mut locked()?.in_order {
        in_order.add(sample_idx, one);
    }
    Ok(())
}
