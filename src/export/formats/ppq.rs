//! PPQ and esp-ppq, target TensorRT (OpenPPL/ppq, ppq/parser/trt_exporter.py): the range of every quantized activation.

use super::PLAIN;
use crate::export::index::{UniqueMap, json, named};
use crate::export::{Format, SidecarIndex};
use anyhow::Result;
use serde_json::json;

/// `{"act_quant_info": {tensor: 127 * scale}}`. PPQ itself writes half the grid's width times the scale, which is the
/// same for its grid [-127, 127].
pub(super) const FORMAT: Format = Format {
    name: "ppq",
    description: "PPQ's ranges for TensorRT: JSON, amax per tensor",
    suffix: "act_quant_info.json",
    write,
    needs_int8: true,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let ranges = UniqueMap::object(index.activations().map(named), |encoding| Ok(json!(encoding.amax_int8()?)))?;
    json(&json!({ "act_quant_info": ranges }))
}
