//! MQBench's `clip_ranges.json` for SNPE (ModelTC/MQBench, mqbench/deploy/deploy_linear.py): overrides of
//! activations for `snpe-onnx-to-dlc --quantization_overrides`.

use super::PLAIN;
use crate::export::index::{UniqueMap, json};
use crate::export::{Format, SidecarIndex};
use anyhow::Result;
use serde_json::json;

/// `{"activation_encodings": {tensor: [{"bitwidth", "min", "max"}]}, "param_encodings": {}}`. Parameters are left to
/// the converter, as in MQBench.
pub(super) const FORMAT: Format = Format {
    name: "snpe",
    description: "MQBench's overrides for SNPE: JSON, range per activation",
    suffix: "snpe.json",
    write,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let activations = UniqueMap::object(index.with_passed_through(), |encoding| {
        let (min, max) = encoding.per_tensor_bounds()?;
        Ok(json!([{ "bitwidth": encoding.bits, "min": min, "max": max }]))
    })?;
    json(&json!({ "activation_encodings": activations, "param_encodings": {} }))
}
