//! `mqq calibrate`: quantizes models with calibration data.

use super::Failure;
use super::collect::{CollectArgs, collect};
use super::files::{DataOption, check_models, ensure_readable};
use super::mixed_args::MixedArgs;
use super::options::{PreprocessArgs, SampleArgs, ShapeArgs, StaticArgs, TargetsArgs};
use super::origin::{Origin, data_sha256, options_sha256};
use super::print::err;
use super::quantize::{Collected, Quantizing, Target};
use super::quantize_args::{QuantizeArgs, RunData, effort_help, effort_levels, request};
use super::results::RunPaths;
use super::zoo::{self, ZooArgs};
use crate::calibrate::{CalibrationOptions, NotSavable, SKIPPING};
use crate::data;
use crate::diag::{Exit, WithHint, is_of};
use crate::import;
use crate::onnx::{RunFile, check_outputs};
use crate::pipeline::Request;
use crate::scheme::Scheme;
use anyhow::{Result, anyhow};
use clap::{ArgGroup, ValueHint};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  mqq calibrate resnet50.onnx --backend tensorrt --data images/ --preprocess imagenet
  mqq calibrate resnet50.onnx -b onnxruntime -d images/ --preprocess imagenet --out-dir quantized
  mqq calibrate resnet50.onnx -b tensorrt,openvino,qnn-htp -d images/ --preprocess imagenet
  mqq calibrate resnet50.onnx -b openvino -d images/ --preprocess imagenet --keep-float 4
  mqq calibrate bert.onnx -b onnxruntime-dynamic
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --preprocess imagenet --save-stats r.mqqs
Details of all options: docs/guide.md";

/// Arguments of `mqq calibrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{}\n{EXAMPLES}", effort_help()))]
#[command(group(ArgGroup::new("for_backends").required(true).multiple(true)))]
pub struct CalibrateArgs {
    /// Float ONNX models
    #[arg(required = true, value_name = "MODEL.onnx")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    backends: TargetsArgs,
    /// Images or arrays: folder, file, list or quoted glob; repeatable
    #[arg(long, short, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    data: Vec<String>,
    /// Path of the quantized model [default: MODEL.BACKEND.onnx]
    // The parser does not ask for a required --zoo here, because --zoo conflicts with this option.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["out_dir", "junit", "memory"])]
    output: Option<PathBuf>,
    /// Folder of the results [default: the folder of each model]
    #[arg(long, value_name = "FOLDER")]
    out_dir: Option<PathBuf>,
    /// How much to search for accuracy, 0 to 3; see below
    #[arg(long, value_name = "LEVEL", default_value = "1", value_parser = effort_levels(), hide_possible_values = true)]
    effort: String,
    #[command(flatten)]
    samples: SampleArgs,
    /// Stop once more samples change no range by a quantization step
    #[arg(long, conflicts_with_all = ["ranges_from", "shard", "resume"])]
    until_stable: bool,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    fixed: StaticArgs,
    /// Take activation ranges from a sidecar, cache or encodings file
    #[arg(long, value_name = "FILE")]
    ranges_from: Option<PathBuf>,
    /// Do not check whether other pixel values fit the network better
    #[arg(long)]
    no_preprocess_check: bool,
    /// Skip samples that cannot be read
    #[arg(long)]
    skip_bad_data: bool,
    /// Continue after a model that fails; the exit code is still 1
    #[arg(long)]
    keep_going: bool,
    /// Skip models whose results come from the same data and options
    #[arg(long)]
    skip_existing: bool,
    #[command(flatten)]
    quantize: QuantizeArgs,
    #[command(flatten)]
    preprocess: PreprocessArgs,
    #[command(flatten)]
    collect: CollectArgs,
    #[command(flatten)]
    mixed: MixedArgs,
    #[command(flatten)]
    zoo: ZooArgs,
}

impl CalibrateArgs {
    /// Returns the files that options name, except models, data and tables.
    fn option_files(&self) -> Vec<RunFile> {
        let ranges = self.ranges_from.iter().map(|path| RunFile::new("ranges to import", path));
        ranges.chain(self.preprocess.file()).chain(self.quantize.task.file()).collect()
    }

    /// Sets the origins of all results.
    fn set_origins(&self, targets: &mut [Target]) -> Result<()> {
        let (data, files) = (data_sha256(&self.data), self.option_files());
        for Target { request, paths } in targets {
            let other = request.wider.as_ref().map(|other| &other.scheme);
            let options = options_sha256(&files, (&request.scheme, other))?;
            paths.iter_mut().for_each(|paths| paths.origin = Origin::new(&paths.model, &data, &options));
        }
        Ok(())
    }

    /// Returns an error with `hint` if a model is a folder.
    fn ensure_no_folder(&self, hint: fn(&Path) -> String) -> Result<(), Failure> {
        let Some(folder) = self.models.iter().find(|model| model.is_dir()) else { return Ok(()) };
        let error = anyhow!("`{}`: is a directory, expected a model", folder.display());
        Err(Failure::Usage(error.hint(hint(folder))))
    }

    fn data(&self) -> Result<RunData, Failure> {
        Ok(RunData {
            effort: self.effort.clone(),
            shapes: self.shape.resolve().map_err(Failure::Usage)?,
            calibration: CalibrationOptions {
                data: self.data.clone(),
                preprocessing: self.preprocess.resolve()?,
                limit: self.samples.limit,
                spread: None,
                skip_bad_data: self.skip_bad_data,
                checks_preprocessing: !self.no_preprocess_check,
                saved: None,
            },
            has_ranges: self.ranges_from.is_some(),
            threads: self.samples.threads.n(),
        })
    }
}

/// Runs the command.
pub(super) fn run(args: &CalibrateArgs) -> Result<Exit, Failure> {
    if let Some(path) = args.zoo.file() {
        check_models(&args.models, DataOption::Has).map_err(Failure::Usage)?;
        if args.models.iter().all(|model| model.is_dir()) {
            args.ensure_no_folder(|folder| format!("name its models: {}", folder.join("*.onnx").display()))?;
        }
        let (n_threads, print) = (args.samples.threads.n(), &args.quantize.print);
        return zoo::run(&args.zoo, path, &args.models, n_threads, print);
    }
    let tables = args.backends.resolve(&args.fixed)?;
    let head = args.quantize.task.resolve()?;
    check_models(&args.models, DataOption::Has).map_err(Failure::Usage)?;
    if args.data.is_empty() {
        args.ensure_no_folder(|folder| format!("samples are given with an option: --data {}", folder.display()))?;
    }
    args.collect.check(args.models.len(), !args.data.is_empty()).map_err(Failure::Usage)?;
    args.collect.check_tables()?;
    if args.until_stable && args.data.is_empty() {
        return Err(Failure::Usage(anyhow!("--until-stable, but --data is missing")));
    }
    let with = |scheme: Scheme| {
        request(&args.quantize, &args.mixed, args.data()?, scheme, head.clone()).map_err(Failure::Usage)
    };
    let named = (args.output.as_deref(), args.out_dir.as_deref());
    let mut targets = Target::all(&args.quantize, tables, &args.models, named, with)?;
    // With --keep-going, a missing model fails only its own run.
    if !args.keep_going {
        args.models.iter().try_for_each(|model| ensure_readable(model))?;
    }
    let bad_entries =
        if args.skip_bad_data { data::BadEntries::Skipped } else { data::BadEntries::RefusedWith(SKIPPING) };
    data::ensure_found(&args.data, bad_entries)?;
    let ranges = args.ranges_from.as_deref().map(import::read).transpose()?;
    targets.iter_mut().for_each(|target| target.set_ranges(ranges.as_ref()));
    let print = &args.quantize.print;
    if let Some(warning) = args.samples.threads.warning().filter(|_| !print.quiet) {
        err!("warning: {warning}");
    }
    if args.skip_existing {
        args.set_origins(&mut targets)?;
    }
    let keeps = RunPaths::are_up_to_date;
    let paths = targets.iter().flat_map(|target| &target.paths);
    let quantized = paths.filter(|paths| !keeps(paths) && !args.collect.is_part());
    let mut written: Vec<RunFile> = quantized.flat_map(RunPaths::written).collect();
    written.extend(args.collect.written());
    let _made = check_outputs(&written, |visit| read_files(args, visit)).map_err(Failure::Usage)?;
    let collect = |model: &Path, requests: &[&Request]| collected(args, model, requests);
    let (statistics, keep_going) = (args.collect.path(), args.keep_going);
    let quantizing = Quantizing { args: &args.quantize, keep_going, statistics, keeps: &keeps, collect: &collect };
    quantizing.run(&args.models, targets)
}

/// Collects the statistics of a model if they are saved, several backends share them, or --until-stable needs them.
fn collected(args: &CalibrateArgs, model: &Path, requests: &[&Request]) -> Result<Collected> {
    let of_file = args.collect.path().is_some();
    let is_shared = requests.len() > 1 && !args.data.is_empty() && args.ranges_from.is_none();
    if !of_file && !is_shared && !args.until_stable {
        return Ok(Collected::Nothing);
    }
    match collect(&args.collect, requests, &args.fixed, model, &args.quantize, args.until_stable) {
        Ok(_) if args.collect.is_part() => Ok(Collected::OfPart),
        Ok((saved, until_stable)) => Ok(Collected::All(Arc::new(saved), until_stable)),
        // Each backend runs the data itself.
        Err(error) if !of_file && !args.until_stable && is_of::<NotSavable>(&error) => Ok(Collected::Nothing),
        Err(error) => Err(error),
    }
}

/// Calls `visit` with every file that the command reads.
fn read_files(args: &CalibrateArgs, visit: &mut dyn FnMut(RunFile)) {
    let models = args.models.iter().flat_map(|model| RunFile::read_model("float model", model));
    models.for_each(&mut *visit);
    data::files(&args.data, &mut |path| visit(RunFile::new("calibration data", path)));
    args.option_files().into_iter().chain(args.backends.files()).for_each(visit);
}
