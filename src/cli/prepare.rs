//! `mqq prepare`: the float model as the backend will see it, before anything is quantized.

use super::misused;
use super::options::BackendArgs;
use crate::diag::Exit;
use crate::onnx::{Loaded, Staged, load_whole};
use crate::prepare::{check_float, prepare};
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Arguments of `mqq prepare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A float ONNX model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    #[command(flatten)]
    backend: BackendArgs,
    /// The prepared model's path
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Opset to reach, where the backend's minimum is not enough
    #[arg(long, value_name = "N")]
    opset: Option<i64>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<Exit> {
    let scheme = args.backend.resolve().map_err(misused)?;
    super::ensure_apart(&args.model, &args.output)?;
    let name = || format!("`{}`", args.model.display());
    let Loaded { mut model, has_external_data } = load_whole(&args.model)?;
    check_float(&model).with_context(name)?;
    let opset = args.opset.unwrap_or(scheme.min_opset).max(scheme.min_opset);
    let changes = prepare(&mut model, opset).with_context(name)?;
    Staged::model(model, &args.output, has_external_data)?.commit()?;
    println!("{} -> {}", args.model.display(), args.output.display());
    changes.iter().for_each(|change| println!("  {change}"));
    Ok(Exit::Done)
}
