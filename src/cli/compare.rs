//! `mqq compare`: compares a quantized model with its float model.

use super::evaluation_args::EvaluationArgs;
use super::files::{DataOption, check_models, check_report, ensure_readable, write_report};
use super::options::{AxisArgs, PreprocessArgs, PrintArgs};
use super::print::{self, Bar, err, out};
use super::{Failure, complete};
use crate::backends;
use crate::data::parse_number;
use crate::diag::{Exit, file_name};
use crate::metrics::{COCO_MAP, METRICS, Metric, MetricBound, MissedGate, SQNR, TOP1, TOP1_DROP};
use crate::onnx::{RunFile, check_outputs};
use crate::pipeline::{CompareRequest, Comparison, compare};
use crate::report::{self, ComparedModels, Document, OutputReport, TaskReport, TensorsReport, UsefulOptions};
use crate::scheme::{FLOAT, Scheme};
use crate::sidecar::Sidecar;
use anyhow::{Context, Result};
use clap::ValueHint;
use std::path::{Path, PathBuf};

/// Arguments of `mqq compare`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("labels", |arg| arg.help(LABELS)))]
pub struct CompareArgs {
    /// The float model
    #[arg(value_name = "FLOAT.onnx")]
    float: PathBuf,
    /// The quantized model
    #[arg(value_name = "QUANTIZED.onnx")]
    quantized: PathBuf,
    #[command(flatten)]
    data: EvaluationArgs,
    #[command(flatten)]
    axes: AxisArgs,
    #[arg(long, value_name = "NAME=VALUE", help = gate_help(), add = complete::metrics())]
    fail_under: Vec<String>,
    /// Short form of --fail-under sqnr=DB
    #[arg(long, value_name = "DB", value_parser = parse_number, allow_hyphen_values = true)]
    min_sqnr: Option<f64>,
    /// Short form of --fail-under top1-drop=PERCENT: the largest loss of top-1, in percentage points
    #[arg(long, value_name = "PERCENT", value_parser = parse_number, requires = "labels")]
    max_top1_drop: Option<f64>,
    /// Write a report as .html, .md, .txt or .json
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
    #[command(flatten)]
    print: PrintArgs,
    /// Also compare tensors inside the models on a few samples, and print the worst; --json and --report have all
    #[arg(long)]
    tensors: bool,
    /// Also print the channel axis of each output, and its groups of channels
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    preprocess: PreprocessArgs,
}

const LABELS: &str = "Labels: a .csv with the columns `file` (relative to the .csv or to the data) and `class_index`, \
    `folders` for a data folder with a subfolder for each class, or boxes as COCO's instances.json";

/// The metrics that compare with labels.
const OF_LABELS: &[Metric] = &[TOP1, TOP1_DROP, COCO_MAP];

fn gate_help() -> String {
    let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
    format!(
        "Fail with exit code 3 if a metric is worse, or values are NaN or infinite; repeatable. Metrics: {}",
        names.join(", ")
    )
}

impl CompareArgs {
    fn gates(&self) -> Result<Vec<MetricBound>> {
        let gates = self.fail_under.iter().map(|text| MetricBound::parse(text).context("--fail-under"));
        let min_sqnr = self.min_sqnr.map(|bound| MetricBound::new(SQNR, bound).context("--min-sqnr"));
        let max_drop = self.max_top1_drop.map(|bound| MetricBound::new(TOP1_DROP, bound).context("--max-top1-drop"));
        gates.chain(min_sqnr).chain(max_drop).collect()
    }
}

/// Runs the command.
pub(super) fn run(args: &CompareArgs) -> Result<Exit, Failure> {
    let models = [&args.float, &args.quantized];
    models.into_iter().try_for_each(|model| check_models([model], DataOption::Has)).map_err(Failure::Usage)?;
    let gates = args.gates().map_err(Failure::Usage)?;
    let axes = args.axes.resolve().map_err(Failure::Usage)?;
    let (mut data, sidecar) = args.data.resolve(&args.preprocess, &args.quantized)?;
    check_report(args.report.as_deref()).map_err(Failure::Usage)?;
    models.into_iter().try_for_each(|model| ensure_readable(model))?;
    args.data.read_labels(&mut data)?;
    let written: Vec<RunFile> = args.report.iter().map(|path| RunFile::new("report", path)).collect();
    let read = |visit: &mut dyn FnMut(RunFile)| {
        models.into_iter().flat_map(|model| RunFile::read_model("model", model)).for_each(&mut *visit);
        args.data.files(visit);
        let beside = Sidecar::beside(&args.quantized).map(|_| args.quantized.with_extension("json"));
        beside.map(|path| RunFile::new("sidecar", &path)).into_iter().chain(args.preprocess.file()).for_each(visit);
    };
    let _made = check_outputs(&written, read).map_err(Failure::Usage)?;
    let quiet = args.print.quiet;
    let request = CompareRequest {
        models: [&args.float, &args.quantized],
        data,
        axes,
        tensors: args.tensors || args.report.is_some(),
    };
    let compared = compare(&request, &|stage, n| Bar::new(n, stage.to_string(), quiet).tick())?;
    if let Some(sidecar) = sidecar.filter(|_| !quiet && compared.preprocessing.is_some()) {
        print::preprocessing_from(&sidecar);
    }
    let results = ComparisonResults {
        missed: compared.missed(&gates),
        outputs: report::outputs(&compared),
        task: report::task(&compared),
        tensors: compared.tensors.as_ref().map(|tensors| report::tensors(tensors, &useful_options(&args.quantized))),
        compared: &compared,
    };
    match args.print.json {
        true => print::object(&results.json(args)?)?,
        false => results.print(args),
    }
    if let Some(path) = &args.report {
        write_report(path, &results.document(args))?;
    }
    for warning in compared.warnings.iter().filter(|_| !quiet) {
        err!("warning: {warning}");
    }
    let unlabeled = if args.data.labels.is_none() { OF_LABELS } else { &[] };
    print::missed(&results.missed, results.task.is_some(), unlabeled);
    Ok(if results.missed.is_empty() { Exit::Done } else { Exit::Quality })
}

/// Returns the options of `mqq calibrate` that are of use for the quantized model; all of them without a sidecar.
fn useful_options(quantized: &Path) -> UsefulOptions {
    let sidecar = Sidecar::beside(quantized).filter(|sidecar| sidecar.is_sidecar_of(quantized));
    let table = sidecar.as_ref().and_then(|sidecar| backends::resolve(&sidecar.scheme.backend).ok());
    let tried = |sidecar: &Sidecar| {
        let searched = sidecar.methods.iter().filter(|outcome| outcome.method == "observer");
        let mut observers = searched.filter_map(|outcome| outcome.variant.as_deref());
        let given = sidecar.calibration.activation_observer.as_str();
        given.starts_with("percentile") || observers.any(|observer| observer.starts_with("percentile"))
    };
    UsefulOptions {
        exclude: table.as_ref().is_none_or(Scheme::allows_float_nodes),
        keep_float: table.as_ref().is_none_or(|table| table.mixed.contains_key(FLOAT)),
        wider: table.and_then(|table| table.wider),
        percentile: !sidecar.as_ref().is_some_and(tried),
    }
}

/// The results of a comparison, for JSON, text and documents.
struct ComparisonResults<'a> {
    compared: &'a Comparison,
    missed: Vec<MissedGate>,
    outputs: Vec<OutputReport>,
    task: Option<TaskReport>,
    tensors: Option<TensorsReport>,
}

impl ComparisonResults<'_> {
    /// Returns the object of `--json`.
    fn json(&self, args: &CompareArgs) -> Result<serde_json::Value> {
        let mut object = serde_json::json!({
            "float": args.float.display().to_string(),
            "quantized": args.quantized.display().to_string(),
            "outputs": self.outputs,
            "missed": self.missed,
            "warnings": self.compared.warnings,
        });
        if let Some(object) = object.as_object_mut() {
            if let Some(preprocessing) = &self.compared.preprocessing {
                object.insert("preprocessing".to_string(), preprocessing.clone().into());
            }
            if let Some(task) = &self.task {
                object.insert("task".to_string(), serde_json::to_value(task)?);
            }
            if let Some(tensors) = &self.tensors {
                object.insert("tensors".to_string(), serde_json::to_value(tensors)?);
            }
        }
        Ok(object)
    }

    /// Prints the lines of text: all, or with `--quiet` those of figures that miss a gate.
    fn print(&self, args: &CompareArgs) {
        let quiet = args.print.quiet;
        if let Some(preprocessing) = self.compared.preprocessing.as_ref().filter(|_| args.verbose && !quiet) {
            out!("{preprocessing}");
        }
        for output in self.outputs.iter().filter(|output| !quiet || self.misses(output)) {
            out!("{}", report::comparison(output));
        }
        let misses_task = self.missed.iter().any(|missed| missed.metric.task.is_some());
        if let Some(task) = self.task.as_ref().filter(|_| !quiet || misses_task) {
            report::task_lines(task, self.compared.n_samples).iter().for_each(|line| out!("{line}"));
        }
        if let Some(tensors) = self.tensors.as_ref().filter(|_| args.tensors && !quiet) {
            report::tensor_lines(tensors).iter().for_each(|line| out!("{line}"));
        }
        if args.verbose && !quiet {
            let groups = self.compared.measured.prepared().groups();
            groups.iter().for_each(|groups| out!("{}", report::channels(groups)));
        }
    }

    /// Whether an output misses a gate.
    fn misses(&self, output: &OutputReport) -> bool {
        self.missed.iter().any(|missed| {
            missed.metric.task.is_none() && missed.tensor.as_deref().is_none_or(|name| name == output.tensor)
        })
    }

    /// Returns the document of `--report`.
    fn document(&self, args: &CompareArgs) -> Document {
        report::of_comparison(&ComparedModels {
            models: [&file_name(&args.float), &file_name(&args.quantized)],
            outputs: &self.outputs,
            task: self.task.as_ref(),
            tensors: self.tensors.as_ref(),
            missed: &self.missed.iter().map(ToString::to_string).collect::<Vec<_>>(),
            warnings: &self.compared.warnings,
        })
    }
}
