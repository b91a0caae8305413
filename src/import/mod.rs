//! Ranges of activations from files that other tools, or an earlier run, have written.
//!
//! In: a file in one of [`FORMATS`], recognized by its content. Out: [`ImportedRanges`] by tensor. It does not
//! look at a model. `docs/formats.md` has the shapes and sources.

mod encodings;
mod sidecar;
mod trt_cache;

use crate::diag::{WithHint, did_you_mean};
use crate::quant::{Grid, Range, Symmetry};
use anyhow::{Context, Result, anyhow, bail, ensure};
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
    fn read(&self, contents: &Contents) -> Result<BTreeMap<String, ImportedRange>>;
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

/// One tensor's interval, in its own unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImportedRange {
    /// Ends of the grid that the file describes.
    pub range: Range,
    /// For a grid that is symmetric about 0, the value of its highest integer: its lowest may have no
    /// counterpart.
    pub amax: Option<f64>,
}

impl ImportedRange {
    /// The interval to lay on `grid`, so that a grid of the file's own kind has the file's scale.
    pub fn on(&self, grid: &Grid) -> Range {
        match self.amax {
            Some(amax) if grid.signed && grid.symmetry == Symmetry::Symmetric => {
                Range::symmetric(amax)
            }
            _ => self.range,
        }
    }

    /// The interval of a grid of `bits` with this `scale` and `zero_point`.
    ///
    /// # Errors
    /// If the scale is no positive number, or the grid has less than 2 or more than 16 bits.
    fn of_grid(scale: f64, zero_point: i64, bits: u64, signed: bool) -> Result<ImportedRange> {
        ensure!(
            scale.is_finite() && scale >= 0.0,
            "scale is {scale}, expected a number that is not negative"
        );
        ensure!((2..=16).contains(&bits), "has {bits} bits, expected 2 to 16");
        let (q_min, q_max) = match signed {
            true => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
            false => (0, (1i64 << bits) - 1),
        };
        let at = |q: i64| scale * (q as f64 - zero_point as f64);
        let symmetric = signed && zero_point == 0;
        Ok(ImportedRange {
            range: Range { min: at(q_min), max: at(q_max) },
            amax: symmetric.then_some(at(q_max)),
        })
    }
}

/// A file's ranges.
#[derive(Debug, Clone)]
pub struct ImportedRanges {
    /// File name without folders.
    pub file: String,
    /// [`Format::name`].
    pub format: &'static str,
    /// By tensor.
    pub ranges: BTreeMap<String, ImportedRange>,
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
