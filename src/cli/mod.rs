//! The command line. Errors go to stderr, results to stdout; with `--json` stdout holds one object.

mod backends;
mod calibrate;
mod compare;
mod inspect;
mod options;

use crate::diag::Exit;
use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

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
    Calibrate(calibrate::Args),
    /// Say what would be quantized and why, without data
    Inspect(inspect::Args),
    /// List the backends, or print one backend's resolved table
    Backends(backends::Args),
    /// Compare a quantized model with its float model on data
    Compare(compare::Args),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Runs the command.
///
/// # Errors
/// If it fails; the message is ready for people.
pub fn run(cli: Cli) -> Result<Exit> {
    match cli.command {
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Backends(args) => backends::run(&args),
        Command::Compare(args) => compare::run(&args),
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
    let text = format!("{error:#}");
    match text.split_once("\nhint: ") {
        Some((message, hint)) => format!("error: {message}\n\nhint: {hint}"),
        None => format!("error: {text}"),
    }
}
