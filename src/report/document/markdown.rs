//! Documents in Markdown.

use super::form::{Body, Document, DocumentColumn, NamedRange, Series, TableCell};
use std::fmt::Write;

/// Returns the document in Markdown, with tables in place of charts and without the graph.
pub fn render(document: &Document) -> String {
    let mut text = format!("# {}\n", escaped(&document.title));
    for section in &document.sections {
        let body = match &section.body {
            Body::Facts(facts) => {
                let rows: Vec<[String; 2]> =
                    facts.iter().map(|fact| [fact.name.to_string(), fact.value.clone()]).collect();
                table(&["", ""], rows.iter().map(|row| row.to_vec()))
            }
            Body::Lines(lines) => lines.iter().map(|line| format!("- {}\n", escaped(line))).collect(),
            Body::Table { columns, rows } => {
                let titles: Vec<String> = columns.iter().map(DocumentColumn::spelled).collect();
                let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
                table(&titles, rows.iter().map(|row| row.iter().map(TableCell::spelled).collect()))
            }
            Body::Chart(chart) => {
                let points = chart.series.iter().flat_map(|Series { name, points }| {
                    points
                        .iter()
                        .map(|point| vec![name.to_string(), point.name.clone(), TableCell::Number(point.y).spelled()])
                });
                table(&["", &chart.x, &chart.y], points)
            }
            Body::Histograms(tensors) => {
                let ranges = tensors.iter().flat_map(|tensor| {
                    let row = |range: &NamedRange| vec![tensor.name.clone(), range.name.clone(), range.spelled()];
                    tensor.ranges.iter().map(row)
                });
                table(&["Tensor", "Observer", "Range"], ranges)
            }
            // Only the HTML page shows the graph.
            Body::Graph(_) => continue,
        };
        let _ = write!(text, "\n## {}\n\n{}\n\n{body}", section.title, section.about);
    }
    text
}

fn table(titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let titles: Vec<String> = titles.iter().map(|title| title.to_string()).collect();
    let rule = format!("|{}\n", " --- |".repeat(titles.len()));
    line(&titles) + &rule + &rows.map(|row| line(&row)).collect::<String>()
}

/// Escapes text for Markdown.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' | '\r' => escaped.push(' '),
            '|' | '<' | '*' | '_' | '[' | ']' | '\\' => escaped.extend(['\\', char]),
            char => escaped.push(char),
        }
    }
    escaped
}
