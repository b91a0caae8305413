//! Ranges of activations from files that other tools, or an earlier run, have written.
//!
//! In: a file in one of [`FORMATS`], recognized by its content. Out: [`ImportedRanges`] by tensor. It does not
//! look at a model. `docs/formats.md` has the shapes and sources.

mod encodings;
mod sidecar;
mod trt_cache;

use crate::diag::{WithHint, did_you_mean};
use crate::quant::GivenRange;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::path::Path;

/// A format that holds ranges of activations.
pub trait Format: Sync {
    /// Its name; that of the emitter of the same format, where there is one.
    fn name(&self) -> &'static str;

    /// Whether `contents` are of this format.
    fn recognizes(&self, contents: &Contents) -> bool;

    /// The ranges by tensor.
    ///
    /// # Errors
    /// If an entry is wrong; the message names its line or tensor.
    fn read(&self, contents: &Contents) -> Result<BTreeMap<String, GivenRange>>;
}

/// Every format.
pub const FORMATS: &[&dyn Format] = &[
    &sidecar::Sidecar,
    &trt_cache::TrtCache,
    &encodings::Encodings061,
    &encodings::Encodings100,
    &encodings::Encodings2,
];

/// A file's text, and what it holds where it is JSON.
pub struct Contents {
    /// The text.
    pub text: String,
    /// Its value as JSON.
    pub json: Option<serde_json::Value>,
}

/// A file's ranges.
#[derive(Debug, Clone)]
pub struct ImportedRanges {
    /// File name without folders.
    pub file: String,
    /// [`Format::name`].
    pub format: &'static str,
    /// By tensor.
    pub ranges: BTreeMap<String, GivenRange>,
}

/// Reads a file in any of [`FORMATS`].
///
/// # Errors
/// If it is in none of them, or wrong. The message starts with the path.
pub fn read(path: &Path) -> Result<ImportedRanges> {
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let read = || -> Result<ImportedRanges> {
        let bytes = std::fs::read(path)?;
        let text = String::from_utf8(bytes).ok().with_context(unknown)?;
        let json = serde_json::from_str(&text).ok();
        let contents = Contents { text, json };
        let Some(format) = FORMATS.iter().find(|format| format.recognizes(&contents)) else {
            bail!(unknown())
        };
        let ranges = format.read(&contents)?;
        Ok(ImportedRanges { file, format: format.name(), ranges })
    };
    read().with_context(|| format!("`{}`", path.display()))
}

fn unknown() -> String {
    let names: Vec<&str> = FORMATS.iter().map(|format| format.name()).collect();
    format!("is in no format that ranges are read from, expected one of: {}", names.join(", "))
}

impl ImportedRanges {
    /// An error that lists the tensors of `wanted` that the file has no range for, or nothing where it
    /// has all.
    ///
    /// # Errors
    /// As said.
    pub fn ensure_all<'a>(&self, wanted: impl Iterator<Item = &'a str>) -> Result<()> {
        let missing: Vec<&str> = wanted.filter(|name| !self.ranges.contains_key(*name)).collect();
        let Some(first) = missing.first() else { return Ok(()) };
        let list: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
        let hint = match did_you_mean(first, self.ranges.keys().map(String::as_str)) {
            hint if hint.is_empty() => "--data calibrates what the file lacks".to_string(),
            hint => format!("{hint} --data calibrates what the file lacks"),
        };
        Err(anyhow!(
            "`{}` ({}) has no range for {} of the tensors to quantize: {}",
            self.file,
            self.format,
            missing.len(),
            list.join(", ")
        )
        .hint(hint))
    }
}
