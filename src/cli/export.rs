//! `mqq export`: converts a sidecar to other tools' formats, without data.

use super::files::{DataOption, check_models, ensure_readable};
use super::options::PrintArgs;
use super::print::{self, out};
use super::{Failure, complete};
use crate::diag::{Exit, WithHint};
use crate::export::{FORMATS, Format, by_name, float_model};
use crate::onnx::{RunFile, Staged, check_outputs};
use crate::sidecar::Sidecar;
use anyhow::{Context, anyhow};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  mqq export --list
  mqq export resnet50.tensorrt.json --format trt-cache
  mqq export resnet50.openvino.json --format openvino-fq --model resnet50.onnx";

/// Arguments of `mqq export`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// The sidecar: the JSON file that `mqq calibrate` wrote
    #[arg(value_name = "SIDECAR", required_unless_present = "list")]
    sidecar: Option<PathBuf>,
    /// Format to write (see --list)
    #[arg(long, short, value_name = "NAME", required_unless_present = "list", add = complete::formats())]
    format: Option<String>,
    /// File to write [default: the sidecar's name with the format's ending]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The float model, for formats that contain a graph or constants
    #[arg(long, short, value_name = "MODEL.onnx")]
    model: Option<PathBuf>,
    /// List the formats
    #[arg(long, conflicts_with_all = ["sidecar", "format", "output", "model"])]
    list: bool,
    #[command(flatten)]
    print: PrintArgs,
}

/// Runs the command.
pub(super) fn run(args: &ExportArgs) -> Result<Exit, Failure> {
    let (Some(path), Some(name)) = (&args.sidecar, &args.format) else {
        return list(&args.print);
    };
    let format = by_name(name).map_err(|error| match name.split(',').count() {
        1 => Failure::Usage(error),
        n => {
            Failure::Usage(anyhow!("--format names {n} formats, expected one").hint("run `mqq export` once per format"))
        }
    })?;
    let output = args.output.clone().unwrap_or_else(|| path.with_extension(format.suffix));
    if format.needs_model && args.model.is_none() {
        let error = anyhow!("format `{name}` needs the float model too");
        return Err(Failure::Usage(error.hint("pass it with --model")));
    }
    check_models(&args.model, DataOption::HasNot).map_err(Failure::Usage)?;
    args.model.iter().chain([path]).try_for_each(|input| ensure_readable(input))?;
    let read = |visit: &mut dyn FnMut(RunFile)| {
        let model = args.model.iter().flat_map(|model| RunFile::read_model("float model", model));
        model.chain([RunFile::new("sidecar", path)]).for_each(visit);
    };
    let written = [RunFile::new(format!("format `{name}`"), &output)];
    let _made = check_outputs(&written, read).map_err(Failure::Usage)?;
    let sidecar = Sidecar::read(path)?;
    let model = match &args.model {
        Some(model) if format.needs_model => Some(float_model(&sidecar, model)?),
        _ => None,
    };
    let bytes = format.bytes(&sidecar, model.as_ref()).with_context(|| format!("`{}`", path.display()))?;
    Staged::write(&bytes, &output)?;
    let (path, output) = (path.display().to_string(), output.display().to_string());
    if args.print.json {
        print::object(json!({ "sidecar": path, "format": format.name, "output": output, "n_bytes": bytes.len() }))?;
    } else if !args.print.quiet {
        out!("{path} -> {output}");
    }
    Ok(Exit::Done)
}

fn list(print: &PrintArgs) -> Result<Exit, Failure> {
    if print.json {
        let listed = |format: &Format| {
            let Format { name, description, suffix, needs_model, .. } = format;
            json!({ "name": name, "description": description, "suffix": suffix, "needs_model": needs_model })
        };
        print::object(json!({ "formats": FORMATS.iter().map(listed).collect::<Vec<_>>() }))?;
    } else {
        FORMATS.iter().for_each(|format| out!("{:<18} {}", format.name, format.description));
    }
    Ok(Exit::Done)
}
