//! The command line. Errors go to stderr, results to stdout; with `--json` stdout holds one object.

mod backends;
mod calibrate;
mod check;
mod compare;
mod export;
mod inspect;
mod mixed;
mod options;
mod prepare;
mod summary;

use crate::diag::{Exit, hint_of};
use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use serde::Serialize;

/// Version of the objects that `--json` prints; the sidecar has its own.
const JSON_VERSION: &str = "1.0";

/// Post-training quantizer for ONNX: float model in, Q/DQ model and a sidecar of scales out.
#[derive(Debug, Parser)]
#[command(name = "mqq", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Quantize models for a backend, with calibration data
    Calibrate(Box<calibrate::Args>),
    /// Say what would be quantized and why, without data
    Inspect(inspect::Args),
    /// List the backends, or print one backend's resolved table
    Backends(backends::Args),
    /// Write the float model as the backend will see it: opset, constants, batch normalization
    Prepare(prepare::Args),
    /// Write other tools' formats from a sidecar, without data
    Export(export::Args),
    /// Compare a quantized model with its float model on data
    Compare(compare::Args),
    /// Check models with Q/DQ, from anyone, against the rules of a backend
    Check(check::Args),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Runs the command. Errors in what was asked for give [`Exit::Usage`].
///
/// # Errors
/// If it fails; the message is ready for people.
pub fn run(cli: Cli) -> Result<Exit> {
    let outcome = run_command(cli);
    match outcome {
        Err(error) if error.is::<Misused>() => {
            print_error(&error);
            Ok(Exit::Usage)
        }
        outcome => outcome,
    }
}

/// Marks an error as one of the command line, not of the work.
#[derive(Debug)]
struct Misused(anyhow::Error);

impl std::fmt::Display for Misused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for Misused {}

/// An error of the command line.
fn misused(error: anyhow::Error) -> anyhow::Error {
    anyhow::Error::new(Misused(error))
}

/// What a command over several models prints with `--json`.
#[derive(Debug, Serialize)]
struct Report<R> {
    schema_version: &'static str,
    backend: String,
    results: Vec<R>,
}

impl<R: Serialize> Report<R> {
    fn new(backend: &str) -> Report<R> {
        Report { schema_version: JSON_VERSION, backend: backend.to_string(), results: Vec::new() }
    }

    fn print(&self) -> Result<()> {
        println!("{}", serde_json::to_string_pretty(self)?);
        Ok(())
    }
}

fn run_command(cli: Cli) -> Result<Exit> {
    match cli.command {
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Backends(args) => backends::run(&args),
        Command::Prepare(args) => prepare::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "mqq", &mut std::io::stdout());
            Ok(Exit::Done)
        }
    }
}

/// `error: smallest place first: found, expected`, then the hint on a line of its own.
pub fn print_error(error: &anyhow::Error) {
    eprintln!("{}", show_error(error));
}

fn show_error(error: &anyhow::Error) -> String {
    let error = error.downcast_ref::<Misused>().map_or(error, |Misused(error)| error);
    let hints: String = hint_of(error).lines().map(|hint| format!("\nhint: {hint}")).collect();
    format!("error: {error:#}{}{hints}", if hints.is_empty() { "" } else { "\n" })
}
