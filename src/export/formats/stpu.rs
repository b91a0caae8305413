//! MQBench's file for STPU (ModelTC/MQBench, mqbench/deploy/deploy_stpu.py): symmetric ranges of activations and
//! weights, and the steps of biases.

use super::PLAIN;
use crate::export::index::json;
use crate::export::{Format, SidecarIndex};
use crate::sidecar::{Encoding, NodeRecord};
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// `{tensor: {"min", "max"}, "NODE_weights": {"min", "max"}, "NODE_bias": {"alpha", "zero_point": 0}}` where `max` is
/// `127 * scale`. A Conv fused with Relu or Clip has the range of that node. Inputs of a Concat have the range of its
/// output, and the output of a Sigmoid has [-1, 1]. Outputs of Conv, Gemm and Resize also have an exponent `emin`.
pub(super) const FORMAT: Format = Format {
    name: "stpu",
    description: "MQBench's ranges for STPU: JSON, symmetric ranges and steps of biases",
    suffix: "stpu_minmax.json",
    write,
    needs_int8: true,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let mut ranges = Ranges::default();
    for (name, encoding) in index.with_passed_through() {
        ranges.set(name, encoding.amax_int8()?);
    }
    for node in index.nodes() {
        if let Some(weight) = index.weight_of(node) {
            ranges.set(&format!("{}_weights", node.name), weight.amax_int8()?);
        }
    }
    // MQBench quantizes the output of a Flatten even if that is the network's output.
    let last = index.nodes().rev().filter(|node| node.op_type == "Flatten");
    for node in last {
        let ends = node.inputs.first().zip(node.outputs.first());
        if let Some((input, amax)) = ends.and_then(|(i, o)| Some((i, ranges.amax(o)?)))
            && ranges.amax(input).is_none()
        {
            ranges.set(input, amax);
        }
    }
    for node in index.nodes() {
        let Some(output) = node.outputs.first() else { continue };
        match node.op_type.as_str() {
            "Sigmoid" => ranges.set(output, 1.0),
            "Relu" | "Clip" => {
                let conv = node.inputs.first().filter(|input| index.producer(input).is_some());
                if let (Some(amax), Some(conv)) = (ranges.amax(output), conv) {
                    ranges.set(conv, amax);
                }
            }
            _ => {}
        }
    }
    for node in index.nodes().filter(|node| node.op_type == "Concat") {
        if let Some(amax) = node.outputs.first().and_then(|output| ranges.amax(output)) {
            node.inputs.iter().for_each(|input| ranges.set(input, amax));
        }
    }
    let mut emin: BTreeMap<&str, i32> = BTreeMap::new();
    let mut biases = Vec::new();
    for node in index.nodes() {
        if let Some((output, exponent)) = exponent_of(index, &ranges, node)? {
            emin.insert(output, exponent);
        }
        let weight = ranges.amax(&format!("{}_weights", node.name));
        let has_bias = node.inputs.get(2).is_some_and(|bias| !bias.is_empty());
        if let (Some(weight), true) = (weight, has_bias) {
            let input = ranges.required(node, node.inputs.first())?;
            biases.push((format!("{}_bias", node.name), weight / 127.0 * (input / 127.0)));
        }
    }
    let mut file = Map::new();
    for (name, amax) in &ranges.0 {
        let mut entry = json!({ "min": amax.as_f64().map(|amax| -amax), "max": amax });
        if let Some(&exponent) = emin.get(name.as_str()) {
            entry["emin"] = json!(exponent);
        }
        file.insert(name.clone(), entry);
    }
    for (name, alpha) in biases {
        file.insert(name, json!({ "alpha": alpha, "zero_point": 0 }));
    }
    json(&Value::Object(file))
}

/// Largest absolute values by name, in the order of insertion.
#[derive(Default)]
struct Ranges(Map<String, Value>);

impl Ranges {
    fn set(&mut self, name: &str, amax: f64) {
        self.0.insert(name.to_string(), json!(amax));
    }

    fn amax(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }

    fn required(&self, node: &NodeRecord, tensor: Option<&String>) -> Result<f64> {
        let tensor = tensor.map_or("", String::as_str);
        self.amax(tensor).with_context(|| {
            format!("tensor `{tensor}`: is not quantized at {} `{}`, expected a range", node.op_type, node.name)
        })
    }
}

/// Returns the output of `node` and the exponent `emin`, for operators that have one.
fn exponent_of<'a>(index: &SidecarIndex, ranges: &Ranges, node: &'a NodeRecord) -> Result<Option<(&'a str, i32)>> {
    let Some(output) = node.outputs.first() else { return Ok(None) };
    let exponent = match node.op_type.as_str() {
        "Upsample" | "Resize" if ranges.amax(output).is_some() => exponent(ranges.required(node, Some(output))?) - 20,
        "Conv" | "ConvTranspose" => {
            let found = index.weight_of(node).zip(ranges.amax(output));
            let Some((weight, amax)) = found else { return Ok(None) };
            let input = ranges.required(node, node.inputs.first())?;
            let product = n_summands(weight).sqrt() * input * weight.amax_int8()?;
            exponent(product.max(amax)) - 10
        }
        "Gemm" if ranges.amax(output).is_some() => 128,
        _ => return Ok(None),
    };
    Ok(Some((output, exponent)))
}

/// Returns the product of the weight's dimensions after the first.
fn n_summands(weight: &Encoding) -> f64 {
    weight.shape.iter().flatten().skip(1).map(|&dim| dim as f64).product()
}

/// Returns the biased exponent of a positive value as a float32, 1 to 254; 0 for 0.
fn exponent(value: f64) -> i32 {
    match value {
        0.0 => 0,
        _ => (value.log2().floor() as i32 + 127).clamp(1, 254),
    }
}
