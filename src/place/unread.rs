//! The rule about operators whose output no integer kernel reads.

use super::{Draft, trace};
use crate::scheme::RuleCall;

/// Leaves an operator without a weight float if no integer kernel reads its output: a Concat in front of a
/// BatchNormalization would give all channels one scale, which the normalization then spreads apart.
pub(super) fn skip_unread(draft: &mut Draft, call: &RuleCall) {
    let (graph, past, past_all) = (draft.graph, call.ops("past"), call.number("past_all", 0) == 1);
    // From last to first: whether a node takes integers, or passes them on to a node that does.
    let mut takes = vec![false; graph.node.len()];
    for (node_idx, node) in graph.node.iter().enumerate().rev() {
        let op = node.op_type();
        let (row, moves) = (draft.row(node_idx), trace::MOVES.contains(&op));
        let is_weighted = row.is_some_and(|row| row.weight.is_some());
        let passes = !is_weighted && (row.is_some() || moves || past_all || past.iter().any(|passed| passed == op));
        let is_read = |output| draft.index.value_readers(output).any(|(reader, _)| takes[reader]);
        // A weight may be quantized alone.
        let takes_integers = is_weighted && row.is_some_and(|row| row.input.is_some());
        takes[node_idx] = takes_integers || passes && node.output.iter().any(|output| is_read(output));
        if row.is_some() && !is_weighted && !moves && !takes[node_idx] {
            draft.leave_float(node_idx, "no operator that takes integers reads its output");
        }
    }
}
