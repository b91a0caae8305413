//! `mqq diff`: shows how the quantization of two models or sidecars differs.

use super::Failure;
use super::files::ensure_readable;
use super::options::whole;
use super::print::{self, out};
use crate::check::is_quantized;
use crate::diag::{Exit, WithHint};
use crate::difference::{Differences, QuantizedNetwork, differences, of_model, of_sidecar};
use crate::onnx;
use crate::report::difference_lines;
use crate::sidecar::Sidecar;
use anyhow::{Result, anyhow, ensure};
use clap::ValueHint;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `mqq diff`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --effort 0 --out-dir one
  mqq calibrate resnet50.onnx -b tensorrt -d images/ --effort 0 --observer max --out-dir other
  mqq diff one/resnet50.tensorrt.onnx other/resnet50.tensorrt.onnx
  mqq diff one/resnet50.tensorrt.json other/resnet50.tensorrt.onnx --json
The factor is the second scale divided by the first.")]
pub struct DiffModelsArgs {
    /// A quantized model of any tool, or a sidecar
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    one: PathBuf,
    /// Another model or sidecar
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    other: PathBuf,
    /// Maximum number of names of each kind
    #[arg(long, value_name = "N", default_value = "20", value_parser = whole)]
    limit: usize,
    /// End with exit code 3 if something differs
    #[arg(long)]
    fail_on_difference: bool,
    /// Print one JSON object on stdout; it has all names
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DifferencesObject {
    a: String,
    b: String,
    #[serde(flatten)]
    differences: Differences,
}

/// Runs the command.
pub(super) fn run(args: &DiffModelsArgs) -> Result<Exit, Failure> {
    let (one, other) = (read(&args.one)?, read(&args.other)?);
    let differences = differences(&one, &other);
    let exit = if args.fail_on_difference && !differences.is_empty() { Exit::Quality } else { Exit::Done };
    if args.json {
        let [a, b] = [&args.one, &args.other].map(|path| path.display().to_string());
        print::object(DifferencesObject { a, b, differences })?;
    } else {
        out!("{} -> {}", args.one.display(), args.other.display());
        difference_lines(&differences, args.limit).iter().for_each(|line| out!("{line}"));
    }
    Ok(exit)
}

/// Reads a sidecar or a quantized model.
fn read(path: &Path) -> Result<QuantizedNetwork> {
    ensure_readable(path)?;
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(of_sidecar(&Sidecar::read(path)?));
    }
    let model = onnx::load_whole(path)?.model;
    ensure!(
        is_quantized(&model),
        anyhow!("`{}`: has no quantized tensor, expected a quantized model or a sidecar", path.display())
            .hint("`mqq compare` compares a quantized model with its float model")
    );
    Ok(of_model(model))
}
