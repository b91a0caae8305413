//! The document of a comparison.

use super::form::{Body, Document, DocumentColumn, Fact, Section, TableCell};
use crate::metrics::{METRICS, Metric};
use crate::report::{GroupReport, OutputReport, TaskReport, count};
use serde_json::Value;

/// The findings of `mqq compare`.
pub struct ComparedModels<'a> {
    /// File names of the float and of the quantized model.
    pub models: [&'a str; 2],
    /// The outputs.
    pub outputs: &'a [OutputReport],
    /// The task, where it is known.
    pub task: Option<&'a TaskReport>,
    /// Missed gates, in words.
    pub missed: &'a [String],
    /// Warnings for the user.
    pub warnings: &'a [String],
}

/// The document. Sections without contents are left out.
pub fn of_comparison(compared: &ComparedModels) -> Document {
    let lines = |id, title, about, lines: &[String]| {
        (!lines.is_empty()).then(|| Section { id, title, about, body: Body::Lines(lines.to_vec()) })
    };
    let sections = [
        Some(summary(compared)),
        lines("gates", "Missed gates", "Metrics that are worse than asked for.", compared.missed),
        lines("warnings", "Warnings", "", compared.warnings),
        Some(outputs(compared)),
        groups(compared),
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
                add(metric.title, metric.spelled(value));
            }
        }
    }
    let about = "The quantized model beside its float model on the same samples.";
    Section { id: "summary", title: "Summary", about, body: Body::Facts(facts) }
}

fn outputs(compared: &ComparedModels) -> Section {
    let is_known = |metric: &&Metric| compared.outputs.iter().any(|output| output.metrics.contains_key(metric.name));
    let metrics: Vec<_> = METRICS.iter().filter(|metric| metric.task.is_none()).filter(is_known).collect();
    let columns = metrics.iter().map(|metric| DocumentColumn { title: metric.title, unit: metric.unit });
    let row = |output: &OutputReport| {
        let figures =
            metrics.iter().map(|metric| TableCell::number(output.metrics.get(metric.name).and_then(Value::as_f64)));
        let non_finite = output.non_finite.as_ref().map_or(0, |non_finite| non_finite.n_values);
        let name = TableCell::from(output.output.as_str());
        [name].into_iter().chain(figures).chain([TableCell::Integer(non_finite as i64)]).collect()
    };
    let first = DocumentColumn { title: "Output", unit: "" };
    let last = DocumentColumn { title: "NaN or infinite values", unit: "" };
    Section {
        id: "outputs",
        title: "Outputs",
        about: "Each output of the network. An SQNR of 200 dB stands for equal values, -200 dB for values that are NaN or \
                infinite.",
        body: Body::Table {
            columns: [first].into_iter().chain(columns).chain([last]).collect(),
            rows: compared.outputs.iter().map(row).collect(),
        },
    }
}

fn groups(compared: &ComparedModels) -> Option<Section> {
    let of_output = |output: &OutputReport| -> Vec<Vec<TableCell>> {
        let row = |group: &GroupReport| {
            vec![output.output.as_str().into(), group.group.describe().into(), TableCell::number(Some(group.overlap))]
        };
        output.groups.iter().map(row).collect()
    };
    let rows: Vec<Vec<TableCell>> = compared.outputs.iter().flat_map(of_output).collect();
    let column = |title| DocumentColumn { title, unit: "" };
    (!rows.is_empty()).then(|| Section {
        id: "groups",
        title: "Channel groups",
        about: "The overlap of each group of channels of an output; the lowest one holds the network back.",
        body: Body::Table { columns: vec![column("Output"), column("Channels"), column("Overlap")], rows },
    })
}
