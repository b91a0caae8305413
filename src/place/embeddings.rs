//! The rule about sums of embeddings.

use super::{Draft, trace};
use crate::scheme::RuleCall;

/// Leaves the sum of word, position and token embeddings float. Source: MQBench,
/// `tensorrt_quantizer.py`, `_is_skiped_add`.
pub(super) fn skip_embedding_adds(draft: &mut Draft, _: &RuleCall) {
    // Nodes are in topological order: a sum is known before the sum that reads it.
    let mut sums: Vec<usize> = Vec::new();
    for node_idx in draft.open_nodes(&["Add"]) {
        let node = &draft.graph.node[node_idx];
        let from_table = |name: &String| {
            let producer = draft.producer_behind_moves(name);
            producer.is_some_and(|i| sums.contains(&i) || draft.reads_table(i))
        };
        if node.input.iter().any(from_table) {
            sums.push(node_idx);
        }
    }
    for node_idx in sums {
        draft.leave_float(node_idx, "a sum of embeddings");
    }
}

impl Draft<'_> {
    fn reads_table(&self, node_idx: usize) -> bool {
        let node = &self.graph.node[node_idx];
        node.op_type() == "Gather" && node.input.first().is_some_and(|name| self.is_constant(name))
    }

    /// Returns the node that produces `tensor`, looked for before operators that only move values. A Gather from a
    /// constant table does not count as a move.
    fn producer_behind_moves(&self, tensor: &str) -> Option<usize> {
        let is_mover = |node_idx: usize| trace::MOVES.contains(&self.graph.node[node_idx].op_type());
        let mut behind = self.back_through(tensor, |op| trace::MOVES.contains(&op));
        behind.find(|&node_idx| self.reads_table(node_idx) || !is_mover(node_idx))
    }
}
