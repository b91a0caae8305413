//! The sidecar of an earlier run, possibly for another backend: the ranges of its observer.

use super::{Contents, RangeReader};
use crate::diag::WithHint;
use crate::onnx::edit::ModelEdit;
use crate::quant::{GivenRange, Range};
use crate::sidecar;
use anyhow::{Result, anyhow, ensure};
use std::collections::BTreeMap;

pub(super) const READER: RangeReader = RangeReader { name: sidecar::NAME, recognizes, read };

fn recognizes(contents: &Contents) -> bool {
    contents.json.as_ref().is_some_and(|json| json.get("schema_version").is_some())
}

fn read(contents: &Contents) -> Result<BTreeMap<String, GivenRange>> {
    let sidecar = sidecar::Sidecar::from_json(&contents.text)?;
    let is_scaled = |edit: &ModelEdit| matches!(edit, ModelEdit::ScaleChannels(_));
    ensure!(
        !sidecar.has_equalized_channels() && !sidecar.edits.iter().any(is_scaled),
        anyhow!("the ranges are for a model with equalized channels, expected ranges of the original channels")
            .hint("calibrate that model with --effort 0 to get ranges for other models")
    );
    let entry = |encoding: sidecar::Encoding| {
        let [min, max] = encoding.range?;
        let range = GivenRange { range: Range { min, max }, amax: None };
        Some((encoding.name, range))
    };
    Ok(sidecar.activation_encodings.into_iter().filter_map(entry).collect())
}
