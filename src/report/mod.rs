//! Reports of a run: JSON for programs, lines for people.
//!
//! In: outcomes of the stages. Out: values for JSON, lines of text, and documents. It prints nothing and decides
//! nothing.

mod calibration;
mod comparison;
mod difference;
mod doctor;
mod document;
mod evaluation;
mod placement;
mod rules;
mod sarif;
mod statistics;
mod table;
mod tensors;

pub use calibration::{Summary, calibration, details, line};
pub use comparison::{GroupReport, OutputReport, TaskReport, channels, comparison, outputs, task, task_lines};
pub use difference::difference_lines;
pub use doctor::DoctorReport;
pub use document::{
    ComparedModels, Document, DocumentFormat, FORMATS, format_by_name, format_of, of_comparison, of_diagnosis,
    of_sidecar,
};
pub use evaluation::{EvaluationReport, OutputEvaluation, TaskEvaluation, evaluation, evaluation_lines};
pub use placement::{PlacementReport, placement};
pub use rules::{Verbosity, findings};
pub use sarif::{CheckedFile, sarif};
pub use statistics::{StatisticsReport, TensorDifference, TensorReport, differences, statistics};
pub use table::{gates, size, table};
pub use tensors::{SwitchAdvice, TensorFigures, TensorsReport, UsefulOptions, shell_word, tensor_lines, tensors};

use crate::diag::{by_count, by_operator, count};
use calibration::title;
use serde::Serialize;

/// Version of the JSON objects' keys; the sidecar has its own version.
const JSON_VERSION: &str = "3.0";

/// Returns a share of the multiply-adds, 0 to 1, as text; not `100.0 %` if some are left out.
fn percent_of_multiply_adds(share: f64) -> String {
    let text = format!("{:.1} %", 100.0 * share);
    if share < 1.0 && text == "100.0 %" { "over 99.9 %".to_string() } else { text }
}

/// A JSON object with the version of its keys.
#[derive(Serialize)]
pub struct JsonObject<T> {
    schema_version: &'static str,
    #[serde(flatten)]
    object: T,
}

impl<T> JsonObject<T> {
    /// Adds the current version to an object.
    pub fn new(object: T) -> JsonObject<T> {
        JsonObject { schema_version: JSON_VERSION, object }
    }
}
