//! `mqq calibrate`: the main job.

use super::collect::{CollectArgs, collect};
use super::files::{DataOption, check_models, ensure_readable};
use super::options::{BackendArgs, MixedArgs, PreprocessArgs, SampleArgs, ShapeArgs, StaticArgs};
use super::print::{err, out};
use super::quantize::{
    CalibratedModel, QuantizeArgs, RunData, RunPaths, effort_help, effort_levels, paths, quantize, request,
};
use super::{Failure, JsonReport, print_error};
use crate::calibrate::CalibrationOptions;
use crate::data;
use crate::diag::Exit;
use crate::import;
use crate::onnx::{RunFile, check_outputs};
use crate::pipeline::Request;
use crate::report::Summary;
use crate::scheme::Scheme;
use anyhow::Result;
use clap::ValueHint;
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  mqq calibrate resnet50.onnx --backend tensorrt --data images/ --preprocess imagenet
  mqq calibrate resnet50.onnx -b onnxruntime -d images/ --preprocess imagenet --out-dir quantized
  mqq calibrate resnet50.onnx -b openvino -d images/ --preprocess imagenet --keep-float 4
  mqq calibrate bert.onnx -b onnxruntime-dynamic
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --preprocess imagenet --save-stats r.mqqs
Details of all options: docs/guide.md";

/// Arguments of `mqq calibrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{}\n{EXAMPLES}", effort_help()))]
pub struct CalibrateArgs {
    /// Float ONNX models
    #[arg(required = true, value_name = "MODEL.onnx")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
    /// Images or arrays: folder, file, list or quoted glob; repeatable
    #[arg(long, short, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    data: Vec<String>,
    /// Path of the quantized model [default: MODEL.BACKEND.onnx]
    #[arg(long, short, value_name = "FILE", conflicts_with = "out_dir")]
    output: Option<PathBuf>,
    /// Folder of the results [default: the folder of each model]
    #[arg(long, value_name = "FOLDER")]
    out_dir: Option<PathBuf>,
    /// Effort for accuracy, 0 to 3; see below
    #[arg(long, value_name = "LEVEL", default_value = "1", value_parser = effort_levels(), hide_possible_values = true)]
    effort: String,
    #[command(flatten)]
    samples: SampleArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    fixed: StaticArgs,
    /// Ranges of activations from a sidecar, cache or encodings file
    #[arg(long, value_name = "FILE")]
    ranges_from: Option<PathBuf>,
    /// Do not look whether other pixel values fit the network better
    #[arg(long)]
    no_preprocess_check: bool,
    /// Skip samples that cannot be read
    #[arg(long)]
    skip_bad_data: bool,
    /// Go on after a model that fails; the exit code is still 1
    #[arg(long)]
    keep_going: bool,
    /// Skip models whose results exist
    #[arg(long)]
    skip_existing: bool,
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    #[command(flatten)]
    preprocess: PreprocessArgs,
    #[command(flatten)]
    collect: CollectArgs,
    #[command(flatten)]
    mixed: MixedArgs,
}

impl CalibrateArgs {
    fn data(&self) -> Result<RunData, Failure> {
        Ok(RunData {
            effort: self.effort.clone(),
            shapes: self.shape.resolve().map_err(Failure::Usage)?,
            calibration: CalibrationOptions {
                data: self.data.clone(),
                preprocessing: self.preprocess.resolve()?,
                limit: self.samples.limit,
                skip_bad_data: self.skip_bad_data,
                checks_preprocessing: !self.no_preprocess_check,
                saved: None,
            },
            has_ranges: self.ranges_from.is_some(),
            threads: self.samples.threads.n(),
        })
    }

    /// Whether the results of a model are kept as they are.
    fn leaves_alone(&self, paths: &RunPaths) -> bool {
        self.skip_existing && paths.exist()
    }
}

/// Runs the command.
pub(super) fn run(args: &CalibrateArgs) -> Result<Exit, Failure> {
    let scheme = args.fixed.apply(args.backend.resolve()?);
    let of_transformers = args.backend.of_transformers(&scheme)?.map(|scheme| args.fixed.apply(scheme));
    let head = args.quantize.task.resolve()?;
    check_models(&args.models, DataOption::Has).map_err(Failure::Usage)?;
    args.collect.check(args.models.len(), !args.data.is_empty()).map_err(Failure::Usage)?;
    let with = |scheme: Scheme| {
        request(&args.quantize, &args.mixed, args.data()?, scheme, head.clone()).map_err(Failure::Usage)
    };
    let mut request =
        Request { of_transformers: of_transformers.map(with).transpose()?.map(Box::new), ..with(scheme)? };
    let named = (args.output.as_deref(), args.out_dir.as_deref());
    let all_paths = paths(&args.quantize, &args.models, named, &request.scheme).map_err(Failure::Usage)?;
    let formats = all_paths.iter().flat_map(|paths| &paths.emitted);
    formats.into_iter().try_for_each(|(format, _)| format.ensure_takes(&request.scheme)).map_err(Failure::Usage)?;
    // With --keep-going a missing model is only a failure of that model.
    if !args.keep_going {
        args.models.iter().try_for_each(|model| ensure_readable(model))?;
    }
    data::ensure_found(&args.data)?;
    request.ranges = args.ranges_from.as_deref().map(import::read).transpose()?;
    if let Some(other) = &mut request.of_transformers {
        other.ranges = request.ranges.clone();
    }
    let print = &args.quantize.print;
    if let Some(warning) = args.samples.threads.warning().filter(|_| !print.quiet) {
        err!("warning: {warning}");
    }
    let quantized = all_paths.iter().filter(|paths| !args.leaves_alone(paths) && !args.collect.is_part());
    let mut written: Vec<RunFile> = quantized.flat_map(RunPaths::written).collect();
    written.extend(args.collect.written());
    let _made = check_outputs(&written, |visit| read_files(args, visit)).map_err(Failure::Usage)?;
    let mut report = JsonReport::new(&request.scheme.name);
    let mut exit = Exit::Done;
    for paths in &all_paths {
        let model = paths.model.display().to_string();
        if args.leaves_alone(paths) {
            if !print.quiet && !print.json {
                out!("{model}: results exist, skipped");
            }
            report.results.push(CalibratedModel { status: "skipped", ..paths.report() });
            continue;
        }
        let statistics = args.collect.path().map(|path| path.display().to_string());
        match one(args, &mut request, paths) {
            Ok(None) => {
                report.results.push(CalibratedModel { model, status: "ok", statistics, ..CalibratedModel::default() });
            }
            Ok(summary) => {
                report.results.push(CalibratedModel { status: "ok", summary, statistics, ..paths.report() });
            }
            Err(error) => {
                print_error(&error);
                let (failed, after) = CalibratedModel::failed(model, &error, exit);
                exit = after;
                report.results.push(failed);
                if !args.keep_going {
                    break;
                }
            }
        }
    }
    if print.json {
        report.print()?;
    }
    Ok(exit)
}

/// Collects the statistics of a model where they are to be saved, and quantizes it unless they are of a part of the data.
fn one(args: &CalibrateArgs, request: &mut Request, paths: &RunPaths) -> Result<Option<Summary>> {
    if args.collect.path().is_some() {
        let saved = Arc::new(collect(&args.collect, request, &args.fixed, &paths.model, &args.quantize)?);
        if args.collect.is_part() {
            return Ok(None);
        }
        request.calibration.saved = Some(saved.clone());
        if let Some(other) = &mut request.of_transformers {
            other.calibration.saved = Some(saved);
        }
    }
    quantize(&args.quantize, request, paths).map(Some)
}

/// Visits every file that is read.
fn read_files(args: &CalibrateArgs, visit: &mut dyn FnMut(RunFile)) {
    let models = args.models.iter().flat_map(|model| RunFile::read_model("float model", model));
    let ranges = args.ranges_from.iter().map(|path| RunFile::new("ranges to import", path));
    models.for_each(&mut *visit);
    data::files(&args.data, &mut |path| visit(RunFile::new("calibration data", path)));
    let named = args.preprocess.file().into_iter().chain(args.quantize.task.file());
    ranges.chain(args.backend.files()).chain(named).for_each(visit);
}
