//! PPQ's file for MNN (OpenPPL/ppq, ppq/parser/mnn_exporter.py): the activation scales before and after every Conv, and
//! after every Add.

use super::PLAIN;
use crate::export::index::{UniqueMap, json};
use crate::export::{Format, SidecarIndex};
use crate::sidecar::Encoding;
use anyhow::{Context, Result, bail};
use serde_json::json;

/// `{"shape": {"channels", "height", "width"}, "T input_tensor_0": scale, "T output_tensor_0": scale}`, where
/// `T` is the output of the Conv or Add, or of the Relu or Clip fused into it.
pub(super) const FORMAT: Format = Format {
    name: "mnn",
    description: "PPQ's scales for MNN: JSON, scales before and after every Conv and after every Add",
    suffix: "mnn.json",
    write,
    needs_int8: true,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut entries = UniqueMap::default();
    let input = index.sidecar.calibration.inputs.last().context("the sidecar has no input")?;
    let [_, channels, height, width] = input.shape[..] else {
        bail!("input `{}`: shape is {:?}, expected [N, C, H, W]", input.name, input.shape);
    };
    let shape = json!({ "channels": channels, "height": height, "width": width });
    entries.add("shape", shape)?;
    let scale = |encoding: &Encoding| -> Result<f64> {
        encoding.symmetric_int8()?;
        Ok(encoding.per_tensor()?.0)
    };
    for node in index.nodes().filter(|n| matches!(n.op_type.as_str(), "Conv" | "Add")) {
        let inputs: Vec<&Encoding> = node.inputs.iter().filter_map(|input| index.activation(input)).collect();
        if inputs.is_empty() {
            continue;
        }
        let output = index.output_of(node).with_context(|| {
            format!(
                "tensor `{}`: is not quantized after {} `{}`, expected a scale",
                node.outputs.first().map_or("", String::as_str),
                node.op_type,
                node.name
            )
        })?;
        if let ("Conv", Some(first)) = (node.op_type.as_str(), inputs.first()) {
            entries.add(&format!("{} input_tensor_0", output.name), json!(scale(first)?))?;
        }
        entries.add(&format!("{} output_tensor_0", output.name), json!(scale(output)?))?;
    }
    json(&entries.into_value())
}
