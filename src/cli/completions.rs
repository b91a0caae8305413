//! `mqq completions`: prints the completion script of a shell.

use super::complete::VARIABLE;
use super::{Failure, print};
use crate::diag::Exit;
use anyhow::Context;
use clap_complete::Shell;
use clap_complete::env::Shells;

/// Arguments of `mqq completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mqq completions bash > mqq.bash")]
pub struct CompletionsArgs {
    /// Name of the shell
    pub shell: Shell,
    /// Print the script in a JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let (shells, name) = (Shells::builtins(), args.shell.to_string());
    let completer = shells.completer(&name).with_context(|| format!("shell `{name}` has no completion"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "mqq", "mqq", "mqq", &mut script).context("stdout")?;
    let script = String::from_utf8_lossy(&script);
    match args.json {
        true => print::object(serde_json::json!({ "shell": name, "script": script }))?,
        false => print::STDOUT.lines(script.trim_end()),
    }
    Ok(Exit::Done)
}
