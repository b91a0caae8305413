//! The command line: parse, run, exit code.

use clap::Parser;
use mqq::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let exit = mqq::cli::run(cli).unwrap_or_else(|error| {
        mqq::cli::print_error(&error);
        mqq::diag::Exit::Failed
    });
    ExitCode::from(exit as u8)
}
