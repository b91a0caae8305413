//! The command line: see [`mqq::cli`].

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mqq::aligned::Aligned = mqq::aligned::Aligned;

fn main() -> ExitCode {
    mqq::cli::main()
}
