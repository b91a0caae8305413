//! The report of `mqq compare` on the outputs.

use super::count;
use crate::metrics::{
    AGREEMENT, COCO_MAP, COSINE, ChannelGroup, EQUAL, Figure, FoundCounts, MAX_DB, MAX_ERROR, METRICS, Metric,
    NonFinite, OVERLAP, OutputGroups, SQNR, TOP1, TOP1_DROP,
};
use crate::pipeline::Comparison;
use crate::tune::EvaluatedTask;
use serde::Serialize;
use serde_json::{Map, Number, Value};
use serde_with::skip_serializing_none;

/// The report on one output.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct OutputReport {
    /// ONNX name.
    pub tensor: String,
    /// SQNR over all samples, in dB. Absent for equal outputs; -200 if a value is NaN or infinite, or there are no
    /// values.
    pub sqnr_db: Option<f64>,
    /// Largest absolute difference of a value; absent if a value is NaN or infinite.
    pub max_difference: Option<f64>,
    /// Share of rows of class scores with the same top class in both models, in percent; absent if the output is not
    /// class scores.
    pub agreement_percent: Option<f64>,
    /// Share of rows whose top class is the label, in percent, of the float and of the quantized model; absent without
    /// labels.
    pub top1_percent: Option<[f64; 2]>,
    /// Number of samples.
    pub n_samples: usize,
    /// NaN and infinite values where the float model has finite ones.
    pub non_finite: Option<NonFinite>,
    /// NaN and infinite values of the float model, which make a comparison impossible.
    pub float_non_finite: Option<NonFinite>,
    /// Figures of the output's metrics, by the metric's name.
    pub metrics: Map<String, Value>,
    /// The channel axis that the overlap uses; absent for one channel.
    pub axis: Option<usize>,
    /// The overlap of each group of channels.
    pub groups: Vec<GroupReport>,
    /// Whether the output holds rows of boxes that a TopK or non-maximum suppression chooses.
    #[serde(skip)]
    pub is_selected: bool,
}

/// The overlap of a group of channels.
#[derive(Debug, Clone, Serialize)]
pub struct GroupReport {
    /// The group.
    #[serde(flatten)]
    pub group: ChannelGroup,
    /// Its overlap.
    pub overlap: f64,
}

/// The report on the task of the network.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct TaskReport {
    /// The task and the head.
    #[serde(flatten)]
    pub evaluated: EvaluatedTask,
    /// Figures by the metric's name; a metric that was not measured is absent.
    pub metrics: Map<String, Value>,
    /// The detections of both networks; absent if the task is not detection.
    pub found: Option<FoundReport>,
    /// COCO's mAP of the float and of the quantized model; absent without boxes as labels.
    pub coco_map: Option<[f64; 2]>,
}

/// The detections of both networks.
#[derive(Debug, Clone, Serialize)]
pub struct FoundReport {
    /// Detections of the float network.
    pub float: FoundCounts,
    /// Detections of the quantized network.
    pub quantized: FoundCounts,
}

/// Returns the report on the task; `None` if the task is not known.
pub fn task(comparison: &Comparison) -> Option<TaskReport> {
    let head = comparison.head.as_ref()?;
    let task = head.head.task();
    // Outputs with NaN or infinite values cannot be decoded.
    let is_known = comparison.non_finite.iter().all(|counts| !counts.any());
    let of_task = METRICS.iter().filter(|metric| metric.task == Some(task) && is_known);
    let figures: Vec<(&Metric, Figure)> = of_task
        .filter_map(|metric| Some((metric, comparison.measured.figures(*metric).into_iter().flatten().next()?)))
        .collect();
    let number =
        |(metric, figure): &(&Metric, Figure)| Some((metric.name.to_string(), Number::from_f64(figure.value)?.into()));
    let mut found = figures.iter().filter_map(|(_, figure)| figure.found.clone());
    Some(TaskReport {
        evaluated: EvaluatedTask::new(head),
        metrics: figures.iter().filter_map(number).collect(),
        coco_map: figures
            .iter()
            .find_map(|(metric, figure)| (**metric == COCO_MAP).then_some([figure.float?, figure.value])),
        found: found.next().map(|[float, quantized]| FoundReport { float, quantized }),
    })
}

/// Returns the lines about the task: the head, and the figures.
pub fn task_lines(report: &TaskReport, n_samples: usize) -> Vec<String> {
    let head = format!("task {}", report.evaluated.describe());
    let of_task = METRICS.iter().filter(|metric| metric.task == Some(report.evaluated.task));
    // The mAP comes last, beside that of the float model. Not every network has all figures of its task.
    let measured = |metric: &Metric| {
        let value = report.metrics.get(metric.name).and_then(Value::as_f64)?;
        Some(format!("{} {}", metric.title, metric.with_unit(value)))
    };
    let mut parts: Vec<String> = of_task.clone().filter(|it| **it != COCO_MAP).filter_map(measured).collect();
    if let (true, Some(metric)) = (parts.is_empty(), of_task.clone().next()) {
        parts.push(format!("{} not measured", metric.title));
    }
    parts.extend(report.found.as_ref().map(|found| {
        let (float, quantized) = (found.float.n_found, found.quantized.n_found);
        format!("boxes found: float {float}, quantized {quantized}")
    }));
    let map = report.coco_map.map(|[float, quantized]| format!("; mAP float {float:.4}, quantized {quantized:.4}"));
    vec![head, format!("network: {}, {}{}", parts.join(", "), count(n_samples, "sample"), map.unwrap_or_default())]
}

/// Returns the report on every output.
pub fn outputs(comparison: &Comparison) -> Vec<OutputReport> {
    let measured = &comparison.measured;
    let of_outputs = || METRICS.iter().filter(|metric| metric.task.is_none());
    let figures: Vec<(Metric, Vec<Option<Figure>>)> =
        of_outputs().map(|metric| (*metric, measured.figures(*metric))).collect();
    let of = |(output_idx, output): (usize, &String)| {
        let figure = |wanted: Metric| {
            let (_, figures) = figures.iter().find(|(metric, _)| *metric == wanted)?;
            figures.get(output_idx)?.as_ref()
        };
        let value = |metric: Metric| figure(metric).map(|figure| figure.value);
        let number = |metric: &Metric| Some((metric.name.to_string(), Number::from_f64(value(*metric)?)?.into()));
        let found = measured.prepared().groups().get(output_idx);
        let groups = found.map(|found: &OutputGroups| found.groups.as_slice()).unwrap_or_default();
        let overlaps = figure(OVERLAP).map(|figure| figure.groups.as_slice()).unwrap_or_default();
        let groups = groups.iter().zip(overlaps);
        OutputReport {
            tensor: output.clone(),
            sqnr_db: value(SQNR).filter(|db| *db < MAX_DB),
            max_difference: value(MAX_ERROR).filter(|error| error.is_finite()),
            agreement_percent: value(AGREEMENT),
            top1_percent: figure(TOP1).and_then(|figure| Some([figure.float?, figure.value])),
            n_samples: comparison.n_samples,
            non_finite: comparison.non_finite[output_idx].quantized.clone(),
            float_non_finite: comparison.non_finite[output_idx].float.clone(),
            metrics: of_outputs().filter_map(number).collect(),
            axis: found.and_then(|found| found.axis),
            groups: groups.map(|(group, &overlap)| GroupReport { group: group.clone(), overlap }).collect(),
            is_selected: measured.prepared().are_selected()[output_idx],
        }
    };
    measured.prepared().outputs().iter().enumerate().map(of).collect()
}

/// Returns the line on one output.
pub fn comparison(report: &OutputReport) -> String {
    let mut parts = Vec::new();
    let mut add = |non_finite: &Option<NonFinite>, what: &str| {
        if let Some(NonFinite { n_values, first_sample, .. }) = non_finite {
            parts.push(format!("NaN or infinite {what}: {}, first for `{first_sample}`", count(*n_values, "value")));
        }
    };
    add(&report.non_finite, "where the float model is finite");
    add(&report.float_non_finite, "in the float model");
    let is_known = parts.is_empty();
    // Numbers of classes and indices are in no order.
    let is_integer = report.metrics.contains_key(EQUAL.name);
    let is_printed = |metric: &&Metric| !is_integer || ![SQNR, COSINE].contains(metric);
    // Top-1 comes last, beside that of the float model.
    let of_output = METRICS.iter().filter(|metric| is_known && ![TOP1, TOP1_DROP].contains(metric));
    for metric in of_output.filter(is_printed) {
        let Some(value) = report.metrics.get(metric.name).and_then(Value::as_f64) else { continue };
        parts.push(match *metric == SQNR && report.sqnr_db.is_none() {
            true => "equal".to_string(),
            false => format!("{} {}", metric.title, metric.with_unit(value)),
        });
    }
    if !is_known {
        parts.push("no figures".to_string());
    }
    parts.push(count(report.n_samples, "sample"));
    let top1 =
        report.top1_percent.map(|[float, quantized]| format!("; top-1 float {float:.2} %, quantized {quantized:.2} %"));
    let lowest = report.groups.iter().min_by(|a, b| a.overlap.total_cmp(&b.overlap));
    let lowest = lowest.filter(|_| is_known && report.groups.len() > 1);
    let lowest = lowest
        .map(|lowest| format!("; lowest overlap {} of {}", OVERLAP.with_unit(lowest.overlap), lowest.group.describe()));
    let selected = report.is_selected && report.sqnr_db.is_some();
    let order = if selected {
        "; a TopK or NonMaxSuppression chooses its rows, so rows in another order count as errors"
    } else {
        ""
    };
    format!("{}: {}{}{}{order}", report.tensor, parts.join(", "), lowest.unwrap_or_default(), top1.unwrap_or_default())
}

/// Returns the line on an output's groups of channels, as the overlap uses them.
pub fn channels(groups: &OutputGroups) -> String {
    let OutputGroups { output, axis, groups } = groups;
    let axis = axis.map_or("one channel".to_string(), |axis| format!("channels along axis {axis}"));
    match groups.is_empty() {
        true => format!("{output}: no overlap: its values are integers or constant, or their number varies"),
        false => {
            let groups: Vec<String> = groups.iter().map(ChannelGroup::describe).collect();
            format!("{output}: {axis}: {}", groups.join(", "))
        }
    }
}
