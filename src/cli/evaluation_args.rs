//! Options that `mqq compare` and `mqq eval` share: the data, its labels, and their use.

use super::Failure;
use super::options::{PreprocessArgs, SampleArgs, ShapeArgs, TaskArgs};
use crate::data::{self, BoxLabels, Labels};
use crate::onnx::RunFile;
use crate::pipeline::SampleData;
use anyhow::Result;
use clap::ValueHint;
use std::path::{Path, PathBuf};

/// Evaluation data, and the options of its use.
#[derive(Debug, clap::Args)]
pub struct EvaluationArgs {
    /// Evaluation data, as for calibrate
    #[arg(long, short, required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    data: Vec<String>,
    /// Labels, as for compare
    #[arg(long, value_name = "FILE|folders")]
    pub labels: Option<PathBuf>,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    samples: SampleArgs,
    #[command(flatten)]
    task: TaskArgs,
}

impl EvaluationArgs {
    /// Returns the data without labels and, if the preprocessing is that of the calibration of `model`, the path of the
    /// sidecar that it is from.
    ///
    /// # Errors
    /// If an option, or a file of preprocessing or a head, is invalid.
    pub(super) fn resolve(
        &self,
        preprocess: &PreprocessArgs,
        model: &Path,
    ) -> Result<(SampleData<'_>, Option<PathBuf>), Failure> {
        let shapes = self.shape.resolve().map_err(Failure::Usage)?;
        let head = self.task.resolve()?;
        let (preprocessing, sidecar) = preprocess.resolve_for(model)?;
        let data = SampleData {
            sources: &self.data,
            preprocessing,
            limit: self.samples.limit,
            shapes,
            labels: None,
            boxes: None,
            head,
            threads: self.samples.threads.n(),
        };
        Ok((data, sidecar))
    }

    /// Reads the labels into `data`, and checks that the data exists.
    ///
    /// # Errors
    /// As [`read_labels`], or there is no data.
    pub fn read_labels(&self, data: &mut SampleData) -> Result<()> {
        (data.labels, data.boxes) = read_labels(self.labels.as_deref(), &self.data)?;
        data::ensure_found(&self.data, data::BadEntries::Refused)
    }

    /// Calls `visit` with every file that the options name.
    pub fn files(&self, visit: &mut dyn FnMut(RunFile)) {
        data::files(&self.data, &mut |path| visit(RunFile::new("evaluation data", path)));
        let labels = self.labels.iter().map(|path| RunFile::new("labels", path));
        labels.chain(self.task.file()).for_each(visit);
    }
}

/// Reads `--labels`: classes, or boxes from a .json file.
///
/// # Errors
/// If the labels cannot be read.
pub fn read_labels(path: Option<&Path>, data: &[String]) -> Result<(Option<Labels>, Option<BoxLabels>)> {
    let Some(path) = path else { return Ok((None, None)) };
    if path.extension().is_some_and(|ending| ending == "json") {
        return Ok((None, Some(BoxLabels::read(path)?)));
    }
    let labels = match path.to_str() {
        Some("folders") => Labels::of_folders(data),
        _ => Labels::read(path),
    };
    Ok((Some(labels?), None))
}
