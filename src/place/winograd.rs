//! The rule about convolutions that run by Winograd's algorithm.

use super::Draft;
use crate::onnx::node::{attribute, int};
use crate::onnx::proto::NodeProto;
use crate::scheme::RuleCall;

/// Gives ungrouped 3x3 convolutions of stride 1 a weight type of their own: Winograd's transform needs headroom.
/// Source: esp-ppq, `quantizer/NCNNQuantizer.py` (6 bits for ncnn).
pub(super) fn set_winograd_types(draft: &mut Draft, call: &RuleCall) {
    for node_idx in draft.open_nodes(&["Conv"]) {
        let node = &draft.graph.node[node_idx];
        let weight = node.input.get(1).and_then(|name| draft.index.initializer(name));
        let square = weight.is_some_and(|w| w.dims.len() == 4 && w.dims[2..] == [3, 3]);
        if square && int(node, "group", 1) == 1 && all_one(node, "strides") && all_one(node, "dilations") {
            draft.set_types(node_idx, None, call.name("weight"));
        }
    }
}

fn all_one(node: &NodeProto, name: &str) -> bool {
    attribute(node, name).is_none_or(|attribute| attribute.ints.iter().all(|&n| n == 1))
}
