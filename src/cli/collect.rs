//! Statistics of the data that `mqq calibrate` collects, and the options that save them.

use super::Failure;
use super::complete;
use super::files::ensure_readable;
use super::options::{StaticArgs, TableArgs, whole};
use super::print::{Bar, out};
use super::quantize_args::QuantizeArgs;
use crate::backends::BUILT_IN;
use crate::diag::{count, file_name};
use crate::foreign;
use crate::onnx::{RunFile, Staged};
use crate::pipeline::{self, CollectRequest, Request};
use crate::scheme::Scheme;
use crate::statistics::{SavedStatistics, Shard, UntilStable, read_statistics, statistics_bytes};
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::path::{Path, PathBuf};

/// The file of the statistics, and the statistics that it holds.
#[derive(Debug, Args)]
#[command(next_help_heading = "Statistics of the data, for mqq solve")]
pub struct CollectArgs {
    /// Save statistics of the data in this file
    #[arg(long, value_name = "FILE", conflicts_with = "ranges_from")]
    save_stats: Option<PathBuf>,
    /// Also save what these backends need for mqq solve (all: every backend)
    #[arg(long = "for", value_name = "NAME,…", value_delimiter = ',', requires = "save_stats", add = complete::backends())]
    backends: Vec<String>,
    /// Also save N whole samples, which `mqq solve` needs for effort 1 and above
    #[arg(long, value_name = "N", requires = "save_stats", default_value = "0", hide_default_value = true, value_parser = whole, allow_negative_numbers = true)]
    keep_samples: usize,
    /// Use only samples I, I+N, I+2N, … (I is 0 to N-1); write no model
    #[arg(long, value_name = "I/N", requires = "save_stats", value_parser = shard, allow_hyphen_values = true, conflicts_with_all = ["output", "out_dir", "emit", "report", "strict", "skip_existing"])]
    shard: Option<Shard>,
    /// Continue from the file of an interrupted run, if it exists
    #[arg(long, requires = "save_stats")]
    resume: bool,
}

fn shard(text: &str) -> Result<Shard> {
    let parts = text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    let (index, of) = parts.context("expected I/N, for instance 0/4")?;
    ensure!(index < of, "expected I below N, for instance 0/4 to 3/4");
    Ok(Shard { index, of })
}

impl CollectArgs {
    /// Returns the file of the statistics.
    pub fn path(&self) -> Option<&Path> {
        self.save_stats.as_deref()
    }

    /// Returns whether only the statistics of a part of the data are collected.
    pub fn is_part(&self) -> bool {
        self.shard.is_some()
    }

    /// Returns the file of the statistics with its role.
    pub fn written(&self) -> Option<RunFile> {
        self.path().map(|path| RunFile::new("statistics", path))
    }

    /// Checks that the options fit the models and the data. Fails if statistics are saved and there are several models,
    /// or no data.
    pub fn check(&self, n_models: usize, has_data: bool) -> Result<()> {
        let Some(path) = self.path() else { return Ok(()) };
        let found = || format!("--save-stats names one file, `{}`", path.display());
        ensure!(n_models == 1, "{}, but there are {n_models} models", found());
        ensure!(has_data, "{}, but --data is missing", found());
        Ok(())
    }

    /// Returns the tables of `--for` whose tensors are observed, without those of the run's own backends.
    fn tables(&self, run: &[&Request], fixed: &StaticArgs) -> Result<Vec<(Scheme, Option<Scheme>)>> {
        let is_all = self.backends.iter().any(|name| name == "all");
        let all = BUILT_IN.iter().map(|(name, _)| name.to_string());
        let names: Vec<String> = if is_all { all.collect() } else { self.backends.clone() };
        let mut tables = Vec::with_capacity(names.len());
        let is_of_run = |name: &&String| run.iter().any(|request| request.scheme.name == **name);
        for name in names.iter().filter(|name| !is_of_run(name)) {
            let error = |error: Failure| match error {
                Failure::Usage(error) | Failure::Failed(error) => error,
            };
            tables.push(fixed.apply_to_both(tables_of(name).map_err(error)?));
        }
        Ok(tables)
    }

    /// Checks that each backend of `--for` has a valid table. Fails if there is no backend of a name, or its table is
    /// invalid.
    pub(super) fn check_tables(&self) -> Result<(), Failure> {
        self.backends.iter().filter(|name| *name != "all").try_for_each(|name| tables_of(name).map(drop))
    }
}

/// Returns the table of a backend of `--for` and the table of wider types that may replace it, without --switch and
/// --set: they apply to the run's own backends only.
fn tables_of(name: &str) -> Result<(Scheme, Option<Scheme>), Failure> {
    TableArgs::default().tables(name).map_err(|error| match error {
        Failure::Usage(error) => Failure::Usage(error.context("--for")),
        Failure::Failed(error) => Failure::Failed(error.context("--for")),
    })
}

/// Collects the statistics of a model for all `requests`. With --save-stats, saves them at intervals and at the end.
/// Without it, backends that the model cannot be prepared for are left out if there are several. With `until_stable`,
/// it stops once more samples change no range by a step.
///
/// # Errors
/// If the model, the data or earlier statistics cannot be used, or the file cannot be written.
pub fn collect(
    args: &CollectArgs,
    requests: &[&Request],
    fixed: &StaticArgs,
    model: &Path,
    quantize: &QuantizeArgs,
    until_stable: bool,
) -> Result<(SavedStatistics, Option<UntilStable>)> {
    let (path, request) = (args.path(), requests.first().context("internal error: no backend")?);
    let wider = |request: &Request| request.wider.as_ref().map(|other| other.scheme.clone());
    let mut tables: Vec<_> = requests.iter().map(|it| (it.scheme.clone(), wider(it))).collect();
    tables.extend(args.tables(requests, fixed)?);
    let resumed = path.filter(|path| args.resume && path.exists()).map(read).transpose()?;
    let collected = CollectRequest {
        tables,
        needs_all: path.is_some() || requests.len() == 1,
        runs_again: path.is_some() || requests.iter().any(|request| request.runs_again()),
        observer: quantize.observer.as_ref().map(|_| request.observers.activation.observer),
        shapes: &request.shapes,
        outputs: &request.outputs,
        selection: &request.selection,
        calibration: &request.calibration,
        until_stable: until_stable.then(|| request.tune.effort.n_samples(usize::MAX)),
        shard: args.shard.unwrap_or(Shard::WHOLE),
        n_kept: args.keep_samples,
        resumed,
        threads: request.threads,
    };
    let mut keep = |saved: &SavedStatistics| -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        Staged::write(&statistics_bytes(saved)?, path)
    };
    let name = file_name(model);
    let quiet = quantize.print.quiet;
    let (saved, until_stable) = pipeline::collect(model, collected, &mut keep, &|stage, n| {
        Bar::new(n, format!("{name}: {stage}"), quiet).tick()
    })?;
    if let Some(path) = path.filter(|_| args.is_part() && !quiet && !quantize.print.json) {
        let part = args.shard.map_or(String::new(), |shard| format!("shard {shard}, "));
        out!("{} -> {}: {part}{}", model.display(), path.display(), count(saved.hashes.len(), "sample"));
    }
    Ok((saved, until_stable))
}

/// Reads a file of statistics. Fails if it cannot be read or used. The message starts with the path.
pub fn read(path: &Path) -> Result<SavedStatistics> {
    let name = || format!("`{}`", path.display());
    ensure_readable(path)?;
    let bytes = foreign::read(path).with_context(name)?;
    read_statistics(&bytes).with_context(name)
}
