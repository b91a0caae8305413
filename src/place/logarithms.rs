//! The rule about operators in front of a logarithm or a root.

use super::Draft;
use super::trace::{BINARY, MOVES, POINTWISE};
use crate::scheme::RuleCall;
use std::collections::BTreeSet;

/// Operators in front of a logarithm, besides pointwise ones and those that move values.
const JOINING: &[&str] = &["Concat", "Pad", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "Where", "Cast"];

/// Functions whose input needs no float in front of a logarithm.
const SATURATING: &[&str] = &["Sigmoid", "HardSigmoid", "Softmax"];

/// Operators of a signal's transform, besides layers, [`BINARY`], [`MOVES`] and [`JOINING`].
const LINEAR: &[&str] = &["Neg", "Abs", "Sqrt", "BatchNormalization"];

/// Leaves the operators between a layer and a Log or Sqrt float: the result depends on the ratio of values, and 8 bits
/// have one value for everything below half a step. Most values of a spectrogram lie there.
pub(super) fn skip_log_chains(draft: &mut Draft, _: &RuleCall) {
    for node_idx in 0..draft.graph.node.len() {
        let found = match draft.op(node_idx) {
            "Log" => draft.spectrum(node_idx).unwrap_or_else(|| draft.in_front_of_log(node_idx)),
            "Sqrt" => draft.in_front_of_root(node_idx),
            _ => continue,
        };
        for before in found.nodes {
            draft.leave_float(before, "in front of a logarithm or root");
        }
        draft.float_outputs.extend(found.layers);
    }
}

/// The nodes in front of a Log or Sqrt, by position.
#[derive(Default)]
struct Before {
    nodes: BTreeSet<usize>,
    /// Layers with a weight in front of `nodes`.
    layers: BTreeSet<usize>,
}

impl Draft<'_> {
    /// Returns all nodes in front of a Log if they only transform inputs of the network; `None` if any other operator
    /// is among them.
    fn spectrum(&self, log: usize) -> Option<Before> {
        let mut found = Before::default();
        // Each node to visit, and whether a layer lies between the node and the Log.
        let mut pending = vec![(log, false)];
        while let Some((node_idx, has_layer)) = pending.pop() {
            for before in self.activation_producers(node_idx) {
                let op = self.op(before);
                let is_layer = self.weight_input(before).is_some();
                // A Clip behind all layers keeps zero from the Log.
                let is_floor = op == "Clip" && !has_layer;
                if !is_layer && !is_floor && ![BINARY, MOVES, JOINING, LINEAR].iter().any(|list| list.contains(&op)) {
                    return None;
                }
                if found.nodes.insert(before) {
                    pending.push((before, has_layer || is_layer));
                }
            }
        }
        Some(found)
    }

    fn in_front_of_log(&self, log: usize) -> Before {
        let found = self.in_front_of(log, |node_idx| SATURATING.contains(&self.op(node_idx)));
        let has_exp = found.nodes.iter().any(|&node_idx| self.op(node_idx) == "Exp");
        if has_exp { Before::default() } else { found }
    }

    fn in_front_of_root(&self, root: usize) -> Before {
        let found = self.in_front_of(root, |node_idx| self.is_square(node_idx) || self.op(node_idx) == "Sqrt");
        let has_square = found.nodes.iter().any(|&node_idx| self.is_square(node_idx));
        let nodes = if has_square { found.nodes } else { BTreeSet::new() };
        Before { nodes, layers: BTreeSet::new() }
    }

    /// Returns the operators without a weight in front of a node, back to layers or to nodes for which `ends` holds.
    fn in_front_of(&self, node_idx: usize, ends: impl Fn(usize) -> bool) -> Before {
        let mut found = Before::default();
        let mut pending = vec![node_idx];
        while let Some(node_idx) = pending.pop() {
            for before in self.activation_producers(node_idx) {
                let op = self.op(before);
                if self.weight_input(before).is_some() {
                    found.layers.insert(before);
                } else if [POINTWISE, BINARY, MOVES, JOINING].iter().any(|list| list.contains(&op)) {
                    let is_new = found.nodes.insert(before);
                    if is_new && !ends(before) {
                        pending.push(before);
                    }
                }
            }
        }
        found
    }
}
