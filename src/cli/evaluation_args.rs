//! Options that `mqq compare`, `mqq eval` and `mqq doctor` share: the data, its labels, and their use.

use super::Failure;
use super::options::{PreprocessArgs, SampleArgs, ShapeArgs, TaskArgs};
use crate::data::{self, BoxLabels, Labels, Preprocessing};
use crate::onnx::RunFile;
use crate::pipeline::SampleData;
use anyhow::Result;
use clap::ValueHint;
use std::path::{Path, PathBuf};

/// The use of samples that run without quantization.
#[derive(Debug, clap::Args)]
pub struct RunSampleArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    samples: SampleArgs,
    #[command(flatten)]
    task: TaskArgs,
}

impl RunSampleArgs {
    /// Returns the samples of `sources`, without labels. Fails if an option or the file of a head is invalid.
    pub(super) fn resolve<'a>(
        &self,
        sources: &'a [String],
        preprocessing: Preprocessing,
    ) -> Result<SampleData<'a>, Failure> {
        Ok(SampleData {
            sources,
            preprocessing,
            limit: self.samples.limit,
            shapes: self.shape.resolve().map_err(Failure::Usage)?,
            labels: None,
            boxes: None,
            head: self.task.resolve()?,
            threads: self.samples.threads.n(),
        })
    }

    /// Returns the head's file; `None` for a built-in head.
    pub fn file(&self) -> Option<RunFile> {
        self.task.file()
    }
}

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
    samples: RunSampleArgs,
}

impl EvaluationArgs {
    /// Returns the data without labels and, if the preprocessing is that of the calibration of `model`, the path of the
    /// sidecar that it is from. Fails if an option, or a file of preprocessing or a head, is invalid.
    pub(super) fn resolve(
        &self,
        preprocess: &PreprocessArgs,
        model: &Path,
    ) -> Result<(SampleData<'_>, Option<PathBuf>), Failure> {
        let (preprocessing, sidecar) = preprocess.resolve_for(model)?;
        Ok((self.samples.resolve(&self.data, preprocessing)?, sidecar))
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
        labels.chain(self.samples.file()).for_each(visit);
    }
}

/// Reads `--labels`: classes, or boxes from a .json file. Fails if the labels cannot be read.
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
