//! `mqq doctor`: a model and its data, before any run.

use super::files::{DataOption, check_models, ensure_readable};
use super::options::{
    PreprocessArgs, PrintArgs, RARE, SampleArgs, SelectArgs, ShapeArgs, resolve_backend, wider_table,
};
use super::print::{self, Bar, out};
use super::{Failure, complete};
use crate::data;
use crate::diag::Exit;
use crate::onnx::{RunFile, Staged, check_outputs};
use crate::pipeline::{DoctorRequest, doctor};
use crate::report::{self, DoctorReport, Verbosity};
use anyhow::Context;
use clap::ValueHint;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  mqq doctor resnet50.onnx --data images/ --preprocess imagenet
  mqq doctor resnet50.onnx --data images/ --preprocess imagenet --backend tensorrt
  mqq doctor resnet50.onnx --data images/ --report doctor.html";

/// The table that prepares the model where no backend is given.
const ANY_BACKEND: &str = "onnxruntime";

/// Arguments of `mqq doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// The float model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// Calibration data, as for calibrate
    #[arg(long, short, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    data: Vec<String>,
    /// Target: a backend (see `mqq backends`) or a YAML table
    #[arg(long, short, value_name = "NAME|FILE", add = complete::backends())]
    backend: Option<String>,
    /// Turn on a switch of the backend's table; repeatable
    #[arg(long = "switch", value_name = "NAME", requires = "backend", display_order = RARE)]
    switches: Vec<String>,
    /// Change a value of the table, such as min_opset=17; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "backend", display_order = RARE)]
    sets: Vec<String>,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    samples: SampleArgs,
    /// Tell how many samples the backend's ranges need
    #[arg(long, requires_all = ["backend", "data"])]
    until_stable: bool,
    /// Write a report as .html, .md, .txt or .json
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Print all findings of each examination, not only the first five
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    pub print: PrintArgs,
    #[command(flatten)]
    preprocess: PreprocessArgs,
}

/// Runs the command.
pub(super) fn run(args: &DoctorArgs) -> Result<Exit, Failure> {
    check_models([&args.model], DataOption::Has).map_err(Failure::Usage)?;
    let backend = args.backend.as_deref().unwrap_or(ANY_BACKEND);
    let scheme = resolve_backend(backend, &args.switches, &args.sets)?;
    let other = wider_table(&scheme, &args.switches, &args.sets)?;
    let preprocessing = args.preprocess.resolve()?;
    let format = args.report.as_ref().map(|path| report::format_of(path)).transpose();
    let format = format.context("--report").map_err(Failure::Usage)?;
    let request = DoctorRequest {
        model: &args.model,
        data: &args.data,
        preprocessing,
        limit: args.samples.limit,
        shapes: args.shape.resolve().map_err(Failure::Usage)?,
        tables: (scheme, other),
        has_backend: args.backend.is_some(),
        until_stable: args.until_stable,
        selection: args.select.resolve().map_err(Failure::Usage)?,
        threads: args.samples.threads.n(),
    };
    ensure_readable(&args.model)?;
    data::ensure_found(&args.data)?;
    let written: Vec<RunFile> = args.report.iter().map(|path| RunFile::new("report", path)).collect();
    let read =
        |visit: &mut dyn FnMut(RunFile)| RunFile::read_model("float model", &args.model).into_iter().for_each(visit);
    let _made = check_outputs(&written, read).map_err(Failure::Usage)?;
    let quiet = args.print.quiet;
    let diagnosis = doctor(&request, &|stage, n| Bar::new(n, stage.to_string(), quiet).tick())?;
    let model = args.model.display().to_string();
    let report = DoctorReport::new(&model, args.backend.as_deref().map(|_| &request.tables.0.name[..]), &diagnosis);
    if args.print.json {
        print::object(&report)?;
    } else if !quiet || report.n_errors() > 0 {
        let verbosity = Verbosity::of(quiet, args.verbose);
        report.lines(verbosity).iter().for_each(|line| out!("{line}"));
    }
    if let (Some(format), Some(path)) = (format, &args.report) {
        Staged::write(format.render(&report::of_diagnosis(&report))?.as_bytes(), path)?;
    }
    Ok(if report.n_errors() > 0 { Exit::Quality } else { Exit::Done })
}
