//! Calibration tables of ONNX Runtime (microsoft/onnxruntime, python/tools/quantization/calibrate.py and
//! quant_utils.py, `save_tensors_data` and `write_calibration_table`).

use crate::emit::source::{Entries, json, word};
use crate::emit::{Emitter, Encoding, Source};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write;

/// Ranges as `onnxruntime.quantization.calibrate.load_tensors_data` reads them.
pub(in crate::emit) struct OrtJson;

impl Emitter for OrtJson {
    fn name(&self) -> &'static str {
        "ort-json"
    }

    fn description(&self) -> &'static str {
        "ONNX Runtime's calibration data: JSON, lowest and highest value per tensor"
    }

    fn suffix(&self) -> &'static str {
        "ort.json"
    }

    fn emit(&self, source: &Source) -> Result<Vec<u8>> {
        let array = |value: f64| json!({ "data": value, "dtype": "float32", "CLS": "numpy.array" });
        let mut tensors = Entries::default();
        for encoding in source.activations() {
            let (lowest, highest) = ends(encoding)?;
            let entry: Value = json!({
                "lowest": array(lowest),
                "highest": array(highest),
                "CLS": "TensorData",
            });
            tensors.add(&encoding.name, entry)?;
        }
        json(&json!({
            "CLS": "TensorsData",
            "data": tensors.into_value(),
            "calibration_method": { "CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax" },
            "smooth_quant": false,
        }))
    }
}

/// Ends of the range whose scale is the plan's: both ends of an asymmetric grid, and plus and minus the
/// highest of a symmetric one, whose lowest integer may have no counterpart.
fn ends(encoding: &Encoding) -> Result<(f64, f64)> {
    let (lowest, highest) = encoding.per_tensor_bounds()?;
    match encoding.storage().1 && encoding.symmetric {
        true => Ok((-highest, highest)),
        false => Ok((lowest, highest)),
    }
}

/// `calibration.cache`: a line `tensor amax` per tensor, sorted by name, as the TensorRT execution
/// provider's tools write it.
pub(in crate::emit) struct OrtCache;

impl Emitter for OrtCache {
    fn name(&self) -> &'static str {
        "ort-cache"
    }

    fn description(&self) -> &'static str {
        "ONNX Runtime's calibration table: text, amax per tensor"
    }

    fn suffix(&self) -> &'static str {
        "ort.cache"
    }

    fn emit(&self, source: &Source) -> Result<Vec<u8>> {
        let mut text = String::new();
        for (name, amax) in sorted_amax(source)? {
            writeln!(text, "{} {amax}", word(name)?)?;
        }
        Ok(text.into_bytes())
    }
}

/// Names and `127 * scale`, sorted by name.
pub(super) fn sorted_amax<'a>(source: &Source<'a>) -> Result<Vec<(&'a str, f64)>> {
    let amax = |encoding: &'a Encoding| Ok((encoding.name.as_str(), encoding.amax_int8()?));
    let mut all: Vec<(&str, f64)> = source.activations().map(amax).collect::<Result<_>>()?;
    all.sort_by(|a, b| a.0.cmp(b.0));
    Ok(all)
}
