//! Rules about normalization and activation functions that are spelled out as several operators and need float.

use super::Draft;
use crate::scheme::RuleCall;

/// Leaves spelled-out layer and RMS normalization float. Source: Model-Optimizer, `partitioning.py`, layer-norm chains.
pub(super) fn skip_layer_norm_chains(draft: &mut Draft, _: &RuleCall) {
    leave_chains_float(draft, "Sqrt", |draft, sqrt| draft.layer_norm_around(sqrt), "part of a layer normalization");
}

/// Leaves the nodes float that `around` returns for each node of operator `op_type`.
fn leave_chains_float(draft: &mut Draft, op_type: &str, around: fn(&Draft, usize) -> Option<Vec<usize>>, reason: &str) {
    for node_idx in 0..draft.graph.node.len() {
        if draft.op(node_idx) == op_type {
            for part in around(draft, node_idx).unwrap_or_default() {
                draft.leave_float(part, reason);
            }
        }
    }
}

/// Leaves a spelled-out Softmax float, like the operator Softmax. JAX has no other form.
pub(super) fn skip_softmax_chains(draft: &mut Draft, _: &RuleCall) {
    leave_chains_float(draft, "Exp", |draft, exp| draft.softmax_around(exp), "part of a Softmax");
}

/// Leaves a spelled-out GELU float. Source: Model-Optimizer, `partitioning.py` (Div-Erf-Add-Mul-Mul).
pub(super) fn skip_gelu_chains(draft: &mut Draft, _: &RuleCall) {
    for gate in draft.gates() {
        let with_cube = gate.has(draft, &["Tanh"]) && gate.has(draft, &["Add"]);
        if gate.has(draft, &["Erf"]) || with_cube {
            for &node_idx in &gate.nodes {
                draft.leave_float(node_idx, "part of a GELU");
            }
        }
    }
}
