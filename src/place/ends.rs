//! Rules about the first and the last layers, which lose most to few bits.

use super::{Draft, Rule};
use crate::scheme::{ParameterKind, RuleCall};
use std::collections::BTreeSet;

/// Which end of the network.
#[derive(Clone, Copy, PartialEq)]
enum End {
    First,
    Last,
}

impl Draft<'_> {
    /// Open nodes of `ops` (all operators with a weight row if empty) with a constant weight that no
    /// other such node stands before (first) or behind (last).
    fn end_layers(&self, end: End, ops: &[String]) -> Vec<usize> {
        let is_layer = |node_idx: usize| {
            let op = self.graph.node[node_idx].op_type();
            self.row(node_idx).is_some()
                && self.weight_input(node_idx).is_some()
                && (ops.is_empty() || ops.iter().any(|listed| listed == op))
        };
        let n = self.graph.node.len();
        let order: Vec<usize> = match end {
            End::First => (0..n).collect(),
            End::Last => (0..n).rev().collect(),
        };
        // Tensors that a layer stands before, or behind, in the direction of the walk.
        let mut beyond: BTreeSet<&str> = BTreeSet::new();
        let mut found = Vec::new();
        for node_idx in order {
            let node = &self.graph.node[node_idx];
            let (from, to) = match end {
                End::First => (&node.input, &node.output),
                End::Last => (&node.output, &node.input),
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
}

const OPS: &[(&str, ParameterKind)] = &[("ops", ParameterKind::Ops)];
const TYPES: &[(&str, ParameterKind)] =
    &[("ops", ParameterKind::Ops), ("input", ParameterKind::Type), ("weight", ParameterKind::Type)];

/// Leaves the first layers float.
pub struct SkipFirstLayers;

impl Rule for SkipFirstLayers {
    fn name(&self) -> &'static str {
        "skip_first_layers"
    }

    fn description(&self) -> &'static str {
        "layers with a weight that no other stands before stay float; `ops` names which operators count"
    }

    fn parameters(&self) -> &'static [(&'static str, ParameterKind)] {
        OPS
    }

    fn apply(&self, draft: &mut Draft, call: &RuleCall) {
        for node_idx in draft.end_layers(End::First, call.ops("ops")) {
            draft.leave_float(node_idx, self.name(), "one of the first layers");
        }
    }
}

/// Leaves the last layers float.
pub struct SkipLastLayers;

impl Rule for SkipLastLayers {
    fn name(&self) -> &'static str {
        "skip_last_layers"
    }

    fn description(&self) -> &'static str {
        "layers with a weight that no other stands behind stay float; `ops` names which operators count"
    }

    fn parameters(&self) -> &'static [(&'static str, ParameterKind)] {
        OPS
    }

    fn apply(&self, draft: &mut Draft, call: &RuleCall) {
        for node_idx in draft.end_layers(End::Last, call.ops("ops")) {
            draft.leave_float(node_idx, self.name(), "one of the last layers");
        }
    }
}

/// Gives the first layers types of their own. Source: NNCF, `OverflowFix.FIRST_LAYER`; MQBench,
/// `academic_quantizer.py`.
pub struct SetFirstLayerTypes;

impl Rule for SetFirstLayerTypes {
    fn name(&self) -> &'static str {
        "set_first_layer_types"
    }

    fn description(&self) -> &'static str {
        "layers with a weight that no other stands before get the types `input` and `weight`"
    }

    fn parameters(&self) -> &'static [(&'static str, ParameterKind)] {
        TYPES
    }

    fn apply(&self, draft: &mut Draft, call: &RuleCall) {
        for node_idx in draft.end_layers(End::First, call.ops("ops")) {
            draft.set_types(node_idx, call.name("input"), call.name("weight"));
        }
    }
}

/// Gives the last layers types of their own. Source: MQBench, `academic_quantizer.py`.
pub struct SetLastLayerTypes;

impl Rule for SetLastLayerTypes {
    fn name(&self) -> &'static str {
        "set_last_layer_types"
    }

    fn description(&self) -> &'static str {
        "layers with a weight that no other stands behind get the types `input` and `weight`"
    }

    fn parameters(&self) -> &'static [(&'static str, ParameterKind)] {
        TYPES
    }

    fn apply(&self, draft: &mut Draft, call: &RuleCall) {
        for node_idx in draft.end_layers(End::Last, call.ops("ops")) {
            draft.set_types(node_idx, call.name("input"), call.name("weight"));
        }
    }
}
