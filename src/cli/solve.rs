//! `mqq solve`: quantizes from saved statistics, without data.

use super::Failure;
use super::collect::read;
use super::files::{DataOption, check_models, ensure_readable};
use super::mixed_args::MixedArgs;
use super::options::{StaticArgs, TargetsArgs, ThreadArgs};
use super::print::err;
use super::quantize::{Collected, Quantizing, Target};
use super::quantize_args::{QuantizeArgs, RunData, effort_help, effort_levels, request};
use super::results::RunPaths;
use crate::calibrate::CalibrationOptions;
use crate::data::Preprocessing;
use crate::diag::{Exit, WithHint};
use crate::onnx::{RunFile, check_outputs};
use crate::scheme::Scheme;
use anyhow::anyhow;
use clap::ArgGroup;
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --preprocess imagenet --save-stats r.mqqs
  mqq solve resnet50.onnx --stats r.mqqs --backend tensorrt
  mqq solve resnet50.onnx --stats r.mqqs -b tensorrt --observer percentile:99.9 -o p.onnx
The result has the same bytes as that of `mqq calibrate` on the data at the same effort.";

/// Arguments of `mqq solve`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{}\n{EXAMPLES}", effort_help()))]
#[command(group(ArgGroup::new("for_backends").required(true)))]
pub struct SolveArgs {
    /// The float ONNX model whose statistics were saved
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// Statistics of the data, from --save-stats or `mqq stats merge`
    #[arg(long, short, value_name = "FILE")]
    stats: PathBuf,
    #[command(flatten)]
    backends: TargetsArgs,
    /// Path of the quantized model [default: MODEL.BACKEND.onnx]
    #[arg(long, short, value_name = "FILE", conflicts_with = "out_dir")]
    output: Option<PathBuf>,
    /// Folder of the results [default: the folder of the model]
    #[arg(long, value_name = "FOLDER")]
    out_dir: Option<PathBuf>,
    /// Effort, 0 to 3, see below [default: 1 with samples, else 0]
    #[arg(long, value_name = "LEVEL", value_parser = effort_levels(), hide_possible_values = true)]
    effort: Option<String>,
    #[command(flatten)]
    fixed: StaticArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    quantize: QuantizeArgs,
    #[command(flatten)]
    mixed: MixedArgs,
}

/// Runs the command.
pub(super) fn run(args: &SolveArgs) -> Result<Exit, Failure> {
    let tables = args.backends.resolve(&args.fixed)?;
    let head = args.quantize.task.resolve()?;
    check_models([&args.model], DataOption::HasNot).map_err(Failure::Usage)?;
    ensure_readable(&args.model)?;
    let saved = Arc::new(read(&args.stats)?);
    let effort = args.effort.as_deref().unwrap_or(if saved.kept.is_empty() { "0" } else { "1" });
    if effort != "0" && saved.kept.is_empty() {
        let found = format!("--effort {effort}: `{}` keeps no samples, expected some", args.stats.display());
        return Err(Failure::Usage(anyhow!("{found}").hint("collect them with --keep-samples, or use --effort 0")));
    }
    let with = |scheme: Scheme| {
        let data = RunData {
            effort: effort.to_string(),
            shapes: saved.about.shapes.clone(),
            calibration: CalibrationOptions {
                data: Vec::new(),
                preprocessing: Preprocessing::default(),
                limit: None,
                spread: None,
                skip_bad_data: false,
                checks_preprocessing: false,
                saved: Some(saved.clone()),
            },
            has_ranges: false,
            threads: args.threads.n(),
        };
        request(&args.quantize, &args.mixed, data, scheme, head.clone()).map_err(Failure::Usage)
    };
    let named = (args.output.as_deref(), args.out_dir.as_deref());
    let models = std::slice::from_ref(&args.model);
    let targets = Target::all(&args.quantize, tables, models, named, with)?;
    if let Some(warning) = args.threads.warning().filter(|_| !args.quantize.print.quiet) {
        err!("warning: {warning}");
    }
    let written: Vec<RunFile> = targets.iter().flat_map(|target| &target.paths).flat_map(RunPaths::written).collect();
    let _made = check_outputs(&written, |visit| read_files(args, visit)).map_err(Failure::Usage)?;
    let quantizing = Quantizing {
        args: &args.quantize,
        keep_going: false,
        statistics: Some(&args.stats),
        keeps: &|_| false,
        collect: &|_, _| Ok(Collected::All(saved.clone(), None)),
    };
    quantizing.run(models, targets)
}

/// Calls `visit` with every file that the command reads.
fn read_files(args: &SolveArgs, visit: &mut dyn FnMut(RunFile)) {
    let model = RunFile::read_model("float model", &args.model);
    let statistics = [RunFile::new("statistics", &args.stats)];
    model.into_iter().chain(statistics).chain(args.backends.files()).chain(args.quantize.task.file()).for_each(visit);
}
