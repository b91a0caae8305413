//! A table of results from the objects of `--json`, with one line per model and backend.

use super::{by_count, percent_of_multiply_adds};
use crate::metrics::{self, OVERLAPS};
use serde_json::Value;

/// A column: its title, and a function that returns the text of a result, or `None` without a value.
type TableColumn = (&'static str, fn(&Value) -> Option<String>);

const MODEL: TableColumn = ("model", |result| {
    let model = result["model"].as_str()?;
    Some(model.rsplit(['/', '\\']).next().unwrap_or(model).to_string())
});

const COLUMNS: &[TableColumn] = &[
    ("backend", |result| text(&result["backend"])),
    ("status", |result| text(&result["status"])),
    ("overlap", |result| {
        figure(&judged(result)["figures"][1], 3, OVERLAPS.iter().any(|metric| metric.name == judged(result)["metric"]))
    }),
    ("SQNR dB", |result| figure(&judged(result)["sqnr_db"][1], 1, true)),
    ("task", |result| {
        let task = &judged(result)["task"];
        let metric = metrics::by_name(task["metric"].as_str()?).ok()?;
        Some(format!("{} {}", metric.title, metric.with_unit(task["figures"][1].as_f64()?)))
    }),
    ("gates", |result| {
        let gates: Vec<String> = gates(result).iter().map(|(text, _)| text.clone()).collect();
        Some(gates.join(", ")).filter(|text| !text.is_empty())
    }),
    ("on integers", |result| Some(percent_of_multiply_adds(result["summary"]["integer_share"].as_f64()?))),
    ("size", |result| Some(size(result["n_bytes"].as_u64()?))),
    ("time", |result| Some(format!("{:.1} s", result["summary"]["seconds"].as_f64()?))),
    ("float nodes", |result| {
        let counts = result["summary"]["float_operators"].as_object()?.iter();
        let counts = counts.filter_map(|(op_type, n)| Some((op_type.as_str(), usize::try_from(n.as_u64()?).ok()?)));
        Some(by_count(counts.collect())).filter(|text| !text.is_empty())
    }),
];

/// Returns the gates of a result that have a figure: the metric with its figure, and the bound.
pub fn gates(result: &Value) -> Vec<(String, String)> {
    let of_gate = |gate: &Value| {
        let metric = metrics::by_name(gate["metric"].as_str()?).ok()?;
        let [value, bound] = [gate["value"].as_f64()?, gate["bound"].as_f64()?];
        Some((format!("{} {}", metric.title, metric.with_unit(value)), format!("{bound}")))
    };
    result["gates"].as_array().into_iter().flatten().filter_map(of_gate).collect()
}

/// Returns the figures on held-out samples; null without figures.
fn judged(result: &Value) -> &Value {
    &result["summary"]["tuning"]["judged"]
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_string)
}

fn figure(value: &Value, decimals: usize, is_shown: bool) -> Option<String> {
    value.as_f64().filter(|_| is_shown).map(|value| format!("{value:.decimals$}"))
}

/// Returns text such as `318 kB`.
pub fn size(n_bytes: u64) -> String {
    match n_bytes as f64 {
        n if n < 1e6 => format!("{:.0} kB", n / 1e3),
        n => format!("{:.1} MB", n / 1e6),
    }
}

/// Returns a line of titles and a line for each result. Columns without values are left out.
pub fn table(results: &[Value], has_models: bool) -> Vec<String> {
    let columns = [MODEL].into_iter().filter(|_| has_models).chain(COLUMNS.iter().copied());
    let shown: Vec<TableColumn> = columns.filter(|(_, of)| results.iter().any(|result| of(result).is_some())).collect();
    let titles = shown.iter().map(|(title, _)| title.to_string()).collect();
    let row = |result| shown.iter().map(|(_, of)| of(result).unwrap_or("-".to_string())).collect();
    let rows: Vec<Vec<String>> = std::iter::once(titles).chain(results.iter().map(row)).collect();
    aligned(&rows, |_| false)
}

/// Returns a line for each row of cells. A column is as wide as its longest cell, and two spaces from the next; cells of
/// columns for which `is_right` holds are aligned to the right.
pub fn aligned(rows: &[Vec<String>], is_right: impl Fn(usize) -> bool) -> Vec<String> {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column: usize| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match is_right(column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}
