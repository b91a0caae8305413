//! Reports of a run: JSON for programs, lines for people.
//!
//! In: outcomes of the stages. Out: values that serialize, lines of text, and documents. It prints nothing and decides nothing.

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
pub use table::table;
pub use tensors::{SwitchAdvice, TensorFigures, TensorsReport, tensor_lines, tensors};

use crate::diag::count;
use calibration::title;
use std::collections::BTreeMap;

/// Text such as `7 Conv, 2 Add`, most frequent first.
fn by_operator<'a>(op_types: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    op_types.for_each(|op_type| *counts.entry(op_type).or_default() += 1);
    by_count(counts.into_iter().collect())
}

/// Text such as `7 Conv, 2 Add`, most frequent first.
fn by_count(mut counts: Vec<(&str, usize)>) -> String {
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let counts = counts.iter().map(|(op_type, n)| format!("{n} {op_type}"));
    counts.collect::<Vec<_>>().join(", ")
}
