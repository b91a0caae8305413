//! `mqq export`: other tools' formats from a sidecar, without data.

use super::misused;
use crate::diag::Exit;
use crate::emit::{EMITTERS, Sidecar, by_name};
use crate::onnx::{RunFile, Staged, check_outputs};
use crate::pipeline::{emit, prepared_for};
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Arguments of `mqq export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The JSON file that `mqq calibrate` wrote beside the quantized model
    #[arg(value_name = "SIDECAR", required_unless_present = "list")]
    sidecar: Option<PathBuf>,
    /// The format to write (see --list)
    #[arg(long, short, value_name = "NAME", required_unless_present = "list")]
    format: Option<String>,
    /// The file to write [default: the sidecar's name with the format's ending]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The float model that was quantized, for formats that hold a graph or constants
    #[arg(long, short, value_name = "MODEL.onnx")]
    model: Option<PathBuf>,
    /// List the formats
    #[arg(long, exclusive = true)]
    list: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<Exit> {
    let (Some(path), Some(format)) = (&args.sidecar, &args.format) else {
        for emitter in EMITTERS {
            println!("{:<18} {}", emitter.name(), emitter.description());
        }
        return Ok(Exit::Done);
    };
    let emitter = by_name(format).map_err(misused)?;
    let output = args.output.clone().unwrap_or_else(|| path.with_extension(emitter.suffix()));
    let read = || {
        let model = args.model.iter().flat_map(|model| RunFile::read_model("float model", model));
        model.chain([RunFile::new("sidecar", path)]).collect()
    };
    let written = [RunFile::new(format!("format `{format}`"), &output)];
    check_outputs(&written, read, None).map_err(misused)?;
    let name = || format!("`{}`", path.display());
    let text = std::fs::read(path).with_context(name)?;
    let text = String::from_utf8(text).ok().context("is no text, expected a sidecar");
    let sidecar = text.and_then(|text| Sidecar::from_json(&text)).with_context(name)?;
    let model = match &args.model {
        Some(model) if emitter.needs_model() => Some(prepared_for(&sidecar, model)?),
        _ => None,
    };
    let bytes = emit(emitter, &sidecar, model.as_ref()).with_context(name)?;
    let mut staged = Staged::default();
    staged.add(&bytes, &output)?;
    staged.commit()?;
    println!("{} -> {}", path.display(), output.display());
    Ok(Exit::Done)
}
