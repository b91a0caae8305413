//! Ranges for TensorRT's implicit quantization.
//!
//! TensorRT computes `scale = amax / 127` and clamps to [-128, 127], so that `amax = 127 * y_scale` for any lowest
//! integer of the grid.

use super::PLAIN;
use crate::export::index::{UniqueMap, json};
use crate::export::{Format, SidecarIndex};
use anyhow::{Result, ensure};
use serde_json::json;
use std::fmt::Write;

/// MQBench's `clip_ranges.json` (ModelTC/MQBench, mqbench/deploy/deploy_linear.py, backend `tensorrt`): one range per
/// tensor for `setDynamicRange`.
pub(super) const MQBENCH: Format = Format {
    name: "mqbench-tensorrt",
    description: "MQBench's ranges for TensorRT: JSON, amax per tensor",
    suffix: "blob_range.json",
    write: write_mqbench,
    needs_int8: true,
    ..PLAIN
};

fn write_mqbench(index: &SidecarIndex) -> Result<Vec<u8>> {
    let ranges = UniqueMap::object(index.with_passed_through(), |encoding| Ok(json!(encoding.amax_int8()?)))?;
    json(&json!({ "tensorrt": { "blob_range": ranges } }))
}

/// First line of a calibration cache: TensorRT's version (8.6.1) and the calibrator's name.
const HEADER: &str = "TRT-8601-EntropyCalibration2";

/// The content of `IInt8Calibrator::writeCalibrationCache`: one line per tensor with the bits of the float32 scale in
/// hexadecimal, most significant byte first. NVIDIA Model-Optimizer and polygraphy read it the same way.
pub(super) const CACHE: Format = Format {
    name: "trt-cache",
    description: "TensorRT calibration cache: text, scale per tensor in hexadecimal",
    suffix: "trt.cache",
    write: write_cache,
    needs_int8: true,
    ..PLAIN
};

fn write_cache(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut text = format!("{HEADER}\n");
    for (name, encoding) in index.with_passed_through() {
        encoding.symmetric_int8()?;
        let (scale, _) = encoding.per_tensor()?;
        ensure!(
            !name.contains(['\n', '\r']),
            "tensor `{}`: its name has a line break, but the format has one line per tensor",
            name.escape_debug()
        );
        writeln!(text, "{name}: {:08x}", (scale as f32).to_bits())?;
    }
    Ok(text.into_bytes())
}
