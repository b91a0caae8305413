//! The report of `mqq eval`.

use super::{count, task};
use crate::metrics::{AGREEMENT, COCO_MAP, Figure, NonFinite, TOP1};
use crate::pipeline::{LABELLED_TOP5, ModelEvaluation, OutputValues};
use crate::tune::{EvaluatedTask, n_float_boxes};
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;

/// The report on one model.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct EvaluationReport {
    /// Number of samples.
    pub n_samples: usize,
    /// The outputs.
    pub outputs: Vec<OutputEvaluation>,
    /// The task, if it is known.
    pub task: Option<TaskEvaluation>,
}

/// The report on an output.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct OutputEvaluation {
    /// ONNX name.
    pub tensor: String,
    /// Share of rows whose top class is the label, in percent; absent without labels.
    pub top1_percent: Option<f64>,
    /// Share of rows whose label is among the top five classes, in percent; absent without labels, or with up to five
    /// classes.
    pub top5_percent: Option<f64>,
    /// Lowest and highest finite value.
    pub range: Option<[f32; 2]>,
    /// Number of values.
    pub n_values: usize,
    /// NaN and infinite values.
    pub non_finite: Option<NonFinite>,
    /// Number of classes; absent if the output is not class scores.
    pub n_classes: Option<usize>,
    /// Share of the rows by their top class, in percent; classes without rows are left out.
    pub classes: Option<BTreeMap<usize, f64>>,
}

/// The report on the task.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct TaskEvaluation {
    /// The task and the head.
    #[serde(flatten)]
    pub evaluated: EvaluatedTask,
    /// COCO's mAP; absent without boxes as labels.
    pub coco_map: Option<f64>,
    /// Number of boxes found; absent if the task is not detection.
    pub n_found: Option<usize>,
}

/// Returns the report.
pub fn evaluation(evaluated: &ModelEvaluation) -> EvaluationReport {
    let comparison = &evaluated.comparison;
    let (top1, scores) = (comparison.measured.figures(TOP1), comparison.measured.figures(AGREEMENT));
    let figure = |figures: &[Option<Figure>], i: usize| figures.get(i).cloned().flatten();
    let names = comparison.measured.prepared().outputs();
    let of_output = |(i, (name, values)): (usize, (&String, &OutputValues))| {
        let is_scores = figure(&scores, i).is_some() || figure(&top1, i).is_some();
        let n_rows: usize = values.classes.values().sum();
        let shares = values.classes.iter().map(|(&class, &n)| (class, 100.0 * n as f64 / n_rows as f64));
        OutputEvaluation {
            tensor: name.clone(),
            top1_percent: figure(&top1, i).map(|figure| figure.value),
            top5_percent: values.top5_percent(),
            range: values.range,
            n_values: values.n_values,
            non_finite: comparison.non_finite[i].float.clone(),
            n_classes: values.n_classes.filter(|_| is_scores),
            classes: (is_scores && n_rows > 0).then(|| shares.collect()),
        }
    };
    EvaluationReport {
        n_samples: comparison.n_samples,
        outputs: names.iter().zip(&evaluated.outputs).enumerate().map(of_output).collect(),
        task: task(comparison).map(|task| TaskEvaluation {
            evaluated: task.evaluated,
            coco_map: task.coco_map.map(|[_, map]| map),
            // Without a box there is no figure that counts them.
            n_found: task.found.map(|found| found.quantized.n_found).or_else(|| n_float_boxes(&comparison.measured)),
        }),
    }
}

/// Returns the lines of the report: one for each output, and one on the task.
pub fn evaluation_lines(report: &EvaluationReport) -> Vec<String> {
    let output = |output: &OutputEvaluation| {
        let mut parts = Vec::new();
        if let Some(NonFinite { n_values, first_sample, .. }) = &output.non_finite {
            let n = count(*n_values, "value");
            parts.push(format!("NaN or infinite: {n}, first for `{first_sample}`"));
        }
        parts.extend(output.top1_percent.map(|value| format!("{} {}", TOP1.title, TOP1.with_unit(value))));
        parts.extend(
            output.top5_percent.map(|value| format!("{} {}", LABELLED_TOP5.title, LABELLED_TOP5.with_unit(value))),
        );
        parts.extend(output.range.map(|[min, max]| format!("{min:.4} to {max:.4}")));
        if let (Some(n), Some(classes)) = (output.n_classes, &output.classes) {
            let most = classes.iter().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
            let most = most.map(|(class, share)| format!(", most often {class} ({share:.1} %)"));
            parts.push(format!("{} of {n} classes found{}", classes.len(), most.unwrap_or_default()));
        }
        format!("{}: {}, {}", output.tensor, parts.join(", "), count(report.n_samples, "sample"))
    };
    let mut lines: Vec<String> = report.outputs.iter().map(output).collect();
    if let Some(task) = &report.task {
        let map = task.coco_map.map(|map| format!(", {} {}", COCO_MAP.title, COCO_MAP.with_unit(map)));
        let found = task.n_found.map(|n| format!(", boxes found: {n}"));
        let figures = format!("{}{}", map.unwrap_or_default(), found.unwrap_or_default());
        lines.push(format!("task {}{figures}", task.evaluated.describe()));
    }
    lines
}
