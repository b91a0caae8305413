//! Reports as documents: sections of facts, tables, charts and a graph.
//!
//! In: a sidecar, or the report of a comparison or an examination. Out: a [`Document`], and its text in one of
//! [`FORMATS`]. A format knows the kinds of sections, not their contents. A new method, metric or section therefore
//! appears in all formats.

mod error_chart;
mod form;
mod html;
mod markdown;
mod node_facts;
mod of_comparison;
mod of_diagnosis;
mod of_sidecar;
mod text;

pub use form::Document;
pub use of_comparison::{ComparedModels, of_comparison};
pub use of_diagnosis::of_diagnosis;
pub use of_sidecar::of_sidecar;

use super::JsonObject;
use crate::diag::none_of;
use anyhow::{Context, Result};
use std::path::Path;

/// A format of a document.
pub struct DocumentFormat {
    /// Its name. It is also the file's extension, except for `text` (.txt).
    pub name: &'static str,
    /// Its description.
    pub about: &'static str,
    render: fn(&Document) -> Result<String>,
}

impl DocumentFormat {
    /// Returns the document's text in this format, with a final newline.
    ///
    /// # Errors
    /// If the document cannot be written as JSON, which does not happen.
    pub fn render(&self, document: &Document) -> Result<String> {
        (self.render)(document)
    }
}

/// All formats.
pub const FORMATS: &[DocumentFormat] = &[
    DocumentFormat { name: "text", about: "tables for the terminal", render: |document| Ok(text::render(document)) },
    DocumentFormat { name: "md", about: "Markdown", render: |document| Ok(markdown::render(document)) },
    DocumentFormat { name: "html", about: "one page with charts; it needs no network", render: html::render },
    DocumentFormat { name: "json", about: "the sections for programs", render: json },
];

/// Finds a format by its name.
///
/// # Errors
/// If there is no such format; the message lists the formats.
pub fn format_by_name(name: &str) -> Result<&'static DocumentFormat> {
    let found = FORMATS.iter().find(|format| format.name == name);
    found.ok_or_else(|| {
        none_of(format_args!("format `{name}` is unknown"), name, FORMATS.iter().map(|format| format.name))
    })
}

/// Returns the format of a file by its extension.
///
/// # Errors
/// If the extension is not that of a format; the message starts with the path.
pub fn format_of(path: &Path) -> Result<&'static DocumentFormat> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let name = match extension {
        "txt" => "text",
        "htm" => "html",
        // `text` is the name of a format, but not an extension.
        "text" => "",
        other => other,
    };
    let found = FORMATS.iter().find(|format| format.name == name);
    found.with_context(|| {
        format!("`{}`: its ending names no format, expected one of: .html, .md, .txt, .json", path.display())
    })
}

fn json(document: &Document) -> Result<String> {
    Ok(serde_json::to_string_pretty(&JsonObject::new(document))? + "\n")
}
