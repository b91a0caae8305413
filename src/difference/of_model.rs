//! Reads the quantization of a model.

use super::{
    ConstantValues, Parameters, QuantizedNetwork, QuantizedNode, REMOVABLE, RemovableNode, constant_name, weight_of,
};
use crate::check::{QdqNode, QdqOperator, Role, operand_role};
use crate::matching::{TensorRoots, as_qdq};
use crate::onnx::data_type::type_name;
use crate::onnx::node::{constant, is_qdq, node_name};
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::onnx::tensor::raw_bytes;
use std::hash::{DefaultHasher, Hasher};

/// Reads a model with Q/DQ or operators on integers.
pub fn of_model(model: ModelProto) -> QuantizedNetwork {
    let expanded = as_qdq(model).model;
    let mut quantized = QuantizedNetwork::default();
    let Some(tensors) = TensorRoots::new(&expanded) else { return quantized };
    for node in tensors.nodes() {
        if is_qdq(node) || constant(node).is_some() {
            continue;
        }
        let is_quantized = match weight_of(node.op_type(), &node.input, |input| !tensors.is_activation(input)) {
            Some(weight) => tensors.is_quantized(weight),
            None => node.input.iter().any(|input| tensors.is_quantized(input)),
        };
        let facts = QuantizedNode { op_type: node.op_type().to_string(), is_quantized };
        quantized.nodes.insert(node_name(node).to_string(), facts);
        for (input_idx, input) in node.input.iter().enumerate() {
            if let Some(values) = values(&tensors, input) {
                let name = constant_name(node_name(node), operand_role(node.op_type(), input_idx), input_idx);
                quantized.values.insert(name, values);
            }
        }
        let ends = node.input.first().zip(node.output.first());
        if let Some((input, output)) = ends.filter(|_| REMOVABLE.contains(&node.op_type())) {
            let name = |value| tensors.name(tensors.root(value)).to_string();
            let removable = RemovableNode { node: node_name(node).to_string(), in_front: name(input) };
            quantized.removable.insert(name(output), removable);
        }
    }
    for qdq in &tensors.qdq.qdq_nodes {
        let names = match (qdq.role, qdq.operator) {
            (Role::Activation, _) => {
                let root = tensors.root(qdq.output);
                let is_first = tensors.quantizer(root).is_some_and(|first| first.output == qdq.output);
                if is_first { vec![tensors.name(root).to_string()] } else { Vec::new() }
            }
            // A constant that is stored in float has a Q in front of its DQ, with the same parameters.
            (_, QdqOperator::Quantize) => Vec::new(),
            (_, QdqOperator::Dequantize) => {
                let readers = tensors.qdq.operators_reading(qdq.output).into_iter();
                let name = |(node, input): (&NodeProto, usize)| {
                    constant_name(node_name(node), operand_role(node.op_type(), input), input)
                };
                readers.map(name).collect()
            }
        };
        for name in names {
            quantized.tensors.entry(name).or_insert_with(|| parameters(qdq));
        }
    }
    quantized
}

/// Returns the values of a constant that a node reads, as they are stored; `None` for any other tensor.
fn values(tensors: &TensorRoots, input: &str) -> Option<ConstantValues> {
    let mut stored = input;
    // A constant may have a DQ, and a constant that is stored in float a Q in front of it.
    for _ in 0..2 {
        let qdq = tensors.qdq.qdq_of(stored).filter(|qdq| qdq.role != Role::Activation);
        stored = qdq.map_or(stored, |qdq| qdq.input);
    }
    let constant = tensors.qdq.constant(stored)?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&raw_bytes(constant).ok()?);
    Some(ConstantValues { data_type: constant.data_type(), shape: constant.dims.clone(), hash: hasher.finish() })
}

fn parameters(qdq: &QdqNode) -> Parameters {
    Parameters {
        dtype: qdq.data_type.map_or("unknown", type_name).to_string(),
        scales: qdq.scale.known().unwrap_or_default().to_vec(),
        zero_points: qdq.zero_point.known().map_or(vec![0], <[i32]>::to_vec),
    }
}
