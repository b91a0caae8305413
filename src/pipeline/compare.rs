//! Two models over the same data.

use super::on_threads;
use crate::calibrate::each_sample;
use crate::check::is_quantized;
use crate::data::{Array, Dataset, Labels, Preprocessing, Sample, Values};
use crate::diag::WithHint;
use crate::engine::{Engine, Parsed, Session};
use crate::metrics::{InOrder, OutputComparison, OutputFigures, n_classes};
use crate::onnx;
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::{ModelProto, ValueInfoProto};
use crate::progress::Progress;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::path::Path;
use std::sync::Mutex;

/// What is compared, and by what.
pub struct CompareRequest<'a> {
    /// The float model and the quantized one.
    pub models: [&'a Path; 2],
    /// Evaluation data, as `--data` gives it.
    pub data: &'a [String],
    /// How images become inputs.
    pub preprocessing: Preprocessing,
    /// At most so many samples.
    pub limit: Option<usize>,
    /// Shapes of inputs that the models leave open.
    pub shapes: Shapes,
    /// The class of each sample, by file.
    pub labels: Option<Labels>,
    /// Samples run at the same time.
    pub threads: usize,
}

/// Runs both models and compares their outputs by position.
///
/// # Errors
/// If a model or a sample cannot be run, the models have different outputs or the first is the quantized one, or a sample
/// has no label or no output that could have it.
pub fn compare(request: &CompareRequest, progress: &Progress) -> Result<Vec<OutputFigures>> {
    let CompareRequest { models, data, preprocessing, limit, shapes, labels, threads } = request;
    let [float, quantized] = [onnx::load_whole(models[0])?.model, onnx::load_whole(models[1])?.model];
    if is_quantized(&float) && !is_quantized(&quantized) {
        return Err(anyhow!(
            "`{}` is quantized and `{}` is not, expected the float model first",
            models[0].display(),
            models[1].display()
        )
        .hint("give the models in the other order"));
    }
    let outputs = outputs(&float)?;
    let n_quantized = self::outputs(&quantized)?.len();
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
    let tick = progress(dataset.len());
    let sums = Mutex::new(InOrder::new(outputs.len()));
    let start = || Ok(((), [float.session()?, quantized.session()?]));
    let job = |_: &mut (), [float, quantized]: &mut [Session; 2], sample_idx: usize, loaded: Result<Sample>| {
        let (sample, name) = (loaded?, dataset.name(sample_idx));
        let run =
            |session: &mut Session| session.run(&sample, &mut |_, _, _| Ok(())).with_context(|| format!("`{name}`"));
        let sample = Ran {
            name: &name,
            batch: dataset.batch(),
            float: run(float)?,
            quantized: run(quantized)?,
            labels: labels.as_ref().map(|labels| &labels[sample_idx][..]),
        };
        let compared = sample.compare(&outputs).with_context(|| format!("`{name}`"))?;
        sums.lock().map_err(|error| anyhow!("{error}"))?.add(sample_idx, compared);
        Ok(())
    };
    on_threads(*threads, || each_sample(&dataset, &*tick, start, job))?;
    let sums = sums.into_inner().map_err(|error| anyhow!("{error}"))?;
    let figures = |(total, output): (&OutputComparison, &ComparedOutput)| total.figures(&output.name);
    Ok(sums.into_totals().iter().zip(&outputs).map(figures).collect())
}

/// An output of a model.
struct ComparedOutput {
    name: String,
    /// Whether its values are floats, as class scores are.
    is_float: bool,
}

fn outputs(model: &ModelProto) -> Result<Vec<ComparedOutput>> {
    const FLOATS: [i32; 5] = [0, 1, 10, 11, 16];
    let of = |value: &ValueInfoProto| {
        let is_float = value.tensor_type().is_none_or(|tensor| FLOATS.contains(&tensor.elem_type()));
        ComparedOutput { name: value.name().to_string(), is_float }
    };
    let graph = model.graph.as_ref().context("model has no graph")?;
    Ok(graph.output.iter().map(of).collect())
}

/// One sample that both models were run on.
struct Ran<'a> {
    name: &'a str,
    /// Its parts.
    batch: usize,
    /// The outputs of the float model.
    float: Vec<Array>,
    /// Those of the quantized one.
    quantized: Vec<Array>,
    /// One for each part.
    labels: Option<&'a [usize]>,
}

impl Ran<'_> {
    fn compare(&self, outputs: &[ComparedOutput]) -> Result<Vec<OutputComparison>> {
        let Ran { name, batch, float, quantized, labels } = self;
        let mut has_scores = false;
        let mut compared = Vec::new();
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
            let mut comparison = OutputComparison::default();
            comparison.add(name, x, y);
            if let Some(n) = n_classes(&a.shape, *batch).filter(|_| output.is_float) {
                // Scores for the batch as a whole are none for its parts.
                let labels = labels.filter(|labels| labels.len() == a.shape[0]);
                has_scores |= labels.is_some();
                comparison.add_scores(x, y, n, labels);
            }
            compared.push(comparison);
        }
        ensure!(
            labels.is_none() || has_scores,
            "no output is class scores, expected one of shape [{batch}, classes] for --labels; found {}",
            float.iter().map(|array| format!("{:?}", array.shape)).collect::<Vec<_>>().join(", ")
        );
        Ok(compared)
    }
}
