//! `mqq report`: makes a report from a sidecar.

use super::files::ensure_readable;
use super::print::{STDOUT, out};
use super::{Failure, complete};
use crate::diag::Exit;
use crate::onnx::{RunFile, Staged, check_outputs};
use crate::report::{FORMATS, format_by_name, format_of, of_sidecar};
use crate::sidecar::Sidecar;
use anyhow::Context;
use clap::ValueHint;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  mqq report resnet50.tensorrt.json
  mqq report resnet50.tensorrt.json --output report.html";

/// Arguments of `mqq report`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// The sidecar: the JSON file that `mqq calibrate` wrote
    #[arg(value_name = "SIDECAR", value_hint = ValueHint::FilePath)]
    sidecar: PathBuf,
    #[arg(long, short, value_name = "NAME", help = format_help(), add = complete::reports())]
    format: Option<String>,
    /// File to write: .html, .md, .txt or .json [default: print the report]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Print the report as JSON on stdout, beside a file that --output writes
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

fn format_help() -> String {
    let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
    format!("Format: {} [default: by the file's ending, else text]", names.join(", "))
}

/// Runs the command.
pub(super) fn run(args: &ReportArgs) -> Result<Exit, Failure> {
    let format = match (&args.format, &args.output) {
        (Some(name), _) => format_by_name(name).context("--format"),
        (None, Some(path)) => format_of(path).context("--output"),
        (None, None) => format_by_name(if args.json { "json" } else { "text" }),
    };
    let format = format.map_err(Failure::Usage)?;
    ensure_readable(&args.sidecar)?;
    let document = of_sidecar(&Sidecar::read(&args.sidecar)?);
    let report = format.render(&document)?;
    let Some(output) = &args.output else {
        match format.name {
            // The page has escaped the names from files; its libraries must not be escaped.
            "html" => STDOUT.page(report.trim_end()),
            _ => STDOUT.lines(report.trim_end()),
        }
        return Ok(Exit::Done);
    };
    let read = |visit: &mut dyn FnMut(RunFile)| visit(RunFile::new("sidecar", &args.sidecar));
    let _made = check_outputs(&[RunFile::new("report", output)], read).map_err(Failure::Usage)?;
    Staged::write(report.as_bytes(), output)?;
    match args.json {
        true => STDOUT.lines(format_by_name("json")?.render(&document)?.trim_end()),
        false => out!("{} -> {}", args.sidecar.display(), output.display()),
    }
    Ok(Exit::Done)
}
