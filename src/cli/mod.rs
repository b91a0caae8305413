//! The command line. Errors go to stderr, results to stdout; with `--json`, stdout holds one object.
//!
//! Arguments are checked before the first model is read. An invalid command line ends with [`Exit::Usage`]; a named
//! file that cannot be read ends with [`Exit::Failed`].

mod backends;
mod calibrate;
mod check;
mod collect;
mod compare;
mod complete;
mod completions;
mod diff;
mod doctor;
mod eval;
mod evaluation_args;
mod export;
mod files;
mod given_options;
mod inspect;
mod junit;
mod mixed_args;
mod options;
mod origin;
mod other_tools;
mod prepare;
mod presets;
mod print;
mod quantize;
mod quantize_args;
mod report;
mod results;
mod solve;
mod stats;
mod zoo;
mod zoo_file;
mod zoo_gates;
mod zoo_process;

use crate::data;
use crate::diag::{Exit, WithHint, brief, hint_or_general, is_near, place_of, quoted, set_command, text_of};
use crate::guard;
use anyhow::Context;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::env::CompleteEnv;
use print::err;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

const FIRST_STEPS: &str = "\
First steps:
  mqq inspect resnet50.onnx --backend onnxruntime
  mqq calibrate resnet50.onnx --backend onnxruntime --data images/ --preprocess imagenet
  mqq compare resnet50.onnx resnet50.onnxruntime.onnx --data images/ --preprocess imagenet
`mqq backends` lists the targets, `mqq presets` the kinds of preprocessing.";

const COMPARE_EXAMPLES: &str = "\
Figures:
  overlap  share of the float result that is kept: 1 is best, 0.9 or more is good
  SQNR     signal-to-quantization-noise ratio of the outputs, in dB: higher is better
  cosine   of the angle between both outputs: 1 is best
The lowest overlap is that of a group of channels, with their positions; for class scores, a channel
is a class. Channels of rare large values, such as scores of boxes, are a group of their own.
Other figures: docs/compare.md, docs/tasks.md

Examples:
  mqq compare resnet50.onnx resnet50.tensorrt.onnx --data images/ --preprocess imagenet
  mqq compare resnet50.onnx resnet50.tensorrt.onnx -d images/ --preprocess imagenet --min-sqnr 20";

/// Post-training quantizer for ONNX: writes a Q/DQ model and a sidecar with its scales.
#[derive(Debug, Parser)]
#[command(name = "mqq", version, max_term_width = 100, after_help = FIRST_STEPS)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Quantize models for a backend, with calibration data
    #[command(visible_alias = "quantize")]
    Calibrate(Box<calibrate::CalibrateArgs>),
    /// Quantize from statistics of --save-stats; needs no data
    Solve(Box<solve::SolveArgs>),
    /// Show, compare or merge saved statistics
    #[command(subcommand)]
    Stats(stats::StatsCommand),
    /// Examine a model and its data before quantization
    Doctor(Box<doctor::DoctorArgs>),
    /// Show what would be quantized and why; needs no data
    Inspect(inspect::InspectArgs),
    /// List the backends, or print the table of one
    Backends(backends::BackendsArgs),
    /// List the presets of --preprocess
    Presets(presets::PresetsArgs),
    /// Write the prepared float model: opset upgraded, constants and batch normalization folded
    Prepare(prepare::PrepareArgs),
    /// Convert a sidecar to another tool's format; needs no data
    Export(export::ExportArgs),
    /// Make a report from a sidecar: a page, Markdown, text or JSON
    Report(report::ReportArgs),
    /// Compare a quantized model with its float model on data
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(Box<compare::CompareArgs>),
    /// Evaluate one model on data: accuracy with labels, else ranges and classes
    Eval(Box<eval::EvalArgs>),
    /// Compare the scales and types of two quantized models or sidecars
    Diff(diff::DiffModelsArgs),
    /// Check quantized models, from mqq or another tool, against a backend's rules
    Check(check::CheckArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write man pages to a folder
    Man {
        /// An existing folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

/// Parses the arguments, runs the command, prints its result and returns the exit code. If a shell asks for
/// completions, prints only the completions.
pub fn main() -> ExitCode {
    CompleteEnv::with_factory(Cli::command).var(complete::VARIABLE).complete();
    guard::install(|message, hint| print_failed(&anyhow::anyhow!("{message}").hint(hint)));
    // Threads inherit the signals that the guard has blocked, so it comes first.
    let thread = Builder::new().name("main".to_string()).stack_size(STACK).spawn(parse_and_run);
    match thread {
        // Panics are caught and reported where they arise.
        Ok(thread) => thread.join().unwrap_or(ExitCode::FAILURE),
        // The system refuses further threads.
        Err(_) => parse_and_run(),
    }
}

/// Size of the stack in bytes. That of the first thread is the limit of `ulimit -s`.
const STACK: usize = 8 << 20;

fn parse_and_run() -> ExitCode {
    let command = std::env::args_os().nth(1).filter(|name| Cli::command().find_subcommand(name).is_some());
    command.iter().for_each(|name| set_command(&name.to_string_lossy()));
    let exit = match Cli::try_parse() {
        Ok(cli) => guarded(cli),
        Err(mut answer) => {
            mend_tips(&mut answer);
            let exit = print::answer(&answer);
            let pattern = expanded_pattern().filter(|_| answer.kind() == ErrorKind::UnknownArgument);
            let hint = pattern.map(|found| files::quote(&found)).unwrap_or_default();
            if !hint.is_empty() {
                err!("hint: {hint}");
            }
            if exit != Exit::Done && json_is_asked() {
                let text = answer.to_string();
                let text = text.split("\n\n").collect::<Vec<_>>();
                let tips = text
                    .iter()
                    .skip(1)
                    .flat_map(|part| part.lines())
                    .filter_map(|line| line.trim().strip_prefix("tip: "));
                let hints: Vec<&str> = tips.chain(Some(hint.as_str()).filter(|hint| !hint.is_empty())).collect();
                let error = text[0].trim_start_matches("error: ").replace('\n', " ");
                print_failure(&anyhow::anyhow!("{error}").hint(hints.join("\n")));
            }
            exit
        }
    };
    ExitCode::from(print::finish(exit) as u8)
}

/// Removes the parser's tips to pass an unknown option as a value, and of an option that is not near. Adds tips if other
/// commands have this option, if other quantizers have it, and if an unknown command is a model.
fn mend_tips(answer: &mut clap::Error) {
    let tips = match answer.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips,
        _ => Vec::new(),
    };
    let mut tips: Vec<StyledStr> = tips.into_iter().filter(|tip| !tip.to_string().starts_with("to pass ")).collect();
    let unknown = match answer.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) if answer.kind() == ErrorKind::UnknownArgument => option.clone(),
        _ => String::new(),
    };
    if let Some(long) = unknown.strip_prefix("--") {
        let of_other_tool = other_tools::tip(&unknown);
        if let Some(ContextValue::String(similar)) = answer.get(ContextKind::SuggestedArg) {
            let similar = similar.trim_start_matches('-');
            let is_meant = is_near(long, similar) || similar.starts_with(long) || long.starts_with(similar);
            if !is_meant || of_other_tool.is_some() {
                answer.remove(ContextKind::SuggestedArg);
                // The parser's usage has the similar option.
                let mut program = Cli::command();
                program.build();
                let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
                let usage = usage_of(&mut program, arguments);
                answer.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
            }
        }
        let commands = commands_with(&Cli::command(), long);
        if !commands.is_empty() {
            tips.push(format!("{unknown} is an option of {}", quoted(commands, ", ")).into());
        }
        tips.extend(of_other_tool.map(StyledStr::from));
    } else if unknown.parse::<f64>().is_ok() {
        tips.push(files::COMMAS.into());
    }
    if let Some(ContextValue::String(command)) = answer.get(ContextKind::InvalidSubcommand) {
        tips.extend(other_tools::command_tip(command).map(StyledStr::from));
    }
    if !tips.is_empty() {
        answer.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

/// Returns the usage of the command that the arguments begin with.
fn usage_of(command: &mut clap::Command, mut arguments: impl Iterator<Item = String>) -> StyledStr {
    let Some(name) = arguments.next() else { return command.render_usage() };
    match command.find_subcommand_mut(&name) {
        Some(below) => usage_of(below, arguments),
        None => command.render_usage(),
    }
}

/// Returns the commands with the option `--long`, such as `mqq stats show`.
fn commands_with(command: &clap::Command, long: &str) -> Vec<String> {
    let has_option = command.get_arguments().any(|argument| argument.get_long() == Some(long));
    let own = has_option.then(|| command.get_name().to_string());
    let below = command.get_subcommands().flat_map(|below| commands_with(below, long));
    own.into_iter().chain(below.map(|below| format!("{} {below}", command.get_name()))).collect()
}

/// Returns the second of two adjacent data files in the arguments of a command with `--data`. The shell has probably
/// expanded a pattern there.
fn expanded_pattern() -> Option<PathBuf> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if !paths.iter().any(|path| path.to_string_lossy().starts_with("--data") || path == Path::new("-d")) {
        return None;
    }
    let is_data = |path: &PathBuf| data::is_data(path);
    let both = paths.windows(2).find(|pair| pair.iter().all(is_data))?;
    both.last().cloned()
}

fn json_is_asked() -> bool {
    std::env::args_os().any(|arg| arg == "--json")
}

/// Prints an error, with `--json` also as JSON.
fn print_failed(error: &anyhow::Error) {
    print::error(error);
    if json_is_asked() {
        print_failure(error);
    }
}

/// Runs the command. A panic becomes an error like others; it is a bug, or a thread that the system refused.
fn guarded(cli: Cli) -> Exit {
    static MESSAGE: Mutex<String> = Mutex::new(String::new());
    std::panic::set_hook(Box::new(|info| {
        *MESSAGE.lock().unwrap_or_else(PoisonError::into_inner) = info.to_string();
    }));
    std::panic::catch_unwind(|| run(cli)).unwrap_or_else(|_| {
        let message = MESSAGE.lock().unwrap_or_else(PoisonError::into_inner).replace('\n', " ");
        print_failed(&anyhow::anyhow!("internal error: {message}"));
        Exit::Failed
    })
}

fn run(cli: Cli) -> Exit {
    let (error, exit) = match run_command(cli) {
        Ok(exit) => return exit,
        Err(Failure::Usage(error)) => (error, Exit::Usage),
        Err(Failure::Failed(error)) => (error, Exit::Failed),
    };
    print_failed(&error);
    exit
}

/// Prints the error of a command that failed as a whole, as JSON.
fn print_failure(error: &anyhow::Error) {
    // An object of strings can always be written as JSON.
    let _ = print::object(ErrorReport::of(error));
}

/// The error that ends a command early.
#[derive(Debug)]
enum Failure {
    /// The command line is wrong.
    Usage(anyhow::Error),
    /// Something could not be read, done or written.
    Failed(anyhow::Error),
}

impl<E> From<E> for Failure
where
    anyhow::Error: From<E>,
{
    fn from(error: E) -> Failure {
        Failure::Failed(error.into())
    }
}

/// The `--json` output of a command over several models.
#[derive(Debug, Serialize)]
struct JsonReport<R> {
    backend: String,
    results: Vec<R>,
}

/// An error in a JSON report.
#[derive(Debug, Serialize)]
struct ErrorReport {
    error: String,
    /// The file, node or tensor that the error is about.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl ErrorReport {
    fn of(error: &anyhow::Error) -> ErrorReport {
        let text = text_of(error);
        let hint = Some(hint_or_general(error));
        let place = place_of(&text).map(|place| brief(place).into_owned());
        ErrorReport { place, hint, error: brief(&text).into_owned() }
    }
}

fn run_command(cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Solve(args) => solve::run(&args),
        Command::Stats(command) => stats::run(&command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Backends(args) => backends::run(&args),
        Command::Presets(args) => presets::run(&args),
        Command::Prepare(args) => prepare::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man { folder } => {
            clap_mangen::generate_to(Cli::command(), &folder).with_context(|| format!("`{}`", folder.display()))?;
            Ok(Exit::Done)
        }
    }
}
