//! Bounds that figures are held to.

use super::{TaskFigures, TaskKind, TaskResult};
use serde::Serialize;

/// A figure that can be held to a bound.
#[derive(Debug)]
pub struct Measure {
    /// The command line's option for the bound.
    pub option: &'static str,
    /// The task that has it.
    pub task: TaskKind,
    /// Whether the bound is the least that is good; otherwise it is the most.
    pub is_least: bool,
    /// What bounds there are.
    pub range: [f64; 2],
    found: fn(&TaskFigures) -> Option<f64>,
}

/// A line per figure: option, task, least or most, lowest and highest bound, where the figure is.
macro_rules! measures {
    ($($option:literal, $task:ident, $is_least:literal, $range:expr, $key:ident;)*) => {
        &[$(Measure {
            option: $option,
            task: TaskKind::$task,
            is_least: $is_least,
            range: $range,
            found: |figures| match figures {
                TaskFigures::$task(figures) => figures.$key,
                _ => None,
            },
        }),*]
    };
}

/// All figures that can be held to a bound.
pub const MEASURES: &[Measure] = measures![
    "--min-agreement", Classify, true, [0.0, 100.0], agreement_percent;
    "--max-top1-drop", Classify, false, [-100.0, 100.0], top1_drop;
    "--min-f1", Detect, true, [0.0, 1.0], f1;
    "--min-iou", Detect, true, [0.0, 1.0], mean_iou;
    "--min-miou", Segment, true, [0.0, 1.0], miou;
    "--min-cosine", Embed, true, [-1.0, 1.0], mean_cosine;
    "--min-neighbours", Embed, true, [0.0, 1.0], neighbours;
    "--min-correlation", Regress, true, [-1.0, 1.0], correlation;
    "--max-centred-error", Regress, false, [0.0, f64::MAX], centred_error;
    "--max-edit-distance", Ctc, false, [0.0, f64::MAX], edit_distance;
];

/// A figure's bound.
#[derive(Debug, Clone, Copy)]
pub struct TaskGate {
    /// The figure.
    pub measure: &'static Measure,
    /// Its bound.
    pub bound: f64,
}

/// Whether a bound is met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateResult {
    /// The option of the bound.
    pub gate: &'static str,
    /// ONNX name; absent where the figure is of several outputs together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The bound.
    pub bound: f64,
    /// The figure; absent where it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<f64>,
    /// Never where a sample has values that are NaN or infinite, or nothing could be measured.
    pub met: bool,
}

impl TaskGate {
    /// Whether `result` meets the bound.
    pub fn judge(&self, result: &TaskResult) -> GateResult {
        let found = result.figures.as_ref().and_then(self.measure.found);
        let meets = |found: f64| if self.measure.is_least { found >= self.bound } else { found <= self.bound };
        GateResult {
            gate: self.measure.option,
            output: result.output.clone(),
            bound: self.bound,
            found,
            met: result.n_not_finite == 0 && found.is_some_and(meets),
        }
    }
}
