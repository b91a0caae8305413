//! Arithmetic of indices stays float, whatever a table says: an index of 5 that is quantized to 4.99 becomes 4.

use super::{Draft, trace};
use crate::onnx::graph::Edge;
use crate::onnx::node;
use crate::onnx::tensor::DataType;
use std::collections::BTreeSet;

/// Operators of index arithmetic, besides those that move values. The result of any other operator does not count as an
/// index.
#[rustfmt::skip]
const ARITHMETIC: &[&str] = &[
    "Abs", "Add", "Ceil", "Clip", "Concat", "CumSum", "Div", "Floor", "Max", "Min", "Mod", "Mul", "Neg", "Relu", "Round",
    "Sub", "Tile", "Where",
];

/// Leaves a node float if all its outputs become 32-bit or 64-bit integers through arithmetic alone. Its inputs stay
/// float, too.
pub(super) fn leave_indices_float(draft: &mut Draft) {
    let mut indices: BTreeSet<&str> = BTreeSet::new();
    let mut nodes = Vec::new();
    // Nodes are in topological order, so in reverse all readers of a tensor come first.
    for (node_idx, node) in draft.graph.node.iter().enumerate().rev() {
        let becomes_index = |output: &String| {
            let uses = draft.index.consumers(output);
            let all = uses.iter().all(|&edge| reads_index(draft, &indices, edge));
            !uses.is_empty() && all && !draft.index.is_output(output)
        };
        let arithmetic =
            node::is_standard(node) && (ARITHMETIC.contains(&node.op_type()) || trace::MOVES.contains(&node.op_type()));
        if arithmetic && node.output.iter().all(becomes_index) {
            indices.extend(node.output.iter().map(String::as_str));
            nodes.push(node_idx);
        }
    }
    for node_idx in nodes {
        let node = &draft.graph.node[node_idx];
        if node.output.iter().any(|output| draft.value_info.is_float(output)) {
            draft.leave_float(node_idx, "its output is converted to integers");
            let edges = (0..node.input.len()).map(|input_idx| (node_idx, input_idx));
            draft.float_edges.extend(edges);
        }
    }
}

fn reads_index(draft: &Draft, indices: &BTreeSet<&str>, edge: Edge) -> bool {
    let (node_idx, input_idx) = edge;
    let node = &draft.graph.node[node_idx];
    let to_integers = || {
        let to = node::int(node, "to", 0);
        to == DataType::Int32 as i64 || to == DataType::Int64 as i64
    };
    match node.op_type() {
        "Cast" if input_idx == 0 => to_integers(),
        _ => node.output.iter().all(|output| indices.contains(output.as_str())),
    }
}
