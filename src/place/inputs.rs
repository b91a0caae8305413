//! The rule that quantizes the inputs of operators with weights.

use super::{Draft, Rule};
use crate::scheme::RuleCall;

/// Quantizes the activations that convolutions and matrix products read.
pub struct QuantizeWeightedInputs;

impl Rule for QuantizeWeightedInputs {
    fn name(&self) -> &'static str {
        "quantize_weighted_inputs"
    }

    fn description(&self) -> &'static str {
        "the activations that an operator with a weight row reads are quantized"
    }

    fn apply(&self, draft: &mut Draft, _call: &RuleCall) {
        for node_idx in 0..draft.graph.node.len() {
            let Some(row) = draft.row(node_idx) else { continue };
            if row.weight.is_none() || row.input.is_none() {
                continue;
            }
            let op = draft.graph.node[node_idx].op_type();
            let operands = draft.activation_inputs(node_idx).into_iter().filter(|&input| input < 2);
            for input_idx in operands.collect::<Vec<_>>() {
                draft.quantize_edge((node_idx, input_idx), self.name(), format!("input of {op}"));
            }
        }
    }
}
