//! Rules about constant and computed operands.

use super::Draft;
use crate::scheme::{BiasRow, RuleCall};

/// Leaves biases float that are computed at run time, and their nodes where the table stores biases as integers.
pub(super) fn leave_computed_biases_float(draft: &mut Draft) {
    let graph = draft.graph;
    for (node_idx, node) in graph.node.iter().enumerate() {
        let bias = node.input.get(2).filter(|name| !name.is_empty() && !draft.is_constant(name));
        if bias.is_none() || !matches!(node.op_type(), "Conv" | "ConvTranspose" | "Gemm") {
            continue;
        }
        draft.keep_edge_float((node_idx, 2));
        if draft.row(node_idx).is_some_and(|row| row.bias != BiasRow::Float) {
            draft.leave_float(node_idx, "its bias is computed");
        }
    }
}

/// Leaves operators float whose weight is computed at run time.
pub(super) fn skip_non_constant_weights(draft: &mut Draft, call: &RuleCall) {
    let nodes = match call.ops("ops") {
        [] => draft.open_nodes(&["Conv", "ConvTranspose"]),
        ops => draft.open_nodes(ops),
    };
    for node_idx in nodes {
        let product = matches!(draft.graph.node[node_idx].op_type(), "Gemm" | "MatMul");
        let weight = draft.weight_input(node_idx);
        if weight != Some(1) && !(product && weight == Some(0)) {
            draft.leave_float(node_idx, "its weight is not a float constant");
        }
    }
}

/// Leaves elementwise operators with a constant operand float: they are a bias or a scaling, which backends fuse.
pub(super) fn skip_constant_operands(draft: &mut Draft, call: &RuleCall) {
    for node_idx in draft.open_nodes(call.ops("ops")) {
        let node = &draft.graph.node[node_idx];
        if node.input.iter().any(|name| !name.is_empty() && draft.is_constant(name)) {
            draft.leave_float(node_idx, "one operand is constant");
        }
    }
}
