//! Checks of the files on a command line, before any work.

use crate::data;
use crate::diag::WithHint;
use crate::onnx::Staged;
use crate::report::{Document, format_of};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Whether a command has the option `--data`, whose pattern the shell expands if it is not quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataOption {
    Has,
    HasNot,
}

/// The hint at numbers that the shell has split.
pub const COMMAS: &str = "separate the numbers of an option by commas, without spaces: --mean 0.485,0.456,0.406";

/// Returns an error if a data file or a number is given as a model, or a model is given twice.
pub fn check_models<'a>(models: impl IntoIterator<Item = &'a PathBuf>, option: DataOption) -> Result<()> {
    let mut places = BTreeSet::new();
    for model in models {
        let hint = || if option == DataOption::Has { quote(model) } else { String::new() };
        ensure!(!data::is_data(model), anyhow!("`{}` is data, expected a model", model.display()).hint(hint()));
        let is_number = model.to_str().is_some_and(|text| text.parse::<f64>().is_ok()) && !model.exists();
        ensure!(!is_number, anyhow!("`{}` is a number, expected a model", model.display()).hint(COMMAS));
        ensure!(
            places.insert(model.canonicalize().unwrap_or_else(|_| model.clone())),
            "`{}` is given twice, expected different models",
            model.display()
        );
    }
    Ok(())
}

/// Returns the hint to quote the pattern that the shell has expanded to `found`.
pub fn quote(found: &Path) -> String {
    let ending = found.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
    let pattern = found.with_file_name(format!("*{}", ending.unwrap_or_default()));
    format!("quote the pattern, so that the shell does not expand it: --data '{}'", pattern.display())
}

/// Endings of models in other formats than ONNX.
const OTHER_FORMATS: &[&str] = &[
    "bin", "caffemodel", "dlc", "engine", "espdl", "h5", "keras", "mlmodel", "mlpackage", "mnn", "ort", "param", "pb",
    "plan", "pt", "pth", "rknn", "tflite", "tmfile", "trt", "xml",
];

/// Returns an error if the path of a written model has the ending of another format.
pub fn ensure_onnx(output: &Path) -> Result<()> {
    let ending = output.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    ensure!(
        !OTHER_FORMATS.contains(&ending.as_str()),
        anyhow!("--output is `{}`, expected the ending .onnx: an ONNX model is written", output.display())
            .hint("docs/targets.md tells how each target loads or converts the model")
    );
    Ok(())
}

/// Returns an error if a file does not exist or cannot be opened.
pub fn ensure_readable(path: &Path) -> Result<()> {
    let name = || format!("`{}`", path.display());
    let metadata = fs::metadata(path).with_context(name)?;
    ensure!(!metadata.is_dir(), "`{}`: is a directory, expected a file", path.display());
    if metadata.is_file() {
        File::open(path).with_context(name)?;
    }
    Ok(())
}

/// Returns an error if the ending of the file of `--report` names no format.
pub fn check_report(path: Option<&Path>) -> Result<()> {
    path.map_or(Ok(()), |path| format_of(path).map(drop)).context("--report")
}

/// Writes a report in the format that the file's ending names.
pub fn write_report(path: &Path, document: &Document) -> Result<()> {
    Staged::write(format_of(path)?.render(document)?.as_bytes(), path)
}
