//! Steps that `mqq calibrate` and `mqq solve` share, from requests to written files.

use super::files::{check_report, ensure_onnx};
use super::origin::Origin;
use super::print::{self, Bar, err, out};
use super::quantize_args::QuantizeArgs;
use super::results::{CalibratedModel, RunPaths, Strict};
use super::{Failure, JsonReport};
use crate::diag::{Exit, WithHint, count, file_name};
use crate::export;
use crate::import::ImportedRanges;
use crate::onnx::{RunFile, Staged, encode};
use crate::pipeline::{self, Outcome, Request};
use crate::report::{self, Summary};
use crate::scheme::Scheme;
use crate::sidecar::{QuantizedRecord, Sidecar};
use crate::statistics::{SavedStatistics, UntilStable};
use anyhow::{Context, Result, anyhow};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The request for one backend, and the paths of all models.
pub(super) struct Target {
    pub request: Request,
    pub paths: Vec<RunPaths>,
}

impl Target {
    /// Returns a target for each table, with shared options.
    pub fn all(
        args: &QuantizeArgs,
        tables: Vec<(Scheme, Option<Scheme>)>,
        models: &[PathBuf],
        (output, out_dir): (Option<&Path>, Option<&Path>),
        request: impl Fn(Scheme) -> Result<Request, Failure>,
    ) -> Result<Vec<Target>, Failure> {
        ensure_one_result(args, output, (tables.len(), "backends")).map_err(Failure::Usage)?;
        let target = |(scheme, other): (Scheme, Option<Scheme>)| {
            let first = request(scheme)?;
            let wider = other.map(&request).transpose()?.map(Box::new);
            let request = Request { wider, ..first };
            let paths = paths(args, models, (output, out_dir), &request.scheme).map_err(Failure::Usage)?;
            let mut formats = paths.iter().flat_map(|paths| &paths.emitted);
            formats.try_for_each(|(format, _)| format.ensure_takes(&request.scheme)).map_err(Failure::Usage)?;
            Ok(Target { request, paths })
        };
        tables.into_iter().map(target).collect()
    }

    /// Sets the given ranges of activations.
    pub fn set_ranges(&mut self, ranges: Option<&ImportedRanges>) {
        self.request.ranges = ranges.cloned();
        if let Some(other) = &mut self.request.wider {
            other.ranges = ranges.cloned();
        }
    }

    /// Sets the statistics that replace the data, and the number of their samples if these are not all.
    fn set_saved(&mut self, saved: Option<&Arc<SavedStatistics>>, spread: Option<usize>) {
        let others = self.request.wider.iter_mut().map(|other| &mut other.calibration);
        for calibration in std::iter::once(&mut self.request.calibration).chain(others) {
            (calibration.saved, calibration.spread) = (saved.cloned(), spread);
        }
    }
}

/// The result of collecting statistics of a model's data.
pub(super) enum Collected {
    /// No shared statistics: each backend's run observes the data.
    Nothing,
    /// Statistics of a part of the data, so that nothing can be quantized yet.
    OfPart,
    /// Statistics of all data, or of the samples that `--until-stable` took.
    All(Arc<SavedStatistics>, Option<UntilStable>),
}

/// The quantization of models for targets.
pub(super) struct Quantizing<'a> {
    pub args: &'a QuantizeArgs,
    /// Whether to continue after a model that fails. The other backends of a model are always quantized.
    pub keep_going: bool,
    /// The file of the statistics, for the report.
    pub statistics: Option<&'a Path>,
    /// Returns whether the existing results of a model are kept.
    pub keeps: &'a dyn Fn(&RunPaths) -> bool,
    /// Collects the statistics of a model for the backends whose results are not kept.
    pub collect: &'a dyn Fn(&Path, &[&Request]) -> Result<Collected>,
}

impl Quantizing<'_> {
    /// Quantizes all models and prints the results. Fails if the report cannot be printed. A model that fails shows in
    /// the report and in the exit code instead.
    pub fn run(&self, models: &[PathBuf], mut targets: Vec<Target>) -> Result<Exit, Failure> {
        let print = &self.args.print;
        let names: Vec<&str> = targets.iter().map(|target| target.request.scheme.name.as_str()).collect();
        let mut report = JsonReport { backend: names.join(","), results: Vec::new() };
        let mut exit = Exit::Done;
        for (i, model) in models.iter().enumerate() {
            let (results, after) = self.model(i, model, &mut targets, exit);
            exit = after;
            let failed = results.iter().any(|result| result.error.is_some());
            if results.len() > 1 && !print.quiet && !print.json {
                let results = results.iter().map(serde_json::to_value).collect::<serde_json::Result<Vec<_>>>()?;
                report::table(&results, false).iter().for_each(|line| out!("  {line}"));
            }
            report.results.extend(results);
            if failed && !self.keep_going {
                let n_left = models.len() - i - 1;
                if n_left > 0 && !print.quiet {
                    let left = count(n_left, "model");
                    err!("hint: {left} not run: --keep-going continues after a model that fails");
                }
                break;
            }
        }
        if print.json {
            print::object(&report)?;
        }
        Ok(exit)
    }

    /// Quantizes one model for all targets. Returns the results, and `exit` updated by them.
    fn model(&self, i: usize, model: &Path, targets: &mut [Target], exit: Exit) -> (Vec<CalibratedModel>, Exit) {
        let print = &self.args.print;
        let name = model.display().to_string();
        let of_several = targets.len() > 1;
        let is_kept: Vec<bool> = targets.iter().map(|target| (self.keeps)(&target.paths[i])).collect();
        let left: Vec<&Request> =
            targets.iter().zip(&is_kept).filter(|(_, kept)| !**kept).map(|(target, _)| &target.request).collect();
        let statistics = self.statistics.map(|path| path.display().to_string());
        let mut exit = exit;
        let collected = match left.is_empty() {
            true => Ok(Collected::Nothing),
            false => (self.collect)(model, &left),
        };
        let (saved, until_stable) = match collected {
            Ok(Collected::Nothing) => (None, None),
            Ok(Collected::OfPart) => {
                let done = CalibratedModel { model: name, status: "ok", statistics, ..CalibratedModel::default() };
                return (vec![done], exit);
            }
            Ok(Collected::All(saved, until_stable)) => (Some(saved), until_stable),
            Err(error) => {
                print::error(&error);
                let (failed, exit) = CalibratedModel::failed(name, &error, exit);
                return (vec![failed], exit);
            }
        };
        if let Some(until_stable) = until_stable.as_ref().filter(|_| !print.quiet && !print.json) {
            out!("{name}: {}", until_stable.sentence());
        }
        let spread = until_stable.as_ref().map(|until_stable| until_stable.n_samples);
        let mut results = Vec::new();
        for (target, is_kept) in targets.iter_mut().zip(is_kept) {
            let backend = Some(target.request.scheme.name.clone());
            if is_kept {
                if !print.quiet && !print.json {
                    let for_backend = backend.as_ref().filter(|_| of_several).map(|backend| format!(" for {backend}"));
                    out!("{name}: results{} exist, skipped", for_backend.unwrap_or_default());
                }
                results.push(CalibratedModel { status: "skipped", backend, ..target.paths[i].report() });
                continue;
            }
            let changed = target.paths[i].origin.as_ref().and_then(|origin| origin.differing(&target.paths[i].output));
            if let Some(changed) = changed.filter(|changed| !changed.is_empty() && !print.quiet && !print.json) {
                out!("{name}: {} changed, quantized again", changed.join(" and "));
            }
            if saved.is_some() {
                target.set_saved(saved.as_ref(), spread);
            }
            let quantized = quantize(self.args, &target.request, &target.paths[i]);
            if saved.is_some() {
                target.set_saved(None, None);
            }
            let result = match quantized {
                Ok((summary, n_bytes)) => CalibratedModel {
                    status: "ok",
                    n_bytes: Some(n_bytes),
                    summary: Some(summary),
                    statistics: statistics.clone(),
                    until_stable: until_stable.clone(),
                    ..target.paths[i].report()
                },
                Err(error) => {
                    print::error(&error);
                    let (failed, after) = CalibratedModel::failed(name.clone(), &error, exit);
                    exit = after;
                    failed
                }
            };
            results.push(CalibratedModel { backend, ..result });
        }
        (results, exit)
    }
}

/// Returns the text of a table's `load` with the model's path, which is quoted for a shell where the text does not quote
/// it.
fn with_model(load: &str, model: &Path) -> String {
    let path = model.display().to_string();
    load.replace("{model}", &if load.contains("\"{model}\"") { path } else { report::shell_word(&path) })
}

/// Returns an error if an option names the file of a result, but there are `n` models or backends.
fn ensure_one_result(args: &QuantizeArgs, output: Option<&Path>, (n, what): (usize, &str)) -> Result<()> {
    let of_each = "`mqq report` makes the report of each from its sidecar";
    let options = [("--output", output.is_some(), "use --out-dir"), ("--report", args.report.is_some(), of_each)];
    match options.iter().find(|(_, is_given, _)| *is_given && n > 1) {
        Some((option, _, hint)) => Err(anyhow!("{option} names one file, but there are {n} {what}").hint(*hint)),
        None => Ok(()),
    }
}

/// Returns the output paths of all models.
fn paths(
    args: &QuantizeArgs,
    models: &[PathBuf],
    (output, out_dir): (Option<&Path>, Option<&Path>),
    scheme: &Scheme,
) -> Result<Vec<RunPaths>> {
    ensure_one_result(args, output, (models.len(), "models"))?;
    output.map_or(Ok(()), ensure_onnx)?;
    check_report(args.report.as_deref())?;
    let names = args.emit.as_ref().unwrap_or(&scheme.emit);
    let formats = export::by_names(names.iter().map(String::as_str))?;
    let mut all = Vec::with_capacity(models.len());
    for model in models {
        let output = match (output, out_dir) {
            (Some(output), _) => output.to_path_buf(),
            (None, folder) => {
                let stem = model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                let stem = stem.with_context(|| format!("`{}`: is a directory, expected a file", model.display()))?;
                let name = format!("{stem}.{}.onnx", scheme.name);
                match folder {
                    Some(folder) => folder.join(name),
                    None => model.with_file_name(name),
                }
            }
        };
        let sidecar = output.with_extension("json");
        let emitted = formats.iter().map(|f| (*f, output.with_extension(f.suffix))).collect();
        let tail = (!args.outputs.is_empty()).then(|| output.with_extension("tail.onnx"));
        let report = args.report.clone();
        all.push(RunPaths { model: model.clone(), output, sidecar, tail, emitted, origin: None, report });
    }
    Ok(all)
}

/// Quantizes a model, writes its results and prints a report. Returns the summary and the model's size in bytes. Fails
/// if the model cannot be quantized, or there are warnings with --strict. Then nothing is written.
fn quantize(args: &QuantizeArgs, request: &Request, paths: &RunPaths) -> Result<(Summary, u64)> {
    let start = Instant::now();
    let quiet = args.print.quiet;
    let name = file_name(&paths.model);
    let outcome =
        pipeline::run(&paths.model, request, &|stage, n| Bar::new(n, format!("{name}: {stage}"), quiet).tick())?;
    let mut lines = report::calibration(&outcome, &request.scheme.name, &effort(request));
    let details = if args.verbose { report::details(&outcome) } else { Vec::new() };
    let mut summary = Summary::new(&outcome, &request.scheme.name, 0.0);
    if paths.are_mixed() {
        let (model, sidecar) = (paths.output.display(), paths.sidecar.display());
        summary.warnings.push(format!(
            "`{model}` and `{sidecar}` came from two different runs (perhaps a run was killed): both are replaced"
        ));
    }
    if args.strict && !summary.warnings.is_empty() {
        let strict = Strict { model: paths.model.display().to_string(), warnings: summary.warnings };
        return Err(anyhow::Error::new(strict).hint("without --strict, the model is written despite warnings"));
    }
    let Outcome { model, prepared, tail, has_external_data, mut sidecar, plan, .. } = outcome;
    // Frees memory: the model holds the plan's integers, too.
    drop(plan);
    let mut staged = Staged::model(model.into_model(), &paths.output, has_external_data)?;
    sidecar.quantized = Some(QuantizedRecord { sha256: staged.sha256(&paths.output)? });
    let text = sidecar.to_json();
    staged.add(text.as_bytes(), &paths.sidecar)?;
    if let Some((tail, path)) = tail.as_ref().zip(paths.tail.as_ref()) {
        staged.add(&encode(tail)?, path)?;
    }
    // Parsed from the text, as a later `mqq export` reads it.
    let read = Sidecar::from_json(&text)?;
    for (format, path) in &paths.emitted {
        let bytes = format.bytes(&read, Some(&prepared)).with_context(|| format!("`{}`", paths.model.display()))?;
        staged.add(&bytes, path)?;
    }
    if let Some(origin) = &paths.origin {
        staged.add(origin.text()?.as_bytes(), &Origin::path(&paths.output))?;
    }
    if let Some(path) = &paths.report {
        let document = report::of_sidecar(&read);
        staged.add(report::format_of(path)?.render(&document)?.as_bytes(), path)?;
    }
    staged.commit()?;
    summary.seconds = start.elapsed().as_secs_f64();
    let written = RunFile::written_model("", &paths.output);
    let n_bytes = size_of(&written[..if has_external_data { 2 } else { 1 }]);
    if !quiet {
        for warning in &summary.warnings {
            err!("warning: `{}`: {warning}", paths.model.display());
        }
    }
    if !quiet && !args.print.json {
        lines.push(report::line("sidecar", paths.sidecar.display()));
        lines.extend(paths.tail.iter().map(|tail| report::line("tail", tail.display())));
        lines.extend(paths.report.iter().map(|path| report::line("report", path.display())));
        let formats = paths.emitted.iter();
        lines.extend(formats.map(|(format, path)| report::line(format.name, path.display())));
        let of_float = report::size(size_of(&RunFile::read_model("", &paths.model)));
        lines.push(report::line("size", format_args!("{} (float model {of_float})", report::size(n_bytes))));
        lines.push(report::line("time", format_args!("{:.2} s", summary.seconds)));
        let load = request.scheme.load.as_ref();
        // Without the model's path, it is a sentence about the target.
        let title = |load: &str| if load.contains("{model}") { "load it with" } else { "on the target" };
        lines.extend(load.map(|load| report::line(title(load), with_model(load, &paths.output))));
        out!("{} -> {}", paths.model.display(), paths.output.display());
        lines.iter().chain(&details).for_each(|line| out!("  {line}"));
    }
    Ok((summary, n_bytes))
}

/// Returns the effort in words, such as `1`.
fn effort(request: &Request) -> String {
    let level = request.tune.effort.level();
    let saved = request.calibration.saved.as_ref().filter(|_| request.calibration.data.is_empty());
    match saved {
        Some(saved) if level == 0 && saved.kept.is_empty() => {
            format!("{level} (the statistics hold no samples: --keep-samples keeps some)")
        }
        _ => level.to_string(),
    }
}

/// Returns the size of files in bytes.
pub(super) fn size_of(files: &[RunFile]) -> u64 {
    files.iter().map(|file| std::fs::metadata(&file.path).map_or(0, |metadata| metadata.len())).sum()
}
