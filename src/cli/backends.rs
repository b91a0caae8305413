//! `mqq backends`: lists the targets and their tables.

use super::options::{RARE, TableArgs};
use super::print::{self, out};
use super::{Failure, complete};
use crate::backends::{BUILT_IN, resolve};
use crate::diag::Exit;
use crate::scheme::Scheme;

const EXAMPLES: &str = "\
Examples:
  mqq backends
  mqq backends tensorrt
  mqq backends onnxruntime --switch full-range-weights --json";

/// Arguments of `mqq backends`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("switches", |arg| arg.requires("name")), mut_arg("sets", |arg| arg.requires("name")))]
pub struct BackendsArgs {
    /// Print the resolved table of this backend
    #[arg(value_name = "NAME|FILE", add = complete::backends())]
    name: Option<String>,
    #[command(flatten)]
    changes: TableArgs,
    /// Print JSON on stdout
    #[arg(long, display_order = RARE)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &BackendsArgs) -> Result<Exit, Failure> {
    match &args.name {
        Some(name) => {
            let scheme = args.changes.table(name)?;
            match args.json {
                true => print::json(&scheme)?,
                false => print::STDOUT.lines(serde_yaml::to_string(&scheme)?.trim_end()),
            }
        }
        None => {
            let schemes: anyhow::Result<Vec<_>> = BUILT_IN.iter().map(|(name, _)| resolve(name)).collect();
            let schemes = schemes?;
            if args.json {
                let entry = |s: &Scheme| serde_json::json!({ "name": s.name, "aliases": s.aliases, "description": s.description });
                let list: Vec<_> = schemes.iter().map(entry).collect();
                print::object(serde_json::json!({ "backends": list }))?;
            } else {
                let width = schemes.iter().map(|scheme| scheme.name.len()).max().unwrap_or(0);
                for scheme in schemes {
                    out!("{:<width$} {}", scheme.name, scheme.description);
                    if !scheme.aliases.is_empty() {
                        out!("{:<width$}   also: {}", "", scheme.aliases.join(", "));
                    }
                    for (switch, what) in &scheme.switches {
                        out!("{:<width$}   --switch {switch}: {}", "", what.description);
                    }
                }
            }
        }
    }
    Ok(Exit::Done)
}
