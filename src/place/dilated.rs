//! The rule about pooling with dilations.

use super::Draft;
use crate::onnx::node::attribute;
use crate::scheme::RuleCall;

/// Leaves average pooling with dilations float. Source: microsoft/onnxruntime,
/// `core/graph/contrib_ops/quantization_defs.cc`: QLinearAveragePool, which replaces an AveragePool between Q/DQ, has
/// no such attribute, and the model is refused.
pub(super) fn skip_dilated_pools(draft: &mut Draft, _: &RuleCall) {
    for node_idx in draft.open_nodes(&["AveragePool"]) {
        if attribute(&draft.graph.node[node_idx], "dilations").is_some() {
            draft.leave_float(node_idx, "average pooling with dilations");
            draft.keep_edge_float((node_idx, 0));
        }
    }
}
