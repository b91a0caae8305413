//! The command line: see [`mqq::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    mqq::cli::main()
}
