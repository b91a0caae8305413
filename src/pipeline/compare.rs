//! Two models over the same data.

use super::on_threads;
use super::ran::{ComparedOutput, Ran, outputs};
use super::task::{TaskRequest, image_size};
use crate::calibrate::each_sample;
use crate::check::is_quantized;
use crate::data::{Dataset, Labels, Preprocessing, Sample};
use crate::diag::WithHint;
use crate::engine::{Engine, Parsed, Session};
use crate::metrics::task::{TaskKind, TaskResult, TaskSums};
use crate::metrics::{InOrder, OutputComparison, OutputFigures};
use crate::onnx;
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::progress::Progress;
use anyhow::{Context, Result, anyhow, ensure};
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
    /// What the model is for, where that is measured too.
    pub task: Option<TaskRequest>,
    /// Samples run at the same time.
    pub threads: usize,
}

/// What came of it.
pub struct Comparison {
    /// Output by output.
    pub outputs: Vec<OutputFigures>,
    /// Of the task: output by output, or one result of all of them. Empty where none was asked for.
    pub task: Vec<TaskResult>,
}

/// Runs both models and compares their outputs by position.
///
/// # Errors
/// If a model or a sample cannot be run, the models have different outputs or the first is the quantized one, a sample has
/// no label or no output that could have it, or no output is one of the task.
pub fn compare(request: &CompareRequest, progress: &Progress) -> Result<Comparison> {
    let CompareRequest { models, data, preprocessing, limit, shapes, labels, task, threads } = request;
    let [float, quantized] = [onnx::load_whole(models[0])?.model, onnx::load_whole(models[1])?.model];
    if is_quantized(&float) && !is_quantized(&quantized) {
        return Err(anyhow!(
            "`{}` is quantized and `{}` is not, expected the float model first",
            models[0].display(),
            models[1].display()
        )
        .hint("give the models in the other order"));
    }
    let (outputs, n_quantized) = (outputs(&float)?, outputs(&quantized)?.len());
    ensure!(
        outputs.len() == n_quantized,
        "`{}` has {n_quantized} outputs, expected {} as the float model",
        models[1].display(),
        outputs.len()
    );
    task.as_ref().map_or(Ok(()), |task| task.ensure_outputs(&outputs))?;
    let build = |path: &Path, model: ModelProto| {
        let engine = Parsed::new(&model, shapes).and_then(|parsed| parsed.build(&[]));
        engine.with_context(|| format!("`{}`", path.display()))
    };
    let (float, quantized): (Engine, Engine) = (build(models[0], float)?, build(models[1], quantized)?);
    let dataset = Dataset::open(data, float.inputs(), preprocessing, *limit)?;
    let labels = labels.as_ref().map(|labels| labels.of_dataset(&dataset)).transpose()?;
    let tick = progress(dataset.len());
    let image = image_size(&float);
    let can_differ = task.as_ref().is_some_and(|task| task.kind == TaskKind::Detect);
    let sums = Mutex::new((InOrder::new(outputs.len()), InOrder::<TaskSums>::new(outputs.len())));
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
        let compared = sample.compare(&outputs, can_differ).with_context(|| format!("`{name}`"))?;
        let measured = task.as_ref().map(|task| task.measure(&sample, &outputs, image));
        let measured = measured.transpose().with_context(|| format!("`{name}`"))?;
        let mut sums = sums.lock().map_err(|error| anyhow!("{error}"))?;
        sums.0.add(sample_idx, compared);
        measured.into_iter().for_each(|measured| sums.1.add(sample_idx, measured));
        Ok(())
    };
    on_threads(*threads, || each_sample(&dataset, &*tick, start, job))?;
    let (sums, of_task) = sums.into_inner().map_err(|error| anyhow!("{error}"))?;
    let figures = |(total, output): (&OutputComparison, &ComparedOutput)| total.figures(&output.name);
    let of_task = of_task.into_totals();
    let results = task.as_ref().map(|task| task.results(&of_task, &outputs, dataset.len())).transpose()?;
    Ok(Comparison {
        outputs: sums.into_totals().iter().zip(&outputs).map(figures).collect(),
        task: results.unwrap_or_default(),
    })
}
