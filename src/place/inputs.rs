//! Rules that quantize inputs of operators.

use super::Draft;
use crate::scheme::{OpRow, RuleCall};

/// Quantizes the activations that convolutions and matrix products read.
pub(super) fn quantize_weighted_inputs(draft: &mut Draft, _: &RuleCall) {
    for node_idx in 0..draft.graph.node.len() {
        let Some(row) = draft.row(node_idx) else { continue };
        if row.weight.is_none() || row.input.is_none() {
            continue;
        }
        let op = draft.graph.node[node_idx].op_type();
        let operands = draft.activation_inputs(node_idx).into_iter().filter(|&input| input < 2);
        for input_idx in operands.collect::<Vec<_>>() {
            draft.quantize_edge((node_idx, input_idx), format!("input of {op}"));
        }
    }
}

/// Quantizes only the weight of an operator if the table has no type for the other operand. Source: ONNX Runtime,
/// `matmul_nbits_quantizer.py`.
pub(super) fn quantize_weights_alone(draft: &mut Draft, _: &RuleCall) {
    for node_idx in 0..draft.graph.node.len() {
        let alone = |row: &OpRow| row.weight.is_some() && row.input.is_none();
        if draft.row(node_idx).is_some_and(alone) && draft.weight_input(node_idx).is_some() {
            draft.weights_alone.insert(node_idx);
        }
    }
}

/// Quantizes the activations that listed operators read. Source: MQBench, `model_quantizer.py`,
/// `module_type_to_quant_input`; ONNX Runtime, `op_types_to_quantize`.
pub(super) fn quantize_inputs(draft: &mut Draft, call: &RuleCall) {
    let ops = call.ops("ops");
    let all_uses = call.number("all_uses", 0) != 0;
    for node_idx in 0..draft.graph.node.len() {
        let node = &draft.graph.node[node_idx];
        let listed = ops.is_empty() || ops.iter().any(|op| op == node.op_type());
        if !listed || draft.row(node_idx).is_none_or(|row| row.input.is_none()) {
            continue;
        }
        let has_weight = draft.row(node_idx).is_some_and(|row| row.weight.is_some());
        let reason = format!("input of {}", node.op_type());
        for input_idx in draft.activation_inputs(node_idx) {
            if has_weight && input_idx >= 2 {
                continue;
            }
            draft.quantize_edge((node_idx, input_idx), reason.clone());
            if all_uses && draft.is_quantized_edge((node_idx, input_idx)) {
                draft.quantize_tensor(&node.input[input_idx], reason.clone());
            }
        }
    }
}

/// Quantizes the constants of operators that read no other float tensor, such as an embedding table. Source: ONNX
/// Runtime, `qdq_quantizer.py`, which quantizes every initializer of a listed operator.
pub(super) fn quantize_constant_inputs(draft: &mut Draft, call: &RuleCall) {
    for node_idx in draft.open_nodes(call.ops("ops")) {
        let node = &draft.graph.node[node_idx];
        if draft.activation_inputs(node_idx).is_empty()
            && node.input.iter().any(|name| draft.index.float_initializer(name).is_some())
        {
            draft.weights_alone.insert(node_idx);
        }
    }
}
