//! Activation functions that are spelled out as several operators.

use super::Draft;
use super::trace::{BINARY, POINTWISE};
use crate::scheme::RuleCall;
use std::collections::BTreeSet;

/// Maximum operators of a spelled-out activation function.
const MAX_NODES: usize = 12;

/// A product of a tensor and a pointwise function of the same tensor, with the scalings after it.
pub struct Gate {
    /// The input tensor.
    pub input: String,
    /// All nodes of the gate, in the order of the graph.
    pub nodes: Vec<usize>,
}

impl Gate {
    /// Whether a node of the gate has one of these operators.
    pub fn has(&self, draft: &Draft, ops: &[&str]) -> bool {
        self.nodes.iter().any(|&node_idx| ops.contains(&draft.graph.node[node_idx].op_type()))
    }
}

impl Draft<'_> {
    /// Returns every gate of the graph: `x * f(x)`, and the scalings by constants that alone read the product.
    pub fn gates(&self) -> Vec<Gate> {
        let mut gates = Vec::new();
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            let [a, b] = node.input.as_slice() else { continue };
            if node.op_type() != "Mul" || self.activation_inputs(node_idx) != [0, 1] || a == b {
                continue;
            }
            let mut found = None;
            for (x, gate) in [(a, b), (b, a)] {
                let mut nodes = BTreeSet::from([node_idx]);
                if self.pointwise_between(x, gate, &mut nodes) {
                    found = Some((x.clone(), nodes));
                } else if let Some(source) = self.source_of_scaling(x) {
                    // GELU scales x before the product: (x / 2) * (1 + erf(x / sqrt 2)).
                    let mut nodes = BTreeSet::from([node_idx, source.1]);
                    if self.pointwise_between(source.0, gate, &mut nodes) {
                        found = Some((source.0.to_string(), nodes));
                    }
                }
                if found.is_some() {
                    break;
                }
            }
            let Some((input, mut nodes)) = found else { continue };
            nodes.extend(self.scalings_behind(node_idx));
            gates.push(Gate { input, nodes: nodes.into_iter().collect() });
        }
        gates
    }

    /// Whether `to` is a pointwise function of only `from` and constants. Adds its nodes to `nodes`.
    fn pointwise_between(&self, from: &str, to: &str, nodes: &mut BTreeSet<usize>) -> bool {
        if from == to {
            return true;
        }
        let Some(node_idx) = self.index.producer_idx(to) else { return false };
        let node = &self.graph.node[node_idx];
        let op = node.op_type();
        let known = POINTWISE.contains(&op) || BINARY.contains(&op);
        let inputs = self.activation_inputs(node_idx);
        if !known || inputs.is_empty() || nodes.len() >= MAX_NODES {
            return false;
        }
        nodes.insert(node_idx);
        inputs.iter().all(|&i| self.pointwise_between(from, &node.input[i], nodes))
    }

    /// Returns the tensor that a node scales by a constant to `tensor`, and the node's position.
    fn source_of_scaling(&self, tensor: &str) -> Option<(&str, usize)> {
        let node_idx = self.index.producer_idx(tensor)?;
        let input = self.scaled_input(node_idx)?;
        Some((self.graph.node[node_idx].input[input].as_str(), node_idx))
    }

    /// Returns the chain of nodes after the node that scale by a constant. Each is the only reader of the one before.
    fn scalings_behind(&self, mut node_idx: usize) -> Vec<usize> {
        let mut found = Vec::new();
        while let Some(output) = self.graph.node[node_idx].output.first() {
            let Some((next, _)) = self.index.only_value_reader(output) else { break };
            if self.scaled_input(next).is_none() {
                break;
            }
            node_idx = next;
            found.push(node_idx);
        }
        found
    }
}

/// Name of the rule about gates.
pub const SKIP_FUSED_GATES: &str = "skip_fused_gates";

/// Leaves spelled-out SiLU, hard-swish and Mish float where they are fused to a convolution or matrix product. Source:
/// Model-Optimizer, `partitioning.py` (Conv-Sigmoid-Mul); NNCF, `onnx/hardware/fused_patterns.py` (swish, hard-swish).
pub(super) fn skip_fused_gates(draft: &mut Draft, call: &RuleCall) {
    let alone = call.number("alone", 0) != 0;
    for gate in draft.gates() {
        let saturates = ["Sigmoid", "HardSigmoid", "Clip", "Relu", "Softplus", "Erf", "Tanh"];
        if gate.has(draft, &saturates) && (alone || draft.backbone(&gate.input).is_some()) {
            for &node_idx in &gate.nodes {
                let reason = "part of a spelled-out activation function";
                draft.leave_float(node_idx, reason);
            }
        }
    }
}
