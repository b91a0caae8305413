//! `mqq eval`: evaluates one model.

use super::evaluation_args::EvaluationArgs;
use super::files::{DataOption, check_models, ensure_readable};
use super::options::{PreprocessArgs, PrintArgs};
use super::print::{self, Bar, err, out};
use super::{Failure, complete};
use crate::diag::Exit;
use crate::metrics::{Metric, MetricBound, MissedGate};
use crate::pipeline::{OF_ONE_MODEL, evaluate};
use crate::report::{EvaluationReport, evaluation, evaluation_lines};
use anyhow::{Context, Result, ensure};
use clap::ValueHint;
use serde::Serialize;
use std::path::PathBuf;

/// Arguments of `mqq eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mqq eval resnet50.onnx --data images/ --preprocess imagenet
  mqq eval resnet50.tensorrt.onnx --data images/ --preprocess imagenet --json")]
pub struct EvalArgs {
    /// A model, float or quantized
    #[arg(value_name = "MODEL.onnx", value_hint = ValueHint::FilePath)]
    model: PathBuf,
    #[command(flatten)]
    data: EvaluationArgs,
    #[arg(long, value_name = "NAME=VALUE", help = gate_help(), requires = "labels", add = complete::metrics())]
    fail_under: Vec<String>,
    #[command(flatten)]
    print: PrintArgs,
    #[command(flatten)]
    preprocess: PreprocessArgs,
}

fn names() -> String {
    OF_ONE_MODEL.iter().map(|metric: &Metric| metric.name).collect::<Vec<_>>().join(", ")
}

fn gate_help() -> String {
    format!("Exit code 3 if a metric is worse; repeatable: {}", names())
}

#[derive(Serialize)]
struct EvaluationObject<'a> {
    model: String,
    #[serde(flatten)]
    report: &'a EvaluationReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    preprocessing: Option<&'a str>,
    missed: &'a [MissedGate],
    warnings: &'a [String],
}

/// Parses a gate on a metric of one model.
fn gate(text: &str) -> Result<MetricBound> {
    let gate = MetricBound::parse(text).context("--fail-under")?;
    ensure!(
        OF_ONE_MODEL.contains(&gate.metric),
        "--fail-under: `{}` compares two models, expected one of {}",
        gate.metric.name,
        names()
    );
    Ok(gate)
}

/// Runs the command.
pub(super) fn run(args: &EvalArgs) -> Result<Exit, Failure> {
    check_models([&args.model], DataOption::Has).map_err(Failure::Usage)?;
    let gates = args.fail_under.iter().map(|text| gate(text));
    let gates = gates.collect::<Result<Vec<MetricBound>>>().map_err(Failure::Usage)?;
    let (mut data, sidecar) = args.data.resolve(&args.preprocess, &args.model)?;
    ensure_readable(&args.model)?;
    args.data.read_labels(&mut data)?;
    let quiet = args.print.quiet;
    let evaluated = evaluate(&args.model, &data, &|stage, n| Bar::new(n, stage.to_string(), quiet).tick())?;
    if let Some(sidecar) = sidecar.filter(|_| !quiet && evaluated.comparison.preprocessing.is_some()) {
        print::preprocessing_from(&sidecar);
    }
    let missed = evaluated.missed(&gates);
    let report = evaluation(&evaluated);
    let warnings = &evaluated.comparison.warnings;
    if args.print.json {
        let model = args.model.display().to_string();
        let preprocessing = evaluated.comparison.preprocessing.as_deref();
        print::object(EvaluationObject { model, report: &report, preprocessing, missed: &missed, warnings })?;
    } else if !quiet || !missed.is_empty() {
        evaluation_lines(&report).iter().for_each(|line| out!("{line}"));
    }
    warnings.iter().filter(|_| !quiet).for_each(|warning| err!("warning: {warning}"));
    print::missed(&missed, report.task.is_some(), &[]);
    Ok(if missed.is_empty() { Exit::Done } else { Exit::Quality })
}
