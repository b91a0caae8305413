//! Reads the quantization that a sidecar records.

use super::{Parameters, QuantizedNetwork, QuantizedNode, REMOVABLE, RemovableNode, constant_name, weight_of};
use crate::check::{Role, operand_role};
use crate::sidecar::{Encoding, Sidecar};
use std::collections::{BTreeMap, BTreeSet};

/// Reads a sidecar.
pub fn of_sidecar(sidecar: &Sidecar) -> QuantizedNetwork {
    let mut quantized = QuantizedNetwork::default();
    let encodings = || sidecar.activation_encodings.iter().chain(&sidecar.param_encodings);
    let readers: BTreeSet<(&str, &str)> =
        encodings().flat_map(|it| it.consumers.iter().map(|node| (node.as_str(), it.name.as_str()))).collect();
    // The range of the quantizer replaces these nodes.
    let removed: BTreeSet<&str> = encodings().filter_map(|encoding| encoding.removed_node.as_deref()).collect();
    let graph = &sidecar.graph;
    let by_name: BTreeMap<&str, _> = graph.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let made = graph.nodes.iter().flat_map(|node| &node.outputs).chain(&graph.inputs);
    let made: BTreeSet<&str> = made.map(String::as_str).collect();
    for node in graph.nodes.iter().filter(|node| !removed.contains(node.name.as_str())) {
        let reads = |input: &str| readers.contains(&(node.name.as_str(), input));
        let is_quantized = match weight_of(&node.op_type, &node.inputs, |input| !made.contains(input)) {
            Some(weight) => reads(weight),
            None => node.inputs.iter().any(|input| reads(input)),
        };
        quantized.nodes.insert(node.name.clone(), QuantizedNode { op_type: node.op_type.clone(), is_quantized });
    }
    for node in graph.nodes.iter().filter(|node| REMOVABLE.contains(&node.op_type.as_str())) {
        if let (Some(in_front), Some(output)) = (node.inputs.first(), node.outputs.first()) {
            let removable = RemovableNode { node: node.name.clone(), in_front: in_front.clone() };
            quantized.removable.insert(output.clone(), removable);
        }
    }
    for encoding in &sidecar.activation_encodings {
        quantized.tensors.entry(encoding.name.clone()).or_insert_with(|| parameters(encoding));
    }
    for encoding in &sidecar.param_encodings {
        for name in &encoding.consumers {
            let reads = by_name.get(name.as_str()).and_then(|node| {
                let input = node.inputs.iter().position(|input| *input == encoding.name)?;
                Some((operand_role(&node.op_type, input), input))
            });
            // Constants that preparation made are not inputs of the sidecar's graph. One of int32 is a bias, any other
            // a weight.
            let made = if encoding.output_dtype == "int32" { (Role::Bias, 2) } else { (Role::Weight, 1) };
            let (role, input) = reads.unwrap_or(made);
            quantized.tensors.entry(constant_name(name, role, input)).or_insert_with(|| parameters(encoding));
        }
    }
    quantized
}

fn parameters(encoding: &Encoding) -> Parameters {
    Parameters {
        dtype: encoding.output_dtype.clone(),
        scales: encoding.y_scale.as_slice().to_vec(),
        zero_points: encoding.y_zero_point.as_slice().to_vec(),
    }
}
