//! Turns means over all positions into GlobalAveragePool, which more backends run on integers than ReduceMean.
//!
//! A ReduceMean over all axes after the second becomes a GlobalAveragePool, with a Flatten if the mean drops these
//! axes. All readers of the mean must be layers or nodes that only move values. A mean that is subtracted or divided by
//! belongs to a normalization, and stays.

use super::Change;
use super::ranks::ranks;
use crate::onnx::graph::{GraphIndex, drop_unused};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use anyhow::Result;
use std::collections::BTreeSet;

/// Operators that may read a mean which becomes pooling.
const READERS: &[&str] =
    &["Conv", "Dropout", "Flatten", "Gemm", "MatMul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"];

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let found = means(graph);
    let mut names = Names::of(graph);
    let mut axes = Vec::new();
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
    Ok(Change::counted([(found.len(), Change::PooledMeans)]))
}

/// Returns the positions of the nodes that become pooling.
fn means(graph: &GraphProto) -> BTreeSet<usize> {
    let index = GraphIndex::new(graph);
    let ranks = ranks(graph);
    let is_mean = |node: &NodeProto| {
        let rank = node.input.first().and_then(|input| ranks.get(input.as_str()));
        rank.is_some_and(|&rank| is_mean_of_positions(graph, &index, node, rank))
    };
    (0..graph.node.len()).filter(|&node_idx| is_mean(&graph.node[node_idx])).collect()
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
