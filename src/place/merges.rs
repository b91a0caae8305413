//! The rule about pairs of operators that a target fuses.

use super::{Draft, Rule};
use crate::scheme::{ParameterKind, RuleCall};

/// Keeps the tensor between two merged operators float. Source: MQBench, `model_quantizer.py`,
/// `implicit_merge_patterns`: mul before add; `tensorrt_quantizer.py`: truediv before add, the mask of attention.
pub const SKIP_MERGED_INPUTS: Rule = Rule {
    name: "skip_merged_inputs",
    takes: &[("into", ParameterKind::Ops), ("from", ParameterKind::Ops)],
    apply: skip_merged_inputs,
};

fn skip_merged_inputs(draft: &mut Draft, call: &RuleCall) {
    for node_idx in draft.open_nodes(call.ops("into")) {
        for input_idx in draft.activation_inputs(node_idx) {
            let producer = draft.index.producer(&draft.graph.node[node_idx].input[input_idx]);
            if producer.is_some_and(|producer| call.lists("from", producer.op_type())) {
                draft.keep_edge_float((node_idx, input_idx));
            }
        }
    }
}
