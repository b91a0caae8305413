//! The rule about concatenations.

use super::Draft;
use crate::scheme::RuleCall;

/// Quantizes the inputs of a Concat whose output is quantized, so that it moves integers.
pub(super) fn quantize_concat_inputs(draft: &mut Draft, _: &RuleCall) {
    // From last to first, so that a Concat before another Concat sees that its output is quantized.
    for node_idx in draft.open_nodes(&["Concat"]).into_iter().rev() {
        let node = &draft.graph.node[node_idx];
        let inputs = draft.activation_inputs(node_idx);
        let comes_quantized =
            |i: &usize| draft.is_quantizer(&node.input[*i]) || draft.backbone(&node.input[*i]).is_some();
        let wanted = node.output.first().is_some_and(|output| draft.is_quantizer(output));
        if wanted && inputs.iter().any(comes_quantized) {
            for input_idx in inputs {
                let reason = "input of a Concat whose output is quantized";
                draft.quantize_edge((node_idx, input_idx), reason);
            }
        }
    }
}
