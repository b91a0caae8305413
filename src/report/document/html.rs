//! Documents as one HTML page. Tables are HTML; a script draws charts and the graph.

use super::form::{Body, Document, DocumentColumn, Section, TableCell};
use crate::diag::{escaped, printable};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The libraries, each with its license text: d3, Plot for the charts, dagre for the graph's layout, and table sorting.
const LIBRARIES: &[[&str; 2]] = &[
    [include_str!("libraries/d3.LICENSE"), include_str!("libraries/d3.min.js")],
    [include_str!("libraries/plot.LICENSE"), include_str!("libraries/plot.umd.min.js")],
    [include_str!("libraries/dagre.LICENSE"), include_str!("libraries/dagre.min.js")],
    [include_str!("libraries/sortable.LICENSE"), include_str!("libraries/sortable.min.js")],
];

/// Returns the document as a page that loads nothing from the network.
pub fn render(document: &Document) -> Result<String> {
    let title = literal(&document.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n\
         <button type=\"button\" id=\"theme\">Light or dark</button>\n<nav aria-label=\"Sections\">\n"
    );
    for section in &document.sections {
        let _ = writeln!(page, "<a href=\"#{}\">{}</a>", section.id, section.title);
    }
    page += "</nav>\n</header>\n<main>\n";
    let mut drawn = serde_json::Map::new();
    for section in &document.sections {
        let Section { id, title, about, body } = section;
        let _ = write!(
            page,
            "<section id=\"{id}\">\n<h2>{title}</h2>\n<p class=\"about\">{}</p>\n{}</section>\n",
            literal(about),
            section_body(section)
        );
        match body {
            Body::Chart(_) | Body::Graph(_) | Body::Histograms(_) => {
                drawn.insert(id.to_string(), serde_json::to_value(body)?);
            }
            Body::Facts(_) | Body::Lines(_) | Body::Table { .. } => {}
        }
    }
    page += "</main>\n";
    // `</script>` and `<!--` in strings would end the element.
    let data = json!({ "drawn": Value::Object(drawn) }).to_string();
    let data = escaped(&data).replace('<', "\\u003c");
    let _ = writeln!(page, "<script type=\"application/json\" id=\"data\">{data}</script>");
    for [licence, library] in LIBRARIES {
        let _ = writeln!(page, "<script>\n/*\n{}\n*/\n{}\n</script>", licence.trim(), library.trim());
    }
    let _ = writeln!(page, "<script>\n{SCRIPT}</script>\n</body>\n</html>");
    Ok(page)
}

fn section_body(section: &Section) -> String {
    let title = section.title;
    match &section.body {
        Body::Facts(facts) => {
            let rows = facts.iter().map(|fact| format!("<dt>{}</dt><dd>{}</dd>\n", fact.name, literal(&fact.value)));
            format!("<dl>\n{}</dl>\n", rows.collect::<String>())
        }
        Body::Lines(lines) => {
            let lines = lines.iter().map(|line| format!("<li>{}</li>\n", literal(line)));
            format!("<ul>\n{}</ul>\n", lines.collect::<String>())
        }
        Body::Table { columns, rows } => table(title, columns, rows),
        Body::Chart(chart) => format!(
            "<figure class=\"chart\" role=\"img\" aria-label=\"{title}: {} by {}\"></figure>\n",
            literal(&chart.y),
            literal(&chart.x)
        ),
        Body::Graph(_) => format!("<figure class=\"graph\" role=\"img\" aria-label=\"{title}\"></figure>\n"),
        Body::Histograms(_) => format!("<figure class=\"histograms\" aria-label=\"{title}\"></figure>\n"),
    }
}

fn table(title: &str, columns: &[DocumentColumn], rows: &[Vec<TableCell>]) -> String {
    let is_number = |column: usize| rows.iter().any(|row| row.get(column).is_some_and(TableCell::is_number));
    let class = |column: usize| if is_number(column) { " class=\"number\"" } else { "" };
    let classes: Vec<&str> = (0..columns.len()).map(class).collect();
    let titles = columns.iter().zip(&classes).map(|(column, class)| {
        format!("<th scope=\"col\"{class}><button type=\"button\">{}</button></th>", literal(&column.spelled()))
    });
    let mut text = format!(
        "<div class=\"tools\"><label>Search <input type=\"search\"></label> <span role=\"status\">{} rows</span></div>\n\
         <div class=\"scroll\"><table class=\"sortable n-last asc\" aria-label=\"{title}\">\n<thead><tr>{}</tr></thead>\n<tbody>\n",
        rows.len(),
        titles.collect::<String>()
    );
    for row in rows {
        text += "<tr>";
        for (cell, class) in row.iter().zip(&classes) {
            let sort = match cell {
                TableCell::Number(value) => format!(" data-sort=\"{value}\""),
                TableCell::Text(_) | TableCell::Integer(_) | TableCell::Empty => String::new(),
            };
            let _ = write!(text, "<td{class}{sort}>{}</td>", literal(&cell.spelled()));
        }
        text += "</tr>\n";
    }
    text + "</tbody></table></div>\n"
}

/// Escapes text for HTML. Characters that control a terminal are spelled out.
fn literal(text: &str) -> String {
    let mut literal = String::with_capacity(text.len());
    for char in printable(text).chars() {
        match char {
            '&' => literal += "&amp;",
            '<' => literal += "&lt;",
            '>' => literal += "&gt;",
            '"' => literal += "&quot;",
            char => literal.push(char),
        }
    }
    literal
}
