//! `mqq stats`: shows, compares and merges saved statistics.

use super::collect::read;
use super::files::ensure_readable;
use super::options::whole;
use super::print::{self, out};
use super::{Failure, complete};
use crate::diag::{Exit, count};
use crate::observers::{Observer, by_spelling};
use crate::onnx::{RunFile, Staged, check_outputs};
use crate::report::{StatisticsReport, TensorDifference, TensorReport, differences, statistics};
use crate::statistics::{merge_shards, statistics_bytes};
use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Commands on saved statistics.
#[derive(Debug, Subcommand)]
pub enum StatsCommand {
    /// Show the statistics of each tensor: values, range, histogram
    Show(ShowArgs),
    /// Show the tensors whose values differ most between two files
    Diff(DiffArgs),
    /// Merge the statistics of all shards, in any order
    Merge(MergeArgs),
}

/// Arguments of `mqq stats show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mqq stats show r.mqqs
  mqq stats show r.mqqs --observer percentile:99.9 --json
Range and share are those of an unsigned 8-bit grid; a backend's grid may have others.")]
pub struct ShowArgs {
    /// A file of statistics
    #[arg(value_name = "STATS")]
    file: PathBuf,
    /// Range observer
    #[arg(long, value_name = "NAME", default_value = "mse", add = complete::observers())]
    observer: String,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

/// Arguments of `mqq stats diff`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --save-stats a.mqqs --shard 0/1
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --scale 1/255 --save-stats b.mqqs --shard 0/1
  mqq stats diff a.mqqs b.mqqs
The distance is 0 to 1: the largest difference between the shares of values below a number.")]
pub struct DiffArgs {
    /// A file of statistics
    #[arg(value_name = "STATS")]
    one: PathBuf,
    /// Another file of statistics
    #[arg(value_name = "OTHER")]
    other: PathBuf,
    /// Maximum number of printed tensors; --json has all
    #[arg(long, value_name = "N", default_value = "20", value_parser = whole)]
    limit: usize,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

/// Arguments of `mqq stats merge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --save-stats s0.mqqs --shard 0/2
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --save-stats s1.mqqs --shard 1/2
  mqq stats merge s0.mqqs s1.mqqs --output all.mqqs
The file has the same bytes as that of one `mqq calibrate --save-stats` over all samples.")]
pub struct MergeArgs {
    /// The statistics of all shards
    #[arg(required = true, value_name = "STATS")]
    files: Vec<PathBuf>,
    /// File to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Print JSON on stdout
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(command: &StatsCommand) -> Result<Exit, Failure> {
    match command {
        StatsCommand::Show(args) => show(args),
        StatsCommand::Diff(args) => diff(args),
        StatsCommand::Merge(args) => merge(args),
    }
}

fn n_bytes(path: &Path) -> Result<usize> {
    let metadata = std::fs::metadata(path).with_context(|| format!("`{}`", path.display()))?;
    Ok(usize::try_from(metadata.len())?)
}

/// Returns the observer, if it has a range of its own.
fn with_range(observer: Observer) -> Result<Observer> {
    ensure!(
        observer.choices.is_empty(),
        "observer `{}` needs samples, expected an observer that needs only statistics",
        observer.name
    );
    Ok(observer)
}

fn show(args: &ShowArgs) -> Result<Exit, Failure> {
    let observer = by_spelling(&args.observer).and_then(with_range).context("--observer").map_err(Failure::Usage)?;
    let report = reported(&args.file, &observer)?;
    if args.json {
        print::object(report)?;
        return Ok(Exit::Done);
    }
    out!("{}", args.file.display());
    out!("  model             {} (SHA-256 {})", report.model, report.model_sha256);
    let part = report.shard.map_or(String::new(), |shard| format!(", shard {shard}"));
    let done = report.n_done.map_or(String::new(), |n_done| format!(", interrupted after {n_done}"));
    out!("  samples           {}, {} left out{part}{done}", report.n_samples, report.n_skipped);
    if let Some(preprocessing) = &report.preprocessing {
        out!("  preprocessing     {preprocessing}");
    }
    out!("  size              {} bytes, {} per tensor", report.n_bytes, report.bytes_per_tensor);
    for prepared in &report.prepared_models {
        let tensors = &prepared.tensors;
        out!("  {} as for {}", count(tensors.len(), "tensor"), prepared.backends.join(", "));
        let figures = |it: &TensorReport| {
            let [min, max] = it.observed.unwrap_or_default();
            let beyond = 100.0 * it.beyond.unwrap_or_default();
            let others = if it.n_non_finite > 0 { format!(", {} not finite", it.n_non_finite) } else { String::new() };
            let values = format!("{} values{others}", it.n_values);
            let range = it.range.map_or("none".to_string(), |[min, max]| format!("{min:.4} to {max:.4}"));
            format!("{values}, {min:.4} to {max:.4}; {}: {range}, {beyond:.3} % beyond", args.observer)
        };
        let figures: Vec<String> = tensors.iter().map(figures).collect();
        let width = width_of(&figures);
        // Names are last, because they may be long.
        for (it, figures) in tensors.iter().zip(&figures) {
            out!("    |{:<24}| {figures:<width$}  {}", it.bars(), it.tensor);
        }
    }
    Ok(Exit::Done)
}

/// Returns the number of characters of the longest text.
fn width_of(texts: &[String]) -> usize {
    texts.iter().map(|text| text.chars().count()).max().unwrap_or(0)
}

fn reported(path: &Path, observer: &Observer) -> Result<StatisticsReport> {
    let saved = read(path)?;
    statistics(&saved, n_bytes(path)?, observer).with_context(|| format!("`{}`", path.display()))
}

#[derive(Serialize)]
struct DifferencesReport {
    differences: Vec<TensorDifference>,
}

fn diff(args: &DiffArgs) -> Result<Exit, Failure> {
    let mut differences = differences(&read(&args.one)?, &read(&args.other)?)?;
    if differences.is_empty() {
        let (one, other) = (args.one.display(), args.other.display());
        return Err(Failure::Failed(anyhow!("`{other}`: has no tensor in common with `{one}`")));
    }
    let n_tensors = differences.len();
    let differs = |it: &&TensorDifference| it.distance != 0.0 || it.observed[0] != it.observed[1];
    let n_different = differences.iter().filter(differs).count();
    if args.json {
        print::object(DifferencesReport { differences })?;
        return Ok(Exit::Done);
    }
    differences.truncate(args.limit);
    if n_different == 0 {
        out!("equal: {} with the same values", count(n_tensors, "tensor"));
        return Ok(Exit::Done);
    }
    out!("other values in {n_different} of {}", count(n_tensors, "tensor"));
    out!("distance: the largest difference between the shares of the values below any number, 0 to 1");
    let range = |range: Option<[f32; 2]>| match range {
        Some([min, max]) => format!("{min:.4} to {max:.4}"),
        None => "no values".to_string(),
    };
    let shown: Vec<&TensorDifference> = differences.iter().filter(differs).collect();
    let ranges: Vec<String> = shown.iter().map(|it| it.observed.map(range).join(" -> ")).collect();
    let width = width_of(&ranges);
    out!("distance {:<width$} tensor", "range");
    for (it, range) in shown.iter().zip(&ranges) {
        out!("{:<8.4} {range:<width$} {}", it.distance, it.tensor);
    }
    Ok(Exit::Done)
}

fn merge(args: &MergeArgs) -> Result<Exit, Failure> {
    args.files.iter().try_for_each(|path| ensure_readable(path))?;
    let read_files = |visit: &mut dyn FnMut(RunFile)| {
        args.files.iter().map(|path| RunFile::new("statistics to merge", path)).for_each(visit);
    };
    let written = [RunFile::new("merged statistics", &args.output)];
    let _made = check_outputs(&written, read_files).map_err(Failure::Usage)?;
    let merged = merge_shards(&args.files, read)?;
    let bytes = statistics_bytes(&merged)?;
    Staged::write(&bytes, &args.output)?;
    let (output, n_bytes) = (args.output.display().to_string(), bytes.len());
    let (n_shards, n_samples) = (args.files.len(), merged.hashes.len());
    match args.json {
        true => print::object(
            json!({ "output": output, "n_shards": n_shards, "n_samples": n_samples, "n_bytes": n_bytes }),
        )?,
        false => out!("{} -> {output}: {}", count(n_shards, "shard"), count(n_samples, "sample")),
    }
    Ok(Exit::Done)
}
