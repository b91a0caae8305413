//! `mqq calibrate`: the main job.

use super::files::{DataOption, check_models, ensure_readable};
use super::options::{
    AxisArgs, BackendArgs, MixedArgs, PreprocessArgs, PrintArgs, RARE, SampleArgs, SelectArgs, ShapeArgs, StaticArgs,
    TaskArgs,
};
use super::print::{Bar, err, out};
use super::{ErrorReport, Failure, JsonReport, complete, print_error};
use crate::calibrate;
use crate::data::{self, Preprocessing};
use crate::diag::{Exit, WithHint, count, file_name};
use crate::export::{self, Format};
use crate::heads::HeadRequest;
use crate::import;
use crate::mixed::{Missed, Mixed};
use crate::observers::{self, OBSERVERS, Spelled, by_spelling, canonical};
use crate::onnx::{RunFile, Staged, check_outputs, encode};
use crate::pipeline::{self, Outcome, Request};
use crate::report::{self, Summary};
use crate::scheme::{Scheme, WeightStorage};
use crate::sidecar::Sidecar;
use crate::tune::{self, Effort, methods};
use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueHint;
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  mqq calibrate resnet50.onnx --backend tensorrt --data images/ --preprocess imagenet
  mqq calibrate resnet50.onnx -b onnxruntime -d images/ --preprocess imagenet --out-dir quantized
  mqq calibrate resnet50.onnx -b openvino -d images/ --preprocess imagenet --keep-float 4
  mqq calibrate bert.onnx -b onnxruntime-dynamic
Details of all options: docs/guide.md";

/// The end of the help.
fn after_help() -> String {
    let levels = Effort::LEVELS.iter().map(|(name, help)| format!("  {name}  {help}\n"));
    format!("Effort levels:\n{}\n{EXAMPLES}", levels.collect::<String>())
}

/// Arguments of `mqq calibrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
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
    select: SelectArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    fixed: StaticArgs,
    /// Quantize up to these tensors; write the rest as a float tail
    #[arg(long, value_name = "TENSOR,…", value_delimiter = ',')]
    outputs: Vec<String>,
    /// Formats to write besides the sidecar (see `mqq export --list`)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', add = complete::formats())]
    emit: Option<Vec<String>>,
    /// Ranges of activations from a sidecar, cache or encodings file
    #[arg(long, value_name = "FILE")]
    ranges_from: Option<PathBuf>,
    #[arg(long, value_name = "NAME", help = observer_help(), add = complete::observers())]
    observer: Option<String>,
    /// Range observer of weights: one of the above, but not auto
    #[arg(long, value_name = "NAME", add = complete::observers())]
    weight_observer: Option<String>,
    /// Store weights as integer (with DQ) or float (with Q and DQ)
    #[arg(long, value_name = "HOW", value_parser = ["integer", "float"], hide_possible_values = true)]
    weights: Option<String>,
    /// Methods to try instead of the effort's: names, or none
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', add = complete::methods())]
    methods: Option<Vec<String>>,
    /// Share of multiply-adds that rescue may leave float [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    rescue: Option<f64>,
    /// Insert no Mul or Add before layers
    #[arg(long)]
    no_insert: bool,
    #[command(flatten)]
    axes: AxisArgs,
    #[command(flatten)]
    task: TaskArgs,
    /// Do not look whether other pixel values fit the network better
    #[arg(long)]
    no_preprocess_check: bool,
    /// Skip samples that cannot be read
    #[arg(long)]
    skip_bad_data: bool,
    /// Fail with exit code 3 on a warning, and write nothing
    #[arg(long)]
    strict: bool,
    /// Go on after a model that fails; the exit code is still 1
    #[arg(long)]
    keep_going: bool,
    /// Skip models whose results exist
    #[arg(long)]
    skip_existing: bool,
    #[command(flatten)]
    pub print: PrintArgs,
    /// Also print changes of the model, and why nodes stay float
    #[arg(long, short, display_order = RARE)]
    verbose: bool,
    #[command(flatten)]
    preprocess: PreprocessArgs,
    #[command(flatten)]
    mixed: MixedArgs,
}

/// Paths of one model.
pub(super) struct RunPaths {
    pub model: PathBuf,
    pub output: PathBuf,
    pub sidecar: PathBuf,
    /// The float model after the tensors of `--outputs`.
    pub tail: Option<PathBuf>,
    pub emitted: Vec<(&'static Format, PathBuf)>,
}

impl RunPaths {
    /// All results.
    fn results(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.output, &self.sidecar].into_iter().chain(&self.tail).chain(self.emitted.iter().map(|(_, path)| path))
    }

    /// Whether all results exist and are kept.
    fn are_left_alone(&self, args: &CalibrateArgs) -> bool {
        args.skip_existing && self.results().all(|path| path.exists())
    }

    /// [`RunPaths::results`] and possible further files, with their roles.
    fn written(&self) -> Vec<RunFile> {
        let of_model = |role: &str| format!("{role} of `{}`", self.model.display());
        let mut written = RunFile::written_model(&of_model("quantized model"), &self.output).to_vec();
        written.push(RunFile::new(of_model("sidecar"), &self.sidecar));
        written.extend(self.tail.iter().map(|tail| RunFile::new(of_model("tail"), tail)));
        for (format, path) in &self.emitted {
            written.push(RunFile::new(of_model(&format!("format `{}`", format.name)), path));
        }
        written
    }

    /// A report with the model and its results; the caller fills in the rest.
    fn report(&self) -> CalibratedModel {
        let emitted = self.emitted.iter();
        CalibratedModel {
            model: self.model.display().to_string(),
            output: Some(self.output.display().to_string()),
            sidecar: Some(self.sidecar.display().to_string()),
            tail: self.tail.as_ref().map(|tail| tail.display().to_string()),
            emitted: emitted.map(|(format, path)| (format.name, path.display().to_string())).collect(),
            ..CalibratedModel::default()
        }
    }
}

#[skip_serializing_none]
#[derive(Default, Serialize)]
struct CalibratedModel {
    model: String,
    status: &'static str,
    #[serde(flatten)]
    error: Option<ErrorReport>,
    output: Option<String>,
    sidecar: Option<String>,
    tail: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    emitted: BTreeMap<&'static str, String>,
    /// The result of a missed goal; of a met one it is in `summary`.
    mixed_precision: Option<Mixed>,
    summary: Option<Summary>,
}

fn effort_levels() -> clap::builder::PossibleValuesParser {
    Effort::LEVELS.iter().map(|(name, _)| *name).collect::<Vec<_>>().into()
}

fn observer_help() -> String {
    let names: Vec<&str> = OBSERVERS.iter().map(|observer| observer.name).collect();
    format!("Range observer: {}", names.join(", "))
}

/// Default share of the multiply-adds that rescue may leave float.
const RESCUE: f64 = 0.05;

fn percent(text: &str) -> Result<f64> {
    let percent: f64 = text.parse().context("expected a number of percent")?;
    ensure!((0.0..=100.0).contains(&percent), "expected 0 to 100 percent");
    Ok(percent)
}

/// Runs the command.
pub(super) fn run(args: &CalibrateArgs) -> Result<Exit, Failure> {
    let scheme = args.fixed.apply(args.backend.resolve()?);
    let of_transformers = args.backend.of_transformers(&scheme)?.map(|scheme| args.fixed.apply(scheme));
    let preprocessing = args.preprocess.resolve()?;
    let head = args.task.resolve()?;
    let with = |scheme: Scheme| request(args, scheme, preprocessing.clone(), head.clone()).map_err(Failure::Usage);
    let mut request =
        Request { of_transformers: of_transformers.map(with).transpose()?.map(Box::new), ..with(scheme)? };
    let all_paths = paths(args, &request.scheme).map_err(Failure::Usage)?;
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
    let written = all_paths.iter().filter(|paths| !paths.are_left_alone(args));
    if let Some(warning) = args.samples.warning().filter(|_| !args.print.quiet) {
        err!("warning: {warning}");
    }
    let written: Vec<RunFile> = written.flat_map(RunPaths::written).collect();
    let _made = check_outputs(&written, |visit| read_files(args, visit)).map_err(Failure::Usage)?;
    let mut report = JsonReport::new(&request.scheme.name);
    let mut exit = Exit::Done;
    for paths in &all_paths {
        let model = paths.model.display().to_string();
        if paths.are_left_alone(args) {
            if !args.print.quiet && !args.print.json {
                out!("{model}: results exist, skipped");
            }
            report.results.push(CalibratedModel { status: "skipped", ..paths.report() });
            continue;
        }
        match one(args, &request, paths) {
            Ok(summary) => {
                report.results.push(CalibratedModel { status: "ok", summary: Some(summary), ..paths.report() });
            }
            Err(error) => {
                print_error(&error);
                let missed = error.downcast_ref::<Missed>().map(|Missed(mixed)| (**mixed).clone());
                let is_quality = missed.is_some() || error.is::<Strict>();
                exit = match (is_quality, exit) {
                    (true, Exit::Done | Exit::Quality) => Exit::Quality,
                    _ => Exit::Failed,
                };
                report.results.push(CalibratedModel {
                    model,
                    status: if missed.is_some() { "missed" } else { "failed" },
                    error: Some(ErrorReport::of(&error)),
                    mixed_precision: missed,
                    ..CalibratedModel::default()
                });
                if !args.keep_going {
                    break;
                }
            }
        }
    }
    if args.print.json {
        report.print()?;
    }
    Ok(exit)
}

/// The request from the options, without given ranges.
fn request(
    args: &CalibrateArgs,
    mut scheme: Scheme,
    preprocessing: Preprocessing,
    mut head: HeadRequest,
) -> Result<Request> {
    let mixed = args.mixed.resolve(&mut scheme, !args.data.is_empty(), &mut head)?;
    let observer = |asked: &Option<String>, default: &str| -> Result<_> {
        let spelling = canonical(asked.as_deref().unwrap_or(default));
        Ok(Spelled { observer: by_spelling(&spelling)?, spelling })
    };
    let storage = match args.weights.as_deref() {
        Some("float") => WeightStorage::Float,
        Some(_) => WeightStorage::Integer,
        None => scheme.weight_storage,
    };
    ensure!(
        !args.data.is_empty() || args.ranges_from.is_some() || !scheme.has_ranges(storage),
        anyhow!("--data is missing, expected samples: backend `{}` needs ranges of activations", scheme.name)
            .hint("or read ranges from a file: --ranges-from")
    );
    let effort = Effort::of(&args.effort).context("unknown effort")?;
    let methods: Option<Vec<&'static str>> = match &args.methods {
        None => None,
        Some(list) => Some(methods::names(list).context("--methods")?),
    };
    ensure!(
        args.effort != "0" || methods.as_ref().is_none_or(Vec::is_empty),
        "--methods with --effort 0, expected 1 or more: effort 0 evaluates no samples"
    );
    let rescue = match args.rescue {
        Some(percent) => percent / 100.0,
        None if args.effort == "0" || methods.is_some() => 0.0,
        None => RESCUE,
    };
    ensure!(
        args.effort != "0" || rescue == 0.0,
        "--rescue with --effort 0, expected 1 or more: effort 0 evaluates no samples"
    );
    let evaluates =
        mixed.is_some() || rescue > 0.0 || args.effort != "0" && methods.as_ref().is_none_or(|list| !list.is_empty());
    ensure!(
        evaluates || head == HeadRequest::default(),
        "--task and --head: nothing is evaluated, expected methods with --effort 1 or more, or a goal"
    );
    let activation = observer(&args.observer, &scheme.observers.activation)?;
    let weight = observer(&args.weight_observer, &scheme.observers.weight)?;
    ensure!(
        args.effort != "0" || activation.observer.choices.is_empty(),
        "observer `{}` with --effort 0, expected 1 or more: effort 0 evaluates no samples",
        activation.spelling
    );
    ensure!(
        weight.observer.choices.is_empty(),
        "observer `{}` is for activations only, expected another one for weights",
        weight.spelling
    );
    Ok(Request {
        scheme,
        shapes: args.shape.resolve()?,
        outputs: args.outputs.clone(),
        selection: args.select.resolve()?,
        calibration: calibrate::CalibrationOptions {
            data: args.data.clone(),
            preprocessing,
            limit: args.samples.limit,
            skip_bad_data: args.skip_bad_data,
            checks_preprocessing: !args.no_preprocess_check,
        },
        ranges: None,
        observers: observers::ObserverOptions { activation, is_given: args.observer.is_some(), weight },
        tune: tune::TuningOptions { effort, methods, rescue },
        axes: args.axes.resolve()?,
        head,
        inserts: !args.no_insert,
        mixed,
        storage,
        threads: args.samples.threads(),
        of_transformers: None,
    })
}

/// The output paths of all models.
fn paths(args: &CalibrateArgs, scheme: &Scheme) -> Result<Vec<RunPaths>> {
    check_models(&args.models, DataOption::Has)?;
    ensure!(
        args.output.is_none() || args.models.len() == 1,
        anyhow!("--output names one file, but there are {} models", args.models.len()).hint("use --out-dir")
    );
    let names = args.emit.as_ref().unwrap_or(&scheme.emit);
    let formats = export::by_names(names.iter().map(String::as_str))?;
    let mut all = Vec::with_capacity(args.models.len());
    for model in &args.models {
        let output = match (&args.output, &args.out_dir) {
            (Some(output), _) => output.clone(),
            (None, folder) => {
                let stem = model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                let stem = stem.with_context(|| format!("`{}` is not a file name", model.display()))?;
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
        all.push(RunPaths { model: model.clone(), output, sidecar, tail, emitted });
    }
    Ok(all)
}

/// Visits every file that is read.
fn read_files(args: &CalibrateArgs, visit: &mut dyn FnMut(RunFile)) {
    let models = args.models.iter().flat_map(|model| RunFile::read_model("float model", model));
    let ranges = args.ranges_from.iter().map(|path| RunFile::new("ranges to import", path));
    models.for_each(&mut *visit);
    data::files(&args.data, &mut |path| visit(RunFile::new("calibration data", path)));
    let named = args.preprocess.file().into_iter().chain(args.task.file());
    ranges.chain(args.backend.files()).chain(named).for_each(visit);
}

/// A run with `--strict` that ended with warnings.
#[derive(Debug)]
struct Strict {
    model: String,
    warnings: Vec<String>,
}

impl fmt::Display for Strict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let warnings = count(self.warnings.len(), "warning");
        write!(f, "`{}`: {warnings}, expected none with --strict: {}", self.model, self.warnings.join("; "))
    }
}

impl std::error::Error for Strict {}

fn one(args: &CalibrateArgs, request: &Request, paths: &RunPaths) -> Result<Summary> {
    let start = Instant::now();
    let quiet = args.print.quiet;
    let name = file_name(&paths.model);
    let outcome =
        pipeline::run(&paths.model, request, &|stage, n| Bar::new(n, format!("{name}: {stage}"), quiet).tick())?;
    let mut lines = report::calibration(&outcome, &request.scheme.name);
    let details = if args.verbose { report::details(&outcome) } else { Vec::new() };
    let mut summary = Summary::new(&outcome, &request.scheme.name, 0.0);
    if args.strict && !summary.warnings.is_empty() {
        return Err(Strict { model: paths.model.display().to_string(), warnings: summary.warnings }.into());
    }
    let Outcome { model, prepared, tail, has_external_data, sidecar, .. } = outcome;
    let mut staged = Staged::model(model.into_model(), &paths.output, has_external_data)?;
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
    staged.commit()?;
    summary.seconds = start.elapsed().as_secs_f64();
    if !quiet {
        for warning in &summary.warnings {
            err!("warning: `{}`: {warning}", paths.model.display());
        }
    }
    if !quiet && !args.print.json {
        lines.push(report::line("sidecar", paths.sidecar.display()));
        lines.extend(paths.tail.iter().map(|tail| report::line("tail", tail.display())));
        let formats = paths.emitted.iter();
        lines.extend(formats.map(|(format, path)| report::line(format.name, path.display())));
        lines.push(report::line("time", format_args!("{:.2} s", summary.seconds)));
        let load = request.scheme.load.as_ref();
        let load = load.map(|load| load.replace("{model}", &paths.output.display().to_string()));
        lines.extend(load.map(|load| report::line("load it with", load)));
        out!("{} -> {}", paths.model.display(), paths.output.display());
        lines.iter().chain(&details).for_each(|line| out!("  {line}"));
    }
    Ok(summary)
}
