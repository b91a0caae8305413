//! The quantization that a sidecar records.

use super::{Parameters, QuantizedNetwork, QuantizedNode, weight_of};
use crate::sidecar::{Encoding, Sidecar};
use std::collections::BTreeSet;

/// Reads a sidecar.
pub fn of_record(sidecar: &Sidecar) -> QuantizedNetwork {
    let mut quantized = QuantizedNetwork::default();
    let encodings = || sidecar.activation_encodings.iter().chain(&sidecar.param_encodings);
    let readers: BTreeSet<(&str, &str)> =
        encodings().flat_map(|it| it.consumers.iter().map(|node| (node.as_str(), it.name.as_str()))).collect();
    // The clip of the range stands for these.
    let removed: BTreeSet<&str> = encodings().filter_map(|encoding| encoding.removed_node.as_deref()).collect();
    let graph = &sidecar.graph;
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
    for encoding in &sidecar.activation_encodings {
        quantized.tensors.entry(encoding.name.clone()).or_insert_with(|| parameters(encoding));
    }
    for encoding in &sidecar.param_encodings {
        let role = if encoding.output_dtype == "int32" { "bias" } else { "weight" };
        for node in &encoding.consumers {
            quantized.tensors.entry(format!("{node} {role}")).or_insert_with(|| parameters(encoding));
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
