//! Turns means over all positions into GlobalAveragePool, which more backends run on integers than ReduceMean.
//!
//! A ReduceMean over all axes after the second becomes a GlobalAveragePool, with a Flatten if the mean drops these
//! axes. All readers of the mean must be layers or nodes that only move values. A mean that is subtracted or divided by
//! belongs to a normalization, and stays.

use super::{Change, Pass};
use crate::onnx::graph::{GraphIndex, drop_unused};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use anyhow::Result;
use std::collections::{BTreeSet, HashMap};

/// The pass; see the module's documentation.
pub const POOL_MEANS: Pass = Pass { run };

/// Operators that may read a mean which becomes pooling.
const READERS: &[&str] =
    &["Conv", "Dropout", "Flatten", "Gemm", "MatMul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"];

/// Operators whose output has the rank of the input with the highest rank.
const KEEP_RANK: &[&str] = &[
    "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Div", "Dropout", "Elu", "Erf", "Gelu",
    "HardSigmoid", "HardSwish", "InstanceNormalization", "LeakyRelu", "MaxPool", "Mish", "Mul", "PRelu", "Pad", "Pow",
    "Relu", "Resize", "Selu", "Sigmoid", "Softplus", "Sub", "Tanh",
];

fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let found = means(graph);
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let mut names = Names::of(graph);
    let mut axes = Vec::new();
    let (n_found, found) = (found.len(), found.into_iter().collect::<BTreeSet<usize>>());
    for (node_idx, mean) in std::mem::take(&mut graph.node).into_iter().enumerate() {
        if !found.contains(&node_idx) {
            graph.node.push(mean);
            continue;
        }
        let (input, output) = (mean.input[0].as_str(), mean.output[0].as_str());
        if node::int(&mean, "keepdims", 1) == 1 {
            graph.node.push(node::make("GlobalAveragePool", mean.name(), &[input], output));
        } else {
            let pooled = names.fresh(&format!("{output}_pooled"));
            graph.node.push(node::make("GlobalAveragePool", mean.name(), &[input], &pooled));
            graph.node.push(node::make("Flatten", &names.fresh(&format!("{output}_flatten")), &[&pooled], output));
        }
        axes.extend(mean.input.into_iter().skip(1));
    }
    drop_unused(graph, axes);
    Ok(vec![Change::PooledMeans(n_found)])
}

/// Returns the positions of the nodes that become pooling.
fn means(graph: &GraphProto) -> Vec<usize> {
    let index = GraphIndex::new(graph);
    let declared = graph.input.iter().chain(&graph.value_info);
    let rank = |value: &ValueInfoProto| Some(value.tensor_type()?.shape.as_ref()?.dim.len());
    let declared = declared.filter_map(|value| Some((value.name(), rank(value)?)));
    let mut ranks: HashMap<&str, usize> = declared.collect();
    ranks.extend(graph.initializer.iter().map(|stored| (stored.name(), stored.dims.len())));
    let mut found = Vec::new();
    for (node_idx, node) in graph.node.iter().enumerate() {
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
        let rank = node.input.first().and_then(|input| ranks.get(input.as_str()));
        if rank.is_some_and(|&rank| is_mean_of_positions(graph, &index, node, rank)) {
            found.push(node_idx);
        }
    }
    found
}

/// Whether a node is a mean over all positions of a tensor with `rank` dimensions, read by [`READERS`] alone.
fn is_mean_of_positions(graph: &GraphProto, index: &GraphIndex, mean: &NodeProto, rank: usize) -> bool {
    let [output] = mean.output.as_slice() else { return false };
    if mean.op_type() != "ReduceMean" || !node::is_standard(mean) || rank < 3 {
        return false;
    }
    let axes: BTreeSet<i64> = index.axes(mean).into_iter().flatten().map(|axis| node::from_first(axis, rank)).collect();
    let mut readers = index.consumers(output).iter().map(|&(reader, _)| graph.node[reader].op_type());
    axes.into_iter().eq(2..rank as i64) && readers.all(|op| READERS.contains(&op))
}
