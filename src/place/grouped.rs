//! The rule about grouped convolutions.

use super::Draft;
use crate::onnx::node::int;
use crate::scheme::RuleCall;

/// Leaves grouped convolutions float. Source: MQBench, `hardware/nnie.rst`: the NNIE tools skip them.
pub(super) fn skip_grouped_convs(draft: &mut Draft, call: &RuleCall) {
    let depthwise_only = call.number("depthwise", 0) != 0;
    for node_idx in draft.open_nodes(&["Conv", "ConvTranspose"]) {
        let node = &draft.graph.node[node_idx];
        let groups = int(node, "group", 1);
        let weight = node.input.get(1).and_then(|name| draft.index.initializer(name));
        let per_group = weight.and_then(|w| match node.op_type() {
            "Conv" => w.dims.get(1).copied(),
            _ => w.dims.first().map(|n| n / groups.max(1)),
        });
        if groups > 1 && (!depthwise_only || per_group == Some(1)) {
            let reason = format!("a convolution with {groups} groups");
            draft.leave_float(node_idx, reason);
        }
    }
}
