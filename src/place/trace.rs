//! Paths in the graph: the convolution that a tensor comes from, the distance of two nodes from their common ancestor.

use super::Draft;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// Operators that only move values: quantized inputs give quantized outputs.
pub const MOVES: &[&str] = &[
    "Identity", "Dropout", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Gather",
    "Expand", "DepthToSpace", "SpaceToDepth",
];

/// Pointwise operators with one activation that a backend fuses to a convolution.
pub const POINTWISE: &[&str] = &[
    "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu", "Softplus",
    "Erf", "Gelu", "Mish", "Exp", "Sqrt", "Abs", "Neg", "BatchNormalization",
];

/// Pointwise operators with two operands.
pub const BINARY: &[&str] = &["Add", "Sub", "Mul", "Div", "Min", "Max", "Pow"];

/// Maximum length of a path.
const MAX_STEPS: usize = 64;

impl Draft<'_> {
    /// Returns the node that produces `tensor`, then the producer of that node's first input, and so on. The first node
    /// whose operator `passes` rejects is the last one.
    pub(super) fn back_through<'t>(
        &'t self,
        tensor: &'t str,
        passes: impl Fn(&str) -> bool + 't,
    ) -> impl Iterator<Item = usize> + 't {
        let before = move |&node_idx: &usize| {
            let node = &self.graph.node[node_idx];
            node.input.first().filter(|_| passes(node.op_type())).and_then(|input| self.index.producer_idx(input))
        };
        std::iter::successors(self.index.producer_idx(tensor), before)
    }

    /// Returns the quantized node with a weight that `tensor` is fused to. The search goes back through moves,
    /// pointwise operators, operands that are constant or come from the same node (SiLU, hard-swish), and the float
    /// input of a residual Add.
    pub fn backbone(&self, tensor: &str) -> Option<usize> {
        self.backbone_within(tensor, MAX_STEPS, &mut BTreeMap::new())
    }

    fn backbone_within<'t>(
        &'t self,
        tensor: &'t str,
        steps: usize,
        known: &mut BTreeMap<&'t str, Option<usize>>,
    ) -> Option<usize> {
        if let Some(backbone) = known.get(tensor) {
            return *backbone;
        }
        known.insert(tensor, None);
        let node_idx = self.index.producer_idx(tensor).filter(|_| steps > 0)?;
        let node = &self.graph.node[node_idx];
        let op = node.op_type();
        let backbone = if self.row(node_idx).is_some_and(|row| row.weight.is_some()) && self.is_quantized(node_idx) {
            Some(node_idx)
        } else if MOVES.contains(&op) || POINTWISE.contains(&op) {
            self.backbone_within(node.input.first()?, steps - 1, known)
        } else if BINARY.contains(&op) {
            if let Some(&fused) = self.fused_input.get(&node_idx) {
                self.backbone_within(&node.input[fused], steps - 1, known)
            } else {
                let inputs = self.activation_inputs(node_idx);
                let mut found =
                    inputs.iter().map(|&i| self.backbone_within(&node.input[i], steps - 1, known)).collect::<Vec<_>>();
                found.dedup();
                if found.len() == 1 { found[0] } else { None }
            }
        } else {
            None
        };
        known.insert(tensor, backbone);
        backbone
    }

    /// Returns the numbers of steps from each of two nodes back to their lowest common ancestor, if they have one. All
    /// graph inputs together count as one ancestor before all nodes.
    pub fn steps_to_common_ancestor(&self, a: usize, b: usize) -> Option<(usize, usize)> {
        let (from_a, from_b) = (self.steps_back(a), self.steps_back(b));
        // The lowest is the last in topological order.
        let common = from_a.keys().rev().find(|ancestor| from_b.contains_key(ancestor))?;
        Some((from_a[common], from_b[common]))
    }

    fn steps_back(&self, from: usize) -> BTreeMap<Option<usize>, usize> {
        let mut steps = BTreeMap::from([(Some(from), 0)]);
        let mut pending = VecDeque::from([from]);
        while let Some(node_idx) = pending.pop_front() {
            let distance = steps[&Some(node_idx)] + 1;
            for input in &self.graph.node[node_idx].input {
                if input.is_empty() || self.is_constant(input) {
                    continue;
                }
                let producer = self.index.producer_idx(input);
                if let Entry::Vacant(entry) = steps.entry(producer) {
                    entry.insert(distance);
                    pending.extend(producer);
                }
            }
        }
        steps
    }
}
