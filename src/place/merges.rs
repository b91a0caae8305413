//! The rule about pairs of operators that a target fuses.

use super::Draft;
use crate::scheme::RuleCall;

/// Keeps the tensor between two merged operators float. Source: MQBench, `model_quantizer.py`,
/// `implicit_merge_patterns`: mul before add; `tensorrt_quantizer.py`: truediv before add, the mask of attention.
pub(super) fn skip_merged_inputs(draft: &mut Draft, call: &RuleCall) {
    for node_idx in draft.open_nodes(call.ops("into")) {
        for input_idx in draft.activation_inputs(node_idx) {
            let producer = draft.index.producer(&draft.graph.node[node_idx].input[input_idx]);
            if producer.is_some_and(|producer| call.lists("from", producer.op_type())) {
                draft.keep_edge_float((node_idx, input_idx));
            }
        }
    }
}
