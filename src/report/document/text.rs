//! Documents as text for the terminal.

use super::form::{Body, Chart, Document, DocumentColumn, Section, TableCell, TensorHistogram};
use crate::diag::printable;
use crate::report::statistics::bars;
use crate::report::table::aligned;
use std::fmt::Write;

/// Maximum number of printed rows of a table.
const N_ROWS: usize = 40;

/// Maximum length of a cell's text, in characters.
const N_CHARS: usize = 48;

/// Width of a chart's bars, in characters.
const N_BAR: usize = 40;

/// Returns the document as lines of text.
pub fn render(document: &Document) -> String {
    let mut text = format!("{}\n", printable(&document.title));
    for section in &document.sections {
        let body = section_body(section);
        if !body.is_empty() {
            let _ = write!(text, "\n{}\n{body}", section.title);
        }
    }
    text
}

fn section_body(section: &Section) -> String {
    match &section.body {
        Body::Facts(facts) => {
            facts.iter().map(|fact| format!("  {:<24} {}\n", fact.name, printable(&fact.value))).collect()
        }
        Body::Lines(lines) => lines.iter().map(|line| format!("  {}\n", printable(line))).collect(),
        Body::Table { columns, rows } => table(columns.iter().map(DocumentColumn::spelled).collect(), rows),
        Body::Chart(chart) => chart_bars(chart),
        // Only the HTML page shows the graph.
        Body::Graph(_) => String::new(),
        Body::Histograms(tensors) => histograms(tensors),
    }
}

/// Returns the lines of a table with aligned columns. Columns of numbers are aligned to the right.
fn table(titles: Vec<String>, rows: &[Vec<TableCell>]) -> String {
    let cut = |text: String| match text.chars().count() > N_CHARS {
        true => text.chars().take(N_CHARS - 1).chain(['…']).collect(),
        false => text,
    };
    let printed = &rows[..N_ROWS.min(rows.len())];
    let cells = |row: &Vec<TableCell>| row.iter().map(|cell| cut(printable(&cell.spelled()).into_owned())).collect();
    let cells: Vec<Vec<String>> = std::iter::once(titles).chain(printed.iter().map(cells)).collect();
    let is_number = |column: usize| printed.iter().any(|row| row.get(column).is_some_and(TableCell::is_number));
    let lines = aligned(&cells, is_number).into_iter().map(|line| format!("  {line}\n"));
    lines.collect::<String>() + &more(rows.len())
}

/// Returns the line after the first [`N_ROWS`] of `n` rows; an empty text if there are no more.
fn more(n: usize) -> String {
    if n > N_ROWS { format!("  … {} more\n", n - N_ROWS) } else { String::new() }
}

/// Returns a line for each tensor: its histogram between its lowest and highest value, and the ranges.
fn histograms(tensors: &[TensorHistogram]) -> String {
    let mut text = String::new();
    for TensorHistogram { name, ends, shares, ranges } in tensors.iter().take(N_ROWS) {
        let [low, high] = ends.map(|end| TableCell::Number(f64::from(end)).spelled());
        let ranges: Vec<String> = ranges.iter().map(|range| format!("{} {}", range.name, range.spelled())).collect();
        let _ = writeln!(text, "  {low:>10} |{}| {high:<10} {}: {}", bars(shares), printable(name), ranges.join(", "));
    }
    text + &more(tensors.len())
}

/// Returns a line with a bar for each point of the first series.
fn chart_bars(chart: &Chart) -> String {
    let Some(series) = chart.series.first() else { return String::new() };
    let finite = series.points.iter().map(|point| point.y).filter(|y| y.is_finite());
    let largest = finite.fold(0.0_f64, f64::max).min(chart.y_top.unwrap_or(f64::INFINITY));
    let mut text = format!("  {}\n", chart.y);
    for point in series.points.iter().take(N_ROWS) {
        let share = if largest > 0.0 { (point.y / largest).clamp(0.0, 1.0) } else { 0.0 };
        let bar = "█".repeat((share * N_BAR as f64).round() as usize);
        let _ =
            writeln!(text, "  {bar:<N_BAR$}  {:>8}  {}", TableCell::Number(point.y).spelled(), printable(&point.name));
    }
    text + &more(series.points.len())
}
