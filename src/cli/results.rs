//! The files that a run writes for a model, and the model's entry in the JSON report.

use super::ErrorReport;
use super::origin::Origin;
use crate::diag::{Exit, as_type, count, is_of};
use crate::export::Format;
use crate::mixed::{Missed, Mixed};
use crate::onnx::RunFile;
use crate::report::Summary;
use crate::sidecar::Sidecar;
use crate::statistics::UntilStable;
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The paths of one model and of its results.
pub(super) struct RunPaths {
    pub model: PathBuf,
    pub output: PathBuf,
    pub sidecar: PathBuf,
    /// The float model after the tensors of `--outputs`.
    pub tail: Option<PathBuf>,
    pub emitted: Vec<(&'static Format, PathBuf)>,
    /// The origin of the results; `None` without --skip-existing.
    pub origin: Option<Origin>,
    pub report: Option<PathBuf>,
}

impl RunPaths {
    /// Returns the paths of all results.
    fn results(&self) -> impl Iterator<Item = &PathBuf> {
        let emitted = self.emitted.iter().map(|(_, path)| path);
        [&self.output, &self.sidecar].into_iter().chain(&self.tail).chain(&self.report).chain(emitted)
    }

    /// Returns whether all results exist and have this origin, and model and sidecar are of one run.
    pub fn are_up_to_date(&self) -> bool {
        let is_same = |origin: &Origin| origin.differing(&self.output).is_some_and(|differing| differing.is_empty());
        let is_up_to_date = self.results().all(|path| path.exists()) && self.origin.as_ref().is_some_and(is_same);
        is_up_to_date && !self.are_mixed()
    }

    /// Returns whether model and sidecar exist, but come from different runs.
    pub fn are_mixed(&self) -> bool {
        self.output.exists()
            && Sidecar::beside(&self.output).is_some_and(|sidecar| !sidecar.is_sidecar_of(&self.output))
    }

    /// Returns the files that may be written, with their roles: [`RunPaths::results`], external data and the origin.
    pub fn written(&self) -> Vec<RunFile> {
        let of_model = |role: &str| format!("{role} of `{}`", self.model.display());
        let mut written = RunFile::written_model(&of_model("quantized model"), &self.output).to_vec();
        written.push(RunFile::new(of_model("sidecar"), &self.sidecar));
        written.extend(self.tail.iter().map(|tail| RunFile::new(of_model("tail"), tail)));
        written.extend(self.report.iter().map(|report| RunFile::new(of_model("report"), report)));
        for (format, path) in &self.emitted {
            written.push(RunFile::new(of_model(&format!("format `{}`", format.name)), path));
        }
        written.extend(self.origin.iter().map(|_| RunFile::new(of_model("origin"), &Origin::path(&self.output))));
        written
    }

    /// Returns a report with the paths of the model and its results; the caller sets the other fields.
    pub fn report(&self) -> CalibratedModel {
        let emitted = self.emitted.iter();
        CalibratedModel {
            model: self.model.display().to_string(),
            output: Some(self.output.display().to_string()),
            sidecar: Some(self.sidecar.display().to_string()),
            tail: self.tail.as_ref().map(|tail| tail.display().to_string()),
            report: self.report.as_ref().map(|report| report.display().to_string()),
            emitted: emitted.map(|(format, path)| (format.name, path.display().to_string())).collect(),
            ..CalibratedModel::default()
        }
    }
}

/// A model in the JSON report.
#[skip_serializing_none]
#[derive(Default, Serialize)]
pub(super) struct CalibratedModel {
    pub model: String,
    pub backend: Option<String>,
    pub status: &'static str,
    #[serde(flatten)]
    pub error: Option<ErrorReport>,
    pub output: Option<String>,
    pub sidecar: Option<String>,
    pub tail: Option<String>,
    pub report: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub emitted: BTreeMap<&'static str, String>,
    /// Size of the quantized model, in bytes.
    pub n_bytes: Option<u64>,
    /// The file of the statistics.
    pub statistics: Option<String>,
    /// The rounds of samples of `--until-stable`.
    pub until_stable: Option<UntilStable>,
    /// The mixed precision of a missed goal. That of a reached goal is in `summary`.
    pub mixed_precision: Option<Mixed>,
    pub summary: Option<Summary>,
}

impl CalibratedModel {
    /// Returns the report of a failed run, and `exit` updated by it.
    pub fn failed(model: String, error: &anyhow::Error, exit: Exit) -> (CalibratedModel, Exit) {
        let missed = as_type::<Missed>(error).map(|Missed(mixed, _)| (**mixed).clone());
        let is_quality = missed.is_some() || is_of::<Strict>(error);
        let exit = match (is_quality, exit) {
            (true, Exit::Done | Exit::Quality) => Exit::Quality,
            _ => Exit::Failed,
        };
        let failed = CalibratedModel {
            model,
            status: if missed.is_some() { "missed" } else { "failed" },
            error: Some(ErrorReport::of(error)),
            mixed_precision: missed,
            ..CalibratedModel::default()
        };
        (failed, exit)
    }
}

/// The error of a run with `--strict` that ended with warnings.
#[derive(Debug)]
pub(super) struct Strict {
    pub model: String,
    pub warnings: Vec<String>,
}

impl fmt::Display for Strict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let warnings = count(self.warnings.len(), "warning");
        write!(f, "`{}`: {warnings}, expected none with --strict: {}", self.model, self.warnings.join("; "))
    }
}

impl std::error::Error for Strict {}
