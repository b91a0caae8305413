//! `mqq doctor`: examines a model and its data before quantization.

use super::Failure;
use super::evaluation_args::RunSampleArgs;
use super::files::{DataOption, check_models, check_report, ensure_readable, write_report};
use super::options::{OptionalBackendArgs, PreprocessArgs, PrintArgs, SelectArgs};
use super::print::{self, Bar, out};
use crate::data;
use crate::diag::Exit;
use crate::onnx::{RunFile, check_outputs};
use crate::pipeline::{DoctorRequest, doctor};
use crate::report::{self, DoctorReport, Verbosity};
use clap::ValueHint;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  mqq doctor resnet50.onnx --data images/ --preprocess imagenet
  mqq doctor resnet50.onnx --data images/ --preprocess imagenet --backend tensorrt
  mqq doctor resnet50.onnx --data images/ --report doctor.html";

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
    #[command(flatten)]
    target: OptionalBackendArgs,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    samples: RunSampleArgs,
    /// Find out how many samples the activation ranges need
    #[arg(long, requires_all = ["backend", "data"])]
    until_stable: bool,
    /// Write a report as .html, .md, .txt or .json
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Print all findings of each examination, not only the first five
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    print: PrintArgs,
    #[command(flatten)]
    preprocess: PreprocessArgs,
}

/// Runs the command.
pub(super) fn run(args: &DoctorArgs) -> Result<Exit, Failure> {
    check_models([&args.model], DataOption::Has).map_err(Failure::Usage)?;
    let tables = args.target.tables()?;
    let preprocessing = args.preprocess.resolve()?;
    check_report(args.report.as_deref()).map_err(Failure::Usage)?;
    let request = DoctorRequest {
        model: &args.model,
        data: args.samples.resolve(&args.data, preprocessing)?,
        tables,
        has_backend: args.target.backend.is_some(),
        until_stable: args.until_stable,
        selection: args.select.resolve().map_err(Failure::Usage)?,
    };
    ensure_readable(&args.model)?;
    data::ensure_found(&args.data, data::BadEntries::Skipped)?;
    let written: Vec<RunFile> = args.report.iter().map(|path| RunFile::new("report", path)).collect();
    let read = |visit: &mut dyn FnMut(RunFile)| {
        let model = RunFile::read_model("float model", &args.model);
        model.into_iter().for_each(&mut *visit);
        data::files(&args.data, &mut |path| visit(RunFile::new("calibration data", path)));
        let files = args.target.files().into_iter().chain(args.preprocess.file());
        files.chain(args.samples.file()).for_each(visit);
    };
    let _made = check_outputs(&written, read).map_err(Failure::Usage)?;
    let quiet = args.print.quiet;
    let diagnosis = doctor(&request, &|stage, n| Bar::new(n, stage.to_string(), quiet).tick())?;
    let model = args.model.display().to_string();
    let report =
        DoctorReport::new(&model, args.target.backend.as_deref().map(|_| &request.tables.0.name[..]), &diagnosis);
    if args.print.json {
        print::object(&report)?;
    } else if !quiet || report.n_errors() > 0 {
        let verbosity = Verbosity::of(quiet, args.verbose);
        report.lines(verbosity).iter().for_each(|line| out!("{line}"));
    }
    if let Some(path) = &args.report {
        write_report(path, &report::of_diagnosis(&report))?;
    }
    Ok(if report.n_errors() > 0 { Exit::Quality } else { Exit::Done })
}
