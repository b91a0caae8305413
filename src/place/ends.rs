//! Rules about the first and the last layers, which lose most with few bits.

use super::Draft;
use crate::onnx::proto::GraphProto;
use crate::scheme::{ParameterKind, RuleCall};
use std::collections::BTreeSet;

/// An end of the network.
#[derive(Clone, Copy, PartialEq)]
pub enum NetworkEnd {
    /// The inputs.
    First,
    /// The outputs.
    Last,
}

impl Draft<'_> {
    /// Returns the layers at an end of the network, as [`layers_at_end`] does. Layers are nodes of `ops` (of all
    /// operators with a weight row if empty) that have a constant weight and may still be quantized.
    pub(super) fn end_layers(&self, end: NetworkEnd, ops: &[String]) -> Vec<usize> {
        let is_layer = |node_idx: usize| {
            let op = self.graph.node[node_idx].op_type();
            self.row(node_idx).is_some()
                && self.weight_input(node_idx).is_some()
                && (ops.is_empty() || ops.iter().any(|listed| listed == op))
        };
        layers_at_end(self.graph, end, is_layer)
    }
}

/// Returns the layers (nodes for which `is_layer` holds) that no other layer precedes (first) or follows (last), in
/// order.
pub fn layers_at_end(graph: &GraphProto, end: NetworkEnd, is_layer: impl Fn(usize) -> bool) -> Vec<usize> {
    let n = graph.node.len();
    let order: Vec<usize> = match end {
        NetworkEnd::First => (0..n).collect(),
        NetworkEnd::Last => (0..n).rev().collect(),
    };
    // Tensors that a layer precedes (first) or follows (last).
    let mut beyond: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for node_idx in order {
        let node = &graph.node[node_idx];
        let (from, to) = match end {
            NetworkEnd::First => (&node.input, &node.output),
            NetworkEnd::Last => (&node.output, &node.input),
        };
        let behind = from.iter().any(|name| beyond.contains(name.as_str()));
        let layer = is_layer(node_idx);
        if layer && !behind {
            found.push(node_idx);
        }
        if layer || behind {
            beyond.extend(to.iter().map(String::as_str).filter(|name| !name.is_empty()));
        }
    }
    found.sort_unstable();
    found
}

/// Parameters of the rules that set types.
pub(super) const TYPES: &[(&str, ParameterKind)] =
    &[("ops", ParameterKind::Ops), ("input", ParameterKind::Type), ("weight", ParameterKind::Type)];

/// Leaves the first or the last layers float.
pub(super) fn skip(draft: &mut Draft, call: &RuleCall, end: NetworkEnd) {
    let reason = if end == NetworkEnd::First { "one of the first layers" } else { "one of the last layers" };
    draft.end_layers(end, call.ops("ops")).into_iter().for_each(|node_idx| draft.leave_float(node_idx, reason));
}

/// Gives the first or the last layers types of their own. Source: NNCF, `OverflowFix.FIRST_LAYER`; MQBench,
/// `academic_quantizer.py`.
pub(super) fn set_types(draft: &mut Draft, call: &RuleCall, end: NetworkEnd) {
    for node_idx in draft.end_layers(end, call.ops("ops")) {
        draft.set_types(node_idx, call.name("input"), call.name("weight"));
    }
}
