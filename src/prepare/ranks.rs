//! Ranks of tensors, as far as the graph shows them without shape inference.

use crate::onnx::proto::{GraphProto, ValueInfoProto};
use std::collections::HashMap;

/// Operators whose output has the rank of the input with the highest rank.
const KEEP_RANK: &[&str] = &[
    "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Div", "Dropout", "Elu", "Erf", "Gelu",
    "HardSigmoid", "HardSwish", "InstanceNormalization", "LeakyRelu", "Max", "MaxPool", "Min", "Mish", "Mul", "PRelu",
    "Pad", "Pow", "Relu", "Resize", "Selu", "Sigmoid", "Softplus", "Sub", "Tanh",
];

/// Returns the ranks of inputs, of initializers, of tensors with a declared shape, and of results that follow from
/// them.
pub fn ranks(graph: &GraphProto) -> HashMap<&str, usize> {
    let declared = graph.input.iter().chain(&graph.value_info);
    let rank = |value: &ValueInfoProto| Some(value.tensor_type()?.shape.as_ref()?.dim.len());
    let declared = declared.filter_map(|value| Some((value.name(), rank(value)?)));
    let mut ranks: HashMap<&str, usize> = declared.collect();
    ranks.extend(graph.initializer.iter().map(|stored| (stored.name(), stored.dims.len())));
    for node in &graph.node {
        let mut of_inputs =
            node.input.iter().filter(|name| !name.is_empty()).map(|name| ranks.get(name.as_str()).copied());
        let rank = match node.op_type() {
            "Conv" | "ConvTranspose" => node.input.get(1).and_then(|weight| ranks.get(weight.as_str())).copied(),
            op if KEEP_RANK.contains(&op) => of_inputs.try_fold(0, |most, rank| Some(most.max(rank?))),
            _ => None,
        };
        if let (Some(rank), Some(output)) = (rank, node.output.first()) {
            ranks.entry(output).or_insert(rank);
        }
    }
    ranks
}
