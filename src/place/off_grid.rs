//! Tensors that some nodes read as float, because no grid holds their values.

use super::Draft;
use crate::onnx::node;
use crate::onnx::proto::NodeProto;
use std::collections::BTreeSet;

/// Tensors with observed values that no grid holds, by the kind of these values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffGrid {
    /// Tensors with minus infinity that are not the mask of a Softmax alone. All nodes read them as float.
    pub infinite: BTreeSet<String>,
    /// Tensors with values other than 0 that a grid rounds to 0. Nodes with a pole at 0 read them as float.
    pub near_zero: BTreeSet<String>,
}

impl OffGrid {
    /// Whether there are no such tensors.
    pub fn is_empty(&self) -> bool {
        self.infinite.is_empty() && self.near_zero.is_empty()
    }
}

/// Whether a node gives infinity where this input is 0: the divisor of a Div, and the input of a Reciprocal or Log.
pub fn has_pole(node: &NodeProto, input_idx: usize) -> bool {
    node::is_standard(node) && matches!((node.op_type(), input_idx), ("Div", 1) | ("Reciprocal" | "Log", 0))
}

/// Leaves the uses float that read values which no grid holds. A node with a row in the table stays float with all its
/// inputs.
pub(super) fn leave_uses_float(draft: &mut Draft, tensors: &OffGrid) {
    for (node_idx, node) in draft.graph.node.iter().enumerate() {
        let reason = |input_idx: usize, name: &str| {
            if tensors.infinite.contains(name) {
                Some("reads minus infinity, which no grid holds")
            } else if tensors.near_zero.contains(name) && has_pole(node, input_idx) {
                Some("reads values that a grid rounds to 0, where its result is infinite")
            } else {
                None
            }
        };
        let inputs = node.input.iter().enumerate();
        let found = inputs.filter_map(|(input_idx, name)| Some((input_idx, reason(input_idx, name)?)));
        let found: Vec<(usize, &str)> = found.collect();
        let Some((_, why)) = found.first() else { continue };
        if draft.table_row(node_idx).is_some() {
            draft.leave_float(node_idx, *why);
            (0..node.input.len()).for_each(|input_idx| draft.keep_edge_float((node_idx, input_idx)));
        }
        found.iter().for_each(|(input_idx, _)| draft.keep_edge_float((node_idx, *input_idx)));
    }
}
