//! Reads ranges of activations from files of other tools, or of an earlier run.
//!
//! In: a file in one of [`READERS`], recognized by its content. Out: [`ImportedRanges`] by tensor. It does not read a
//! model. `docs/formats.md` has the structure and sources.

use crate::diag::{WithHint, and_more, did_you_mean, file_name, quoted};
use crate::foreign;
use crate::quant::GivenRange;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::path::Path;

mod encodings;
mod sidecar;
mod trt_cache;

/// Every format, in the order in which they are tried.
pub const READERS: &[RangeReader] =
    &[sidecar::READER, trt_cache::READER, encodings::V0_6_1, encodings::V1_0_0, encodings::V2];

/// A file format with ranges of activations.
pub struct RangeReader {
    /// Name of the format; the exported format of the same structure, if any, has the same name.
    pub name: &'static str,
    /// Whether contents have this format.
    recognizes: fn(&Contents) -> bool,
    /// Returns the ranges by tensor; an error names the line or tensor.
    read: fn(&Contents) -> Result<BTreeMap<String, GivenRange>>,
}

/// A file's text, and its JSON value.
pub struct Contents {
    /// The text.
    pub text: String,
    /// The JSON value; `None` for other text.
    pub json: Option<serde_json::Value>,
}

/// The ranges of a file.
#[derive(Debug, Clone)]
pub struct ImportedRanges {
    /// File name without folders.
    pub file: String,
    /// [`RangeReader::name`].
    pub format: &'static str,
    /// File name of the ranges' model, if the file names it.
    pub model: Option<String>,
    /// Ranges by tensor.
    pub ranges: BTreeMap<String, GivenRange>,
}

/// Reads a file in any of [`READERS`].
///
/// # Errors
/// If the file has none of these formats or is invalid. The message starts with the path.
pub fn read(path: &Path) -> Result<ImportedRanges> {
    let file = file_name(path);
    let wrong = match path.extension().and_then(|ending| ending.to_str()) {
        Some("onnx") => {
            let sidecar = file_name(&path.with_extension("json"));
            let hint = format!("the sidecar of a quantized model is the .json file beside it: `{sidecar}`");
            Some(("is a model", hint))
        }
        Some("mqqs") => Some(("has statistics of data", "`mqq solve --stats FILE` quantizes from them".to_string())),
        _ => None,
    };
    if let Some((found, hint)) = wrong {
        return Err(anyhow!("`{}`: {found}, expected ranges of activations", path.display()).hint(hint));
    }
    let read = || -> Result<ImportedRanges> {
        let bytes = foreign::read(path)?;
        let text = String::from_utf8(bytes).ok().with_context(unknown)?;
        let json = serde_json::from_str(&text).ok();
        let contents = Contents { text, json };
        let Some(reader) = READERS.iter().find(|reader| (reader.recognizes)(&contents)) else { bail!(unknown()) };
        let ranges = (reader.read)(&contents)?;
        let model = contents.json.as_ref().and_then(|json| json["model"]["file"].as_str());
        Ok(ImportedRanges { file, format: reader.name, model: model.map(str::to_string), ranges })
    };
    read().with_context(|| format!("`{}`", path.display()))
}

fn unknown() -> String {
    let names: Vec<&str> = READERS.iter().map(|reader| reader.name).collect();
    format!("has an unknown format, expected one of: {}", names.join(", "))
}

impl ImportedRanges {
    /// Checks that the file has ranges for all tensors of `wanted`.
    ///
    /// # Errors
    /// If the file lacks ranges; the message names the first tensors.
    pub fn ensure_all<'a>(&self, wanted: impl Iterator<Item = &'a str>) -> Result<()> {
        const MAX_NAMED: usize = 5;
        let (found, missing): (Vec<&str>, Vec<&str>) = wanted.partition(|name| self.ranges.contains_key(*name));
        let Some(first) = missing.first() else { return Ok(()) };
        let of_model = self.model.as_ref().map_or(String::new(), |model| format!(" of `{model}`"));
        let hint = match did_you_mean(first, self.ranges.keys().map(String::as_str)) {
            _ if found.is_empty() => {
                "the file is of another model: --ranges-from takes ranges of the same model".to_string()
            }
            hint if hint.is_empty() => "add --data to calibrate the tensors that the file lacks".to_string(),
            hint => format!("{hint} add --data to calibrate the tensors that the file lacks"),
        };
        Err(anyhow!(
            "`{}` ({}{of_model}) has no range for {} of the tensors to quantize: {}{}",
            self.file,
            self.format,
            missing.len(),
            quoted(missing.iter().take(MAX_NAMED), ", "),
            and_more(missing.len().saturating_sub(MAX_NAMED))
        )
        .hint(hint))
    }
}
