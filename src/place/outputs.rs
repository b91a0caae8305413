//! The rule that quantizes outputs.

use super::{Draft, Rule, Takes};
use crate::scheme::RuleCall;

/// Quantizes what quantized operators make, behind the activation function that follows.
pub struct QuantizeOutputs;

impl Rule for QuantizeOutputs {
    fn name(&self) -> &'static str {
        "quantize_outputs"
    }

    fn description(&self) -> &'static str {
        "the output of a quantized operator with an output row is quantized, behind the operators of \
         `past` that alone follow it; an output of the network stays float"
    }

    fn parameters(&self) -> &'static [(&'static str, Takes)] {
        &[("past", Takes::Ops)]
    }

    fn apply(&self, draft: &mut Draft, call: &RuleCall) {
        let past = call.ops("past");
        for node_idx in 0..draft.graph.node.len() {
            let Some(row) = draft.row(node_idx) else { continue };
            if row.output.is_none() || !draft.is_quantized(node_idx) {
                continue;
            }
            let node = &draft.graph.node[node_idx];
            let Some(mut tensor) = node.output.first() else { continue };
            while let [(next, 0)] = draft.index.consumers(tensor) {
                let next = &draft.graph.node[*next];
                let Some(output) = next.output.first() else { break };
                if draft.index.is_output(tensor) || !past.iter().any(|op| op == next.op_type()) {
                    break;
                }
                tensor = output;
            }
            if !draft.index.is_output(tensor) {
                draft.quantize_tensor(tensor, self.name(), format!("output of {}", node.op_type()));
            }
        }
    }
}
