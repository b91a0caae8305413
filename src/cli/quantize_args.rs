//! Options that `mqq calibrate` and `mqq solve` share, and the request that is made from them.

use super::complete;
use super::mixed_args::MixedArgs;
use super::options::{AxisArgs, PrintArgs, RARE, SelectArgs, TaskArgs};
use crate::calibrate::CalibrationOptions;
use crate::diag::WithHint;
use crate::heads::HeadRequest;
use crate::observers::{OBSERVERS, ObserverOptions, Spelled, by_spelling, canonical};
use crate::onnx::inputs::Shapes;
use crate::pipeline::Request;
use crate::scheme::{Scheme, WeightStorage};
use crate::tune::{Effort, METHODS, TuningOptions, methods};
use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueHint;
use std::path::PathBuf;

/// Options of the stages after the statistics of the data.
#[derive(Debug, clap::Args)]
pub struct QuantizeArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    /// Quantize up to these tensors; write the rest as a float model
    #[arg(long, value_name = "TENSOR,…", value_delimiter = ',')]
    pub outputs: Vec<String>,
    /// Also write formats of other tools (see `mqq export --list`)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', add = complete::formats())]
    pub emit: Option<Vec<String>>,
    /// Write a report of the run as .html, .md, .txt or .json
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    #[arg(long, value_name = "NAME", help = observer_help(), add = complete::observers())]
    pub observer: Option<String>,
    /// Range observer of weights: one of the above, but not auto
    #[arg(long, value_name = "NAME", add = complete::observers())]
    weight_observer: Option<String>,
    /// Store weights as integer (with DQ) or float (with Q and DQ)
    #[arg(long, value_name = "HOW", value_parser = ["integer", "float"], hide_possible_values = true)]
    weights: Option<String>,
    /// Try only these methods, see below, or none
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', add = complete::methods())]
    methods: Option<Vec<String>>,
    /// Multiply-adds to keep float if accuracy is low [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_negative_numbers = true)]
    rescue: Option<f64>,
    /// Insert no Mul or Add that scales or shifts channels
    #[arg(long)]
    no_insert: bool,
    #[command(flatten)]
    axes: AxisArgs,
    #[command(flatten)]
    pub task: TaskArgs,
    /// Treat warnings as errors: exit code 3, and nothing is written
    #[arg(long)]
    pub strict: bool,
    #[command(flatten)]
    pub print: PrintArgs,
    /// Also print changes of the model, and why nodes stay float
    #[arg(long, short, display_order = RARE)]
    pub verbose: bool,
}

/// The samples of a run, and the options of their use.
pub(super) struct RunData {
    pub effort: String,
    pub shapes: Shapes,
    pub calibration: CalibrationOptions,
    /// Whether ranges are read from a file.
    pub has_ranges: bool,
    pub threads: usize,
}

pub(super) fn effort_levels() -> clap::builder::PossibleValuesParser {
    Effort::LEVELS.iter().map(|(name, _)| *name).collect::<Vec<_>>().into()
}

/// Returns the lists of effort levels and methods for the end of the help.
pub(super) fn effort_help() -> String {
    let levels = Effort::LEVELS.iter().map(|(name, help)| format!("  {name}  {help}\n"));
    let methods = METHODS.iter().map(|method| format!("  {:<17} {}\n", method.name, method.title));
    format!(
        "Effort levels:\n{}\nMethods (--methods), and their names in the output:\n{}",
        levels.collect::<String>(),
        methods.collect::<String>()
    )
}

fn observer_help() -> String {
    let names: Vec<&str> = OBSERVERS.iter().map(|observer| observer.name).collect();
    format!("Range observer: {}", names.join(", "))
}

/// Default share of the multiply-adds that rescue may leave float, 0 to 1.
const RESCUE: f64 = 0.05;

fn percent(text: &str) -> Result<f64> {
    let percent: f64 = text.parse().context("expected a percentage")?;
    ensure!((0.0..=100.0).contains(&percent), "expected 0 to 100 percent");
    Ok(percent)
}

/// Returns the request from the options. The ranges of --ranges-from are not set yet.
pub(super) fn request(
    args: &QuantizeArgs,
    mixed: &MixedArgs,
    data: RunData,
    mut scheme: Scheme,
    mut head: HeadRequest,
) -> Result<Request> {
    let RunData { effort: level, shapes, calibration, has_ranges, threads } = data;
    let has_samples = calibration.has_samples();
    let mixed = mixed.resolve(&mut scheme, has_samples, &mut head)?;
    let storage = match args.weights.as_deref() {
        Some("float") => WeightStorage::Float,
        Some(_) => WeightStorage::Integer,
        None => scheme.weight_storage,
    };
    ensure!(
        has_samples || has_ranges || !scheme.has_ranges(storage),
        anyhow!("--data is missing, expected samples: backend `{}` needs ranges of activations", scheme.name)
            .hint("give a folder of images or arrays, or a file with ranges by --ranges-from")
    );
    let tune = tuning(args, &level, has_samples)?;
    let has_methods = level != "0" && tune.methods.as_ref().is_none_or(|list| !list.is_empty());
    let evaluates = has_samples && (mixed.is_some() || tune.rescue > 0.0 || has_methods);
    ensure!(
        evaluates || head == HeadRequest::default(),
        "--task and --head have no effect, because nothing is evaluated, expected {}, or a goal",
        if has_samples { "methods with --effort 1 or more" } else { "--data" }
    );
    let observers = observers(args, &level, &scheme)?;
    Ok(Request {
        scheme,
        shapes,
        outputs: args.outputs.clone(),
        selection: args.select.resolve()?,
        calibration,
        ranges: None,
        observers,
        tune,
        axes: args.axes.resolve()?,
        head,
        inserts: !args.no_insert,
        sensitivity: args.report.is_some() && level != "0",
        mixed,
        storage,
        threads,
        wider: None,
    })
}

/// Returns the options of tuning: those of the effort level, unless methods or the share of rescue are given.
fn tuning(args: &QuantizeArgs, level: &str, has_samples: bool) -> Result<TuningOptions> {
    let effort = Effort::of(level).context("unknown effort")?;
    let methods: Option<Vec<&'static str>> = match &args.methods {
        None => None,
        Some(list) => Some(methods::names(list).context("--methods")?),
    };
    let asked = [
        ("--methods", methods.as_ref().is_some_and(|methods| !methods.is_empty())),
        ("--rescue", args.rescue.is_some_and(|percent| percent > 0.0)),
    ];
    if let Some((option, _)) = asked.iter().find(|(_, is_asked)| *is_asked) {
        ensure!(level != "0", "{option} with --effort 0, expected 1 or more: effort 0 evaluates no samples");
        ensure!(has_samples, "{option} without --data, expected samples to evaluate");
    }
    let rescue = match args.rescue {
        Some(percent) => percent / 100.0,
        None if level == "0" || methods.is_some() => 0.0,
        None => RESCUE,
    };
    Ok(TuningOptions { effort, methods, rescue })
}

/// Returns the range observers: those of the options, else those of the table.
fn observers(args: &QuantizeArgs, level: &str, scheme: &Scheme) -> Result<ObserverOptions> {
    let observer = |asked: &Option<String>, default: &str| -> Result<_> {
        let spelling = canonical(asked.as_deref().unwrap_or(default));
        Ok(Spelled { observer: by_spelling(&spelling)?, spelling })
    };
    let activation = observer(&args.observer, &scheme.observers.activation)?;
    let weight = observer(&args.weight_observer, &scheme.observers.weight)?;
    ensure!(
        level != "0" || activation.observer.choices.is_empty(),
        "observer `{}` with --effort 0, expected 1 or more: effort 0 evaluates no samples",
        activation.spelling
    );
    ensure!(
        weight.observer.choices.is_empty(),
        "observer `{}` is for activations only, expected another one for weights",
        weight.spelling
    );
    Ok(ObserverOptions { activation, is_given: args.observer.is_some(), weight })
}
