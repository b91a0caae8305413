//! The document of a comparison.

use super::error_chart::error_chart;
use super::form::{Body, Document, DocumentColumn, Fact, Point, Section, TableCell, columns, columns_in};
use crate::metrics::{MAX_DB, METRICS, Metric, SQNR};
use crate::report::{GroupReport, OutputReport, SwitchAdvice, TaskReport, TensorFigures, TensorsReport, count};
use serde_json::Value;

/// The results of `mqq compare`.
pub struct ComparedModels<'a> {
    /// File names of the float and of the quantized model.
    pub models: [&'a str; 2],
    /// The outputs.
    pub outputs: &'a [OutputReport],
    /// The task, if it is known.
    pub task: Option<&'a TaskReport>,
    /// The inner tensors of the models, if they were compared.
    pub tensors: Option<&'a TensorsReport>,
    /// Missed gates, in words.
    pub missed: &'a [String],
    /// Warnings for the user.
    pub warnings: &'a [String],
}

/// Returns the document. Sections without contents are left out.
pub fn of_comparison(compared: &ComparedModels) -> Document {
    let lines = |id, title, about, lines: &[String]| {
        (!lines.is_empty()).then(|| Section { id, title, about, body: Body::Lines(lines.to_vec()) })
    };
    let sections = [
        Some(summary(compared)),
        lines("gates", "Missed gates", "Metrics that are worse than their bounds.", compared.missed),
        lines("warnings", "Warnings", "", compared.warnings),
        Some(outputs(compared)),
        groups(compared),
        compared.tensors.and_then(first),
        compared.tensors.and_then(errors),
        compared.tensors.and_then(tensors),
        compared.tensors.and_then(|tensors| {
            let about =
                "Tensors of the float model that the quantized model does not have, or does not have in float32.";
            lines("unmatched", "Tensors without a counterpart", about, &tensors.unmatched)
        }),
    ];
    let title = format!("{} against {}", compared.models[1], compared.models[0]);
    Document { title, sections: sections.into_iter().flatten().collect() }
}

fn summary(compared: &ComparedModels) -> Section {
    let mut facts = Vec::new();
    let mut add = |name: &'static str, value: String| facts.push(Fact { name, value });
    add("Float model", compared.models[0].to_string());
    add("Quantized model", compared.models[1].to_string());
    let n_samples = compared.outputs.first().map_or(0, |output| output.n_samples);
    add("Evaluated on", count(n_samples, "sample"));
    if let Some(task) = compared.task {
        add("Task", task.evaluated.describe());
        for metric in METRICS {
            if let Some(value) = task.metrics.get(metric.name).and_then(Value::as_f64) {
                add(metric.title, metric.with_unit(value));
            }
        }
    }
    let about = "The quantized model beside its float model on the same samples.";
    Section { id: "summary", title: "Summary", about, body: Body::Facts(facts) }
}

fn outputs(compared: &ComparedModels) -> Section {
    let is_known = |metric: &&Metric| compared.outputs.iter().any(|output| output.metrics.contains_key(metric.name));
    let metrics: Vec<_> = METRICS.iter().filter(|metric| metric.task.is_none()).filter(is_known).collect();
    let of_metrics =
        metrics.iter().map(|metric| DocumentColumn { title: metric.title, unit: metric.scale.unit }).collect();
    let row = |output: &OutputReport| {
        let figures =
            metrics.iter().map(|metric| TableCell::number(output.metrics.get(metric.name).and_then(Value::as_f64)));
        let non_finite = output.non_finite.as_ref().map_or(0, |non_finite| non_finite.n_values);
        let name = TableCell::from(output.tensor.as_str());
        [name].into_iter().chain(figures).chain([TableCell::Integer(non_finite as i64)]).collect()
    };
    Section {
        id: "outputs",
        title: "Outputs",
        about: "Each output of the network. An SQNR of 200 dB stands for equal values, -200 dB for values that are NaN or \
                infinite.",
        body: Body::Table {
            columns: [columns(["Output"]), of_metrics, columns(["NaN or infinite values"])].concat(),
            rows: compared.outputs.iter().map(row).collect(),
        },
    }
}

fn groups(compared: &ComparedModels) -> Option<Section> {
    let of_output = |output: &OutputReport| -> Vec<Vec<TableCell>> {
        let row = |group: &GroupReport| {
            vec![output.tensor.as_str().into(), group.group.describe().into(), TableCell::number(Some(group.overlap))]
        };
        output.groups.iter().map(row).collect()
    };
    let rows: Vec<Vec<TableCell>> = compared.outputs.iter().flat_map(of_output).collect();
    (!rows.is_empty()).then(|| Section {
        id: "groups",
        title: "Channel groups",
        about: "The overlap of each group of channels of an output; the lowest one holds the network back.",
        body: Body::Table { columns: columns(["Output", "Channels", "Overlap"]), rows },
    })
}

/// Returns the section with the tensors to look at first, and the option to try.
fn first(report: &TensorsReport) -> Option<Section> {
    let spelled = |db: Option<f64>| db.map_or("equal".to_string(), |db| SQNR.with_unit(db));
    let line = |row: &TensorFigures| {
        let layer =
            row.layer.as_ref().map_or("input".to_string(), |layer| format!("{layer} ({})", row.operators.join(", ")));
        let added = report.added_failed.is_none().then(|| format!("its layer alone {}, ", spelled(row.added_sqnr_db)));
        format!(
            "{}: {}with all errors in front {}; {layer}",
            row.tensor,
            added.unwrap_or_default(),
            spelled(row.sqnr_db)
        )
    };
    let rows = report.look_first.iter().filter_map(|name| report.rows.iter().find(|row| row.tensor == *name));
    let advice = report
        .advice
        .iter()
        .map(|SwitchAdvice { option, value, reason }| format!("Try {option} {value} of mqq calibrate: {reason}."));
    let lines: Vec<String> = rows.map(line).chain(advice).collect();
    (!lines.is_empty()).then_some(Section {
        id: "first",
        title: "Layers to look at first",
        about: "The layers that add the most error when they read the tensors of the float model.",
        body: Body::Lines(lines),
    })
}

/// Returns the chart of the error along the network.
fn errors(report: &TensorsReport) -> Option<Section> {
    let points = |figure: fn(&TensorFigures) -> Option<f64>| {
        let point = |(i, row): (usize, &TensorFigures)| {
            let y = figure(row).filter(|db| db.abs() < MAX_DB)?;
            Some(Point { x: i as f64, y, y_low: None, name: format!("{} ({})", row.tensor, row.operators.join(", ")) })
        };
        report.rows.iter().enumerate().filter_map(point).collect::<Vec<Point>>()
    };
    let (in_front, alone) = (points(|row| row.sqnr_db), points(|row| row.added_sqnr_db));
    Some(Section {
        id: "errors",
        title: "Error along the network",
        about: "SQNR of each tensor as the next layers read it. A layer alone reads the tensors of the float model: its error \
                is what it adds. A point above 60 dB is drawn at 60 dB; equal values have no point.",
        body: error_chart("tensor, in the order of the float model", in_front, alone)?,
    })
}

fn tensors(report: &TensorsReport) -> Option<Section> {
    let integer = |n: Option<usize>| n.map_or(TableCell::Empty, |n| TableCell::Integer(n as i64));
    let or_equal = |db: Option<f64>| TableCell::number(Some(db.unwrap_or(MAX_DB)));
    let is_alone_known = report.rows.iter().any(|row| row.added_sqnr_db.is_some());
    let row = |(i, row): (usize, &TensorFigures)| {
        vec![
            TableCell::Integer(i as i64),
            row.tensor.as_str().into(),
            row.layer.clone().unwrap_or_default().into(),
            row.operators.join(", ").into(),
            or_equal(row.sqnr_db),
            if is_alone_known { or_equal(row.added_sqnr_db) } else { TableCell::Empty },
            TableCell::number(Some(row.cosine)),
            TableCell::number(row.max_difference),
            TableCell::number(row.saturated_percent),
            integer(row.dead_channels),
            integer(row.n_channels),
            row.quantized_tensor.as_str().into(),
        ]
    };
    let columns = [
        columns(["Position", "Tensor", "Layer", "Operators"]),
        columns_in("dB", ["SQNR", "SQNR of the layer alone"]),
        columns(["Cosine", "Largest error"]),
        columns_in("%", ["Saturated"]),
        columns(["Dead channels", "Channels", "Compared with"]),
    ]
    .concat();
    (!report.rows.is_empty()).then(|| Section {
        id: "tensors",
        title: "Tensors",
        about: "Each tensor of the float model that the quantized one has, as the next layers read it. An SQNR of 200 dB \
                stands for equal values, -200 dB for values that are NaN or infinite. Saturated values lie beyond the range in \
                the float network; dead channels are constant in the quantized network only.",
        body: Body::Table { columns, rows: report.rows.iter().enumerate().map(row).collect() },
    })
}
