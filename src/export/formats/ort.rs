//! Calibration tables of ONNX Runtime (microsoft/onnxruntime, python/tools/quantization/calibrate.py and
//! quant_utils.py, `save_tensors_data` and `write_calibration_table`).

use super::PLAIN;
use crate::export::index::{UniqueMap, json, named, word};
use crate::export::{Format, SidecarIndex};
use crate::sidecar::Encoding;
use anyhow::Result;
use serde_json::json;
use std::fmt::Write;

/// Ranges in the format of `onnxruntime.quantization.calibrate.load_tensors_data`.
pub(super) const JSON: Format = Format {
    name: "ort-json",
    description: "ONNX Runtime's calibration data: JSON, lowest and highest value per tensor",
    suffix: "ort.json",
    write: write_json,
    ..PLAIN
};

fn write_json(index: &SidecarIndex) -> Result<Vec<u8>> {
    let array = |value: f64| json!({ "data": value, "dtype": "float32", "CLS": "numpy.array" });
    let tensors = UniqueMap::object(index.activations().map(named), |encoding| {
        let (lowest, highest) = ends(encoding)?;
        Ok(json!({ "lowest": array(lowest), "highest": array(highest), "CLS": "TensorData" }))
    })?;
    json(&json!({
        "CLS": "TensorsData",
        "data": tensors,
        "calibration_method": { "CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax" },
        "smooth_quant": false,
    }))
}

/// Returns the ends of the range that gives the plan's scale: both ends of an asymmetric grid, and plus and minus the
/// upper end of a symmetric signed one, whose lowest integer may have no counterpart.
fn ends(encoding: &Encoding) -> Result<(f64, f64)> {
    let (lowest, highest) = encoding.per_tensor_bounds()?;
    match encoding.storage().1 && encoding.symmetric {
        true => Ok((-highest, highest)),
        false => Ok((lowest, highest)),
    }
}

/// `calibration.cache`: one line `tensor amax` per tensor, sorted by name, as written by the tools of the TensorRT
/// execution provider.
pub(super) const CACHE: Format = Format {
    name: "ort-cache",
    description: "ONNX Runtime's calibration table: text, amax per tensor",
    suffix: "ort.cache",
    write: write_cache,
    needs_int8: true,
    ..PLAIN
};

fn write_cache(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut text = String::new();
    for (name, amax) in sorted_amax(index)? {
        writeln!(text, "{} {amax}", word(name)?)?;
    }
    Ok(text.into_bytes())
}

/// Returns tensor names with `127 * scale`, sorted by name.
pub(super) fn sorted_amax<'a>(index: &SidecarIndex<'a>) -> Result<Vec<(&'a str, f64)>> {
    let amax = |encoding: &'a Encoding| Ok((encoding.name.as_str(), encoding.amax_int8()?));
    let mut all: Vec<(&str, f64)> = index.activations().map(amax).collect::<Result<_>>()?;
    all.sort_by(|a, b| a.0.cmp(b.0));
    Ok(all)
}
