//! `mqq prepare`: writes the prepared float model, which `mqq calibrate` would quantize for the backend.

use super::Failure;
use super::files::{DataOption, check_models, ensure_onnx, ensure_readable};
use super::options::{BackendArgs, PrintArgs, ShapeArgs, StaticArgs};
use super::print::{self, out};
use crate::diag::Exit;
use crate::onnx::{LAST_OPSET, RunFile, Staged, check_outputs};
use crate::prepare::{PreparedGraph, prepare_file};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  mqq prepare resnet50.onnx --backend tensorrt --output prepared.onnx
  mqq prepare resnet50.onnx --backend qnn-htp --output prepared.onnx --static-shapes";

/// Arguments of `mqq prepare`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct PrepareArgs {
    /// A float ONNX model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    #[command(flatten)]
    backend: BackendArgs,
    /// Path of the prepared model
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Opset to upgrade to, if it is above the backend's minimum
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=LAST_OPSET))]
    opset: Option<i64>,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    fixed: StaticArgs,
    #[command(flatten)]
    print: PrintArgs,
}

/// Runs the command.
pub(super) fn run(args: &PrepareArgs) -> Result<Exit, Failure> {
    let mut scheme = args.fixed.apply(args.backend.table()?);
    let shapes = args.shape.resolve().map_err(Failure::Usage)?;
    check_models([&args.model], DataOption::HasNot).map_err(Failure::Usage)?;
    ensure_onnx(&args.output).map_err(Failure::Usage)?;
    ensure_readable(&args.model)?;
    let read = |visit: &mut dyn FnMut(RunFile)| {
        let model = RunFile::read_model("float model", &args.model);
        model.into_iter().chain(args.backend.files()).for_each(visit);
    };
    let written = RunFile::written_model("prepared model", &args.output);
    let _made = check_outputs(&written, read).map_err(Failure::Usage)?;
    scheme.min_opset = args.opset.unwrap_or(scheme.min_opset).max(scheme.min_opset);
    let PreparedGraph { model, changes, has_external_data, .. } = prepare_file(&args.model, &scheme, &[], &shapes)?;
    Staged::model(model, &args.output, has_external_data)?.commit()?;
    let [model, output] = [&args.model, &args.output].map(|path| path.display().to_string());
    let prepared: Vec<String> = changes.iter().map(ToString::to_string).collect();
    if args.print.json {
        print::object(json!({ "model": model, "backend": scheme.name, "output": output, "prepared": prepared }))?;
    } else if !args.print.quiet {
        out!("{model} -> {output}");
        prepared.iter().for_each(|change| out!("  {change}"));
    }
    Ok(Exit::Done)
}
