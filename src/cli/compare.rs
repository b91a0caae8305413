//! `mqq compare`: a quantized model against its float model.

use super::Failure;
use super::files::{check_models, ensure_readable};
use super::options::{PreprocessArgs, PrintArgs, SampleArgs, ShapeArgs};
use super::print::{Bar, out};
use super::task::TaskArgs;
use crate::data::{self, Labels, parse_number};
use crate::diag::Exit;
use crate::metrics::OutputFigures;
use crate::pipeline::{CompareRequest, compare};
use crate::report::{self, TaskReport};
use anyhow::Result;
use std::path::PathBuf;

/// Arguments of `mqq compare`.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// The float model
    #[arg(value_name = "FLOAT.onnx")]
    float: PathBuf,
    /// The quantized model
    #[arg(value_name = "QUANTIZED.onnx")]
    quantized: PathBuf,
    /// Evaluation data, as for calibrate
    #[arg(long, short, required = true, value_name = "PATH")]
    data: Vec<String>,
    /// Labels: a .csv with the columns `file` (relative to it or to the data) and `class_index`
    #[arg(long, value_name = "FILE.csv")]
    labels: Option<PathBuf>,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    samples: SampleArgs,
    /// Fail with exit code 3 where an output's SQNR is lower, in dB, or has values that are NaN or infinite
    #[arg(long, value_name = "DB", value_parser = parse_number)]
    min_sqnr: Option<f64>,
    #[command(flatten)]
    pub print: PrintArgs,
    #[command(flatten)]
    task: TaskArgs,
    #[command(flatten)]
    preprocess: PreprocessArgs,
}

/// Runs the command.
pub(super) fn run(args: &CompareArgs) -> Result<Exit, Failure> {
    let models = [&args.float, &args.quantized];
    models.into_iter().try_for_each(|model| check_models([model])).map_err(Failure::Usage)?;
    let shapes = args.shape.resolve().map_err(Failure::Usage)?;
    let (task, gates) = args.task.resolve(args.labels.is_some())?.unzip();
    let preprocessing = args.preprocess.resolve()?;
    models.into_iter().try_for_each(|model| ensure_readable(model))?;
    let labels = args.labels.as_deref().map(Labels::read).transpose()?;
    data::ensure_found(&args.data)?;
    let quiet = args.print.quiet;
    let request = CompareRequest {
        models: [&args.float, &args.quantized],
        data: &args.data,
        preprocessing,
        limit: args.samples.limit,
        shapes,
        labels,
        task,
        threads: args.samples.threads(),
    };
    let compared = compare(&request, &|n| Bar::new(n, "compare", quiet).tick())?;
    let misses = |output: &OutputFigures| args.min_sqnr.is_some_and(|min| !output.reaches(min));
    let gates = gates.unwrap_or_default();
    let task = request.task.as_ref().map(|task| TaskReport::new(task, compared.task, &gates));
    let is_missed = compared.outputs.iter().any(misses) || task.iter().any(TaskReport::misses);
    if args.print.json {
        let mut object = serde_json::json!({
            "schema_version": super::JSON_VERSION,
            "float": args.float.display().to_string(),
            "quantized": args.quantized.display().to_string(),
            "outputs": compared.outputs,
        });
        if let Some(task) = &task {
            object["task"] = serde_json::to_value(task)?;
        }
        out!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        for output in compared.outputs.iter().filter(|output| !quiet || misses(output)) {
            out!("{}", report::comparison(output));
        }
        if let Some(task) = &task {
            task.results.iter().filter(|_| !quiet).for_each(|result| out!("{}", report::task(task, result)));
            task.gates.iter().filter(|gate| !gate.met).for_each(|gate| out!("{}", report::missed(gate)));
        }
    }
    Ok(if is_missed { Exit::Quality } else { Exit::Done })
}
