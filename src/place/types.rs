//! Rules about single inputs that need their own type.

use super::Draft;
use super::trace::MOVES;
use crate::scheme::RuleCall;

/// Gives one input of listed operators another type. Source: ONNX Runtime, `execution_providers/qnn/quant_config.py`:
/// the second input of MatMul has 8 bits beside 16-bit activations.
pub(super) fn set_input_type(draft: &mut Draft, call: &RuleCall) {
    let (Ok(input_idx), Some(qtype)) = (usize::try_from(call.number("input", 0)), call.name("type")) else {
        return;
    };
    for node_idx in draft.open_nodes(call.ops("ops")) {
        draft.set_input_type((node_idx, input_idx), qtype);
    }
}

/// Gives a constant left operand another type than a constant right operand. Source: ONNX Runtime,
/// `core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc`: an int8 left operand is fused beside int8 only.
pub(super) fn set_left_constant_type(draft: &mut Draft, call: &RuleCall) {
    for node_idx in draft.open_nodes(call.ops("ops")) {
        if draft.weight_input(node_idx) == Some(0) {
            draft.set_types(node_idx, None, call.name("type"));
        }
    }
}

/// Maximum steps that TI looks back for a Softmax.
const MAX_STEPS_BACK: usize = 5;

/// Gives the operands of products of two activations another type. Source: TI edgeai-tensorlab,
/// `xmodelopt/quantization/v2/qconfig_types.py`, `adjust_matmul_inputs_qconfig`: symmetric, except for the output of a
/// Softmax.
pub(super) fn set_product_input_types(draft: &mut Draft, call: &RuleCall) {
    let (graph, except) = (draft.graph, call.ops("except_behind"));
    let Some(qtype) = call.name("type") else { return };
    for node_idx in draft.open_nodes(&["MatMul"]) {
        let operands = draft.activation_inputs(node_idx);
        if operands.len() < 2 {
            continue;
        }
        for input_idx in operands {
            let tensor = &graph.node[node_idx].input[input_idx];
            if comes_from(draft, tensor, except) {
                continue;
            }
            draft.set_input_type((node_idx, input_idx), qtype);
            // Operators that only move the values read them in the same type, so that they share a grid.
            for mover in movers(draft, tensor) {
                draft.set_input_type((mover, 0), qtype);
            }
        }
    }
}

/// Returns the positions of the operators directly before `tensor` that only move values, last first.
fn movers(draft: &Draft, tensor: &str) -> Vec<usize> {
    let moves = |op: &str| MOVES.contains(&op);
    let is_mover = |&node_idx: &usize| moves(draft.graph.node[node_idx].op_type());
    draft.back_through(tensor, moves).take_while(is_mover).collect()
}

/// Whether one of the last operators before `tensor`, along first inputs, is one of `ops`.
fn comes_from(draft: &Draft, tensor: &str, ops: &[String]) -> bool {
    let mut last = draft.back_through(tensor, |_| true).take(MAX_STEPS_BACK);
    last.any(|node_idx| ops.iter().any(|op| op == draft.graph.node[node_idx].op_type()))
}
