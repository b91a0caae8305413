//! Finds the differences between the quantization of two networks.
//!
//! In: two quantized models from any tools, or sidecars. Out: [`Differences`]: nodes that are quantized in one network
//! only, scales and zero points that moved, constants with other values, types that differ, nodes that one network
//! lacks. It runs no model, and does not say which network is better.

mod compare;
mod of_model;
mod of_sidecar;

pub use compare::{ByOperator, Differences, MovedScale, OneSided, OtherType, differences};
pub use of_model::of_model;
pub use of_sidecar::of_sidecar;

use crate::check::Role;
use std::collections::BTreeMap;

/// Returns the input that holds the weights of an operator, if it is constant.
fn weight_of<'a>(op_type: &str, inputs: &'a [String], is_constant: impl Fn(&str) -> bool) -> Option<&'a str> {
    let operands = match op_type {
        "Conv" | "ConvTranspose" | "LSTM" | "GRU" | "RNN" => inputs.get(1..2),
        "MatMul" | "Gemm" => inputs.get(..2),
        _ => None,
    };
    operands?.iter().map(String::as_str).find(|input| is_constant(input))
}

/// Returns a name for a constant, from the node that reads it.
fn constant_name(node: &str, role: Role, input: usize) -> String {
    match role {
        Role::Weight | Role::Bias => format!("{node} {}", role.name()),
        _ => format!("{node} input {input}"),
    }
}

/// The quantization of a network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantizedNetwork {
    /// Nodes by name, without QuantizeLinear and DequantizeLinear.
    pub nodes: BTreeMap<String, QuantizedNode>,
    /// Parameters of quantized tensors, by name. A constant is named after the node that reads it.
    pub tensors: BTreeMap<String, Parameters>,
    /// Values of the constants that nodes read, named as in `tensors`; empty for a sidecar, which has no values.
    pub values: BTreeMap<String, ConstantValues>,
    /// Nodes that a tool may remove, by the tensor behind each. Without the node, the tensor in front of it is
    /// quantized instead.
    pub removable: BTreeMap<String, RemovableNode>,
}

/// The stored values of a constant, for a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConstantValues {
    /// Element type, as its number in `TensorProto.DataType`.
    pub data_type: i32,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Hash of the bytes.
    pub hash: u64,
}

/// A node that a tool may remove, as the grid behind it saturates at its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovableNode {
    /// Name of the node.
    pub node: String,
    /// The tensor in front of the node.
    pub in_front: String,
}

/// Operators that a tool may remove.
const REMOVABLE: &[&str] = &["Relu", "Clip"];

/// A node of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizedNode {
    /// Operator of the node.
    pub op_type: String,
    /// Whether the node reads quantized values. For a node with weights, whether the weights are quantized.
    pub is_quantized: bool,
}

/// The quantization parameters of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// Integer type, in ONNX's spelling.
    pub dtype: String,
    /// Scales in order of the channels; empty where they are computed at run time.
    pub scales: Vec<f32>,
    /// Zero points: one, or one for each scale.
    pub zero_points: Vec<i32>,
}

impl Parameters {
    /// Returns type and granularity as text, such as `int8 per channel`.
    fn describe(&self) -> String {
        let how = match self.scales.len() {
            0 => " with computed scales",
            1 => "",
            _ => " per channel",
        };
        format!("{}{how}", self.dtype)
    }
}
