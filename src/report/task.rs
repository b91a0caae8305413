//! What `mqq compare` says of a task: what is left of the float network's results.

use crate::metrics::task::{
    ClassFigures, DetectionFigures, EmbeddingFigures, GateResult, RegressionFigures, SegmentFigures, TaskFigures,
    TaskGate, TaskKind, TaskResult, TextFigures,
};
use crate::pipeline::TaskRequest;
use serde::Serialize;

/// Figures of a task and the bounds that they are held to.
#[derive(Debug, Serialize)]
pub struct TaskReport {
    /// What the model is for.
    pub task: TaskKind,
    /// What a detector's outputs mean, by name or file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Output by output, or one of all of them.
    pub results: Vec<TaskResult>,
    /// Every bound for every result.
    pub gates: Vec<GateResult>,
}

impl TaskReport {
    /// Of the results of a task, each held to every bound.
    pub fn new(request: &TaskRequest, results: Vec<TaskResult>, gates: &[TaskGate]) -> TaskReport {
        let judged = results.iter().flat_map(|result| gates.iter().map(|gate| gate.judge(result))).collect();
        let head = request.head.as_ref().map(|head| head.name.clone());
        TaskReport { task: request.kind, head, results, gates: judged }
    }

    /// Whether a bound is missed.
    pub fn misses(&self) -> bool {
        self.gates.iter().any(|gate| !gate.met)
    }
}

/// A line about one result.
pub fn task(report: &TaskReport, result: &TaskResult) -> String {
    let of = result.output.iter().chain(&report.head).map(|name| format!(" {name}")).collect::<String>();
    let mut parts = Vec::new();
    if result.n_not_finite > 0 {
        parts.push(format!("values that are NaN or infinite in {} samples", result.n_not_finite));
    }
    match &result.figures {
        Some(figures) => parts.extend(figures_of(figures)),
        None => parts.push("not measured".to_string()),
    }
    parts.push(format!("{} samples", result.n_samples));
    format!("{}{of}: {}", report.task.name(), parts.join(", "))
}

/// A line about a bound that is missed.
pub fn missed(gate: &GateResult) -> String {
    let output = gate.output.as_ref().map_or(String::new(), |output| format!("{output}: "));
    let found = match gate.found {
        Some(found) => format!("found {found:.4}"),
        None => "could not be measured".to_string(),
    };
    format!("{output}{} {} is missed: {found}", gate.gate, gate.bound)
}

fn figures_of(figures: &TaskFigures) -> Vec<String> {
    match figures {
        TaskFigures::Classify(figures) => classes(figures),
        TaskFigures::Detect(figures) => boxes(figures),
        TaskFigures::Segment(figures) => areas(figures),
        TaskFigures::Embed(figures) => embeddings(figures),
        TaskFigures::Regress(figures) => numbers(figures),
        TaskFigures::Ctc(figures) => texts(figures),
    }
}

fn share(name: &str, value: Option<f64>) -> String {
    value.map_or(format!("{name} not measured"), |value| format!("{name} {value:.3}"))
}

fn percent(name: &str, value: Option<f64>) -> String {
    value.map_or(format!("{name} not measured"), |value| format!("{name} {value:.1} %"))
}

fn classes(figures: &ClassFigures) -> Vec<String> {
    let both =
        |name: &str, [float, quantized]: [f64; 2]| format!("{name} float {float:.2} %, quantized {quantized:.2} %");
    let mut parts = vec![percent("agreement", figures.agreement_percent)];
    parts.extend(figures.top5_agreement_percent.map(|value| percent("among the first five", Some(value))));
    parts.extend(figures.top1_percent.map(|values| both("top-1", values)));
    parts.extend(figures.top5_percent.map(|values| both("top-5", values)));
    parts
}

fn boxes(figures: &DetectionFigures) -> Vec<String> {
    let DetectionFigures { n_float, n_quantized, n_matched, .. } = figures;
    vec![
        share("F1", figures.f1),
        share("mean IoU", figures.mean_iou),
        share("distance of scores", figures.score_distance),
        format!("{n_float} boxes in float and {n_quantized} in quantized with {n_matched} the same"),
    ]
}

fn areas(figures: &SegmentFigures) -> Vec<String> {
    let mut parts = vec![share("mIoU", figures.miou)];
    let worst = figures.worst.as_ref().filter(|_| figures.n_classes > 1);
    parts.extend(worst.map(|worst| format!("worst class {} {:.3}", worst.class, worst.iou)));
    parts.push(percent("agreement", figures.agreement_percent));
    parts
}

fn embeddings(figures: &EmbeddingFigures) -> Vec<String> {
    let EmbeddingFigures { mean_cosine, min_cosine, neighbours, n_vectors } = figures;
    let least = min_cosine.map_or(String::new(), |least| format!(" (lowest {least:.4})"));
    let cosine = mean_cosine.map_or("cosine not measured".to_string(), |mean| format!("cosine {mean:.4}{least}"));
    vec![cosine, share("neighbours kept", *neighbours), format!("{n_vectors} vectors")]
}

fn numbers(figures: &RegressionFigures) -> Vec<String> {
    let show = |name: &str, value: Option<f64>| {
        value.map_or(format!("{name} not measured"), |value| format!("{name} {value:.4}"))
    };
    let mut parts = vec![show("correlation", figures.correlation), show("centred error", figures.centred_error)];
    let worst = figures.worst.as_ref().filter(|_| figures.n_channels > 1);
    parts.extend(worst.map(|worst| format!("worst channel {} {:.4}", worst.channel, worst.centred_error)));
    if figures.n_constant > 0 {
        parts.push(format!("{} of {} channels constant in float", figures.n_constant, figures.n_channels));
    }
    parts
}

fn texts(figures: &TextFigures) -> Vec<String> {
    let TextFigures { n_texts, n_letters, .. } = figures;
    vec![
        share("edit distance", figures.edit_distance),
        percent("same texts", figures.same_percent),
        format!("{n_texts} texts with {n_letters} letters in float"),
    ]
}
