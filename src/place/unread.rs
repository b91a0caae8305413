//! The rule about operators whose integers nothing reads.

use super::{Draft, Rule, trace};
use crate::scheme::{ParameterKind, RuleCall};

/// Leaves an operator without a weight float if no integer kernel reads its output: a Concat in front of a
/// BatchNormalization would give all channels one scale, which the normalization then spreads apart.
pub const SKIP_UNREAD: Rule = Rule {
    name: "skip_unread",
    about: "an operator of `ops` stays float if no operator that takes integers reads its output, behind operators of \
     `ops` and `past` and those that only move values",
    takes: &[("ops", ParameterKind::Ops), ("past", ParameterKind::Ops)],
    apply: skip_unread,
};

fn skip_unread(draft: &mut Draft, call: &RuleCall) {
    let (ops, past) = (call.ops("ops"), call.ops("past"));
    let graph = draft.graph;
    let lists = |list: &[String], op: &str| list.iter().any(|listed| listed == op);
    // From last to first: whether a node reads integers, or passes them on to one that does.
    let mut takes = vec![false; graph.node.len()];
    for (node_idx, node) in graph.node.iter().enumerate().rev() {
        let op = node.op_type();
        let is_open = draft.row(node_idx).is_some();
        let is_listed = is_open && lists(ops, op);
        takes[node_idx] = if is_listed || lists(past, op) || trace::MOVES.contains(&op) {
            let mut readers = node.output.iter().flat_map(|output| draft.index.value_readers(output));
            readers.any(|(reader, _)| takes[reader])
        } else {
            is_open
        };
        if is_listed && !takes[node_idx] {
            draft.leave_float(node_idx, "no operator that takes integers reads its output");
        }
    }
}
