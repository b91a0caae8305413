//! Rules about constant and computed operands.

use super::Draft;
use crate::scheme::RuleCall;

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
