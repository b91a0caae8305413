//! MQBench's file for HiSilicon NNIE (ModelTC/MQBench, mqbench/deploy/deploy_nnie.py): the range of every
//! quantized input of a layer, by the layer's name.

use super::PLAIN;
use crate::export::index::json;
use crate::export::{Format, SidecarIndex};
use crate::sidecar::Encoding;
use anyhow::Result;
use serde_json::{Map, Value, json};

/// Operators without an entry.
const EXCLUDED: [&str; 9] =
    ["Flatten", "Relu", "PRelu", "Sigmoid", "Reshape", "Softmax", "Clip", "GlobalAveragePool", "Mul"];

/// Operators that become Upsample and Permute, each with an entry.
const UPSAMPLING: [&str; 2] = ["Upsample", "Resize"];

/// `{"nnie": {"gfpq_param_dict": {node: [clip, …]}}}`. A clip is a value of the vendor's table, `2^(k/16)` with an
/// integer `k`: on NNIE's grids the plan's own, on other grids the one nearest to the range's largest absolute value.
/// Grouped convolutions have no entry.
pub(super) const FORMAT: Format = Format {
    name: "nnie",
    description: "MQBench's parameters for NNIE: JSON, clip values of every layer's inputs",
    suffix: "gfpq_param_dict.json",
    holds_nnie_codes: true,
    write,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut layers = Map::new();
    let mut n_upsampling = 0;
    for node in index.nodes().filter(|node| !EXCLUDED.contains(&node.op_type.as_str())) {
        if node.group.is_some() {
            continue;
        }
        let upsampling = UPSAMPLING.contains(&node.op_type.as_str());
        let n_inputs = if upsampling { 1 } else { node.inputs.len() };
        let mut clips = Vec::new();
        for input in &node.inputs[..n_inputs.min(node.inputs.len())] {
            if let Some(encoding) = index.activation(input) {
                clips.push(json!(clip(encoding)?));
            }
        }
        if clips.is_empty() {
            continue;
        }
        if upsampling {
            let permute = format!("{}_permute_{n_upsampling}", node.name);
            layers.insert(permute, Value::Array(clips.clone()));
            n_upsampling += 1;
        }
        layers.insert(node.name.clone(), Value::Array(clips));
    }
    json(&json!({ "nnie": { "gfpq_param_dict": layers } }))
}

fn clip(encoding: &Encoding) -> Result<f64> {
    if encoding.is_nnie() {
        return Ok(encoding.per_tensor()?.0);
    }
    let (min, max) = match encoding.range {
        Some([min, max]) => (min, max),
        None => encoding.per_tensor_bounds()?,
    };
    let amax = min.abs().max(max.abs());
    // A value below the table, as of a tensor of zeros, takes the first entry that is a normal float32.
    let k = (16.0 * amax.max(f64::from(f32::MIN_POSITIVE)).log2()).round_ties_even();
    Ok(f64::from((k / 16.0).exp2() as f32))
}
