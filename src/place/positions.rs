//! The rule about values that say where something is, or that are only ranked.

use super::Draft;
use super::trace::{BINARY, MOVES};
use crate::onnx::graph::Edge;
use crate::onnx::node;
use crate::scheme::RuleCall;
use std::collections::BTreeSet;

/// Operators that compute positions, besides [`BINARY`] and [`MOVES`].
const OF_POSITIONS: &[&str] = &["Abs", "Ceil", "Clip", "Concat", "Floor", "Neg", "Round", "Tile", "Where"];

/// Operators that compute ranks, besides those that compute positions.
const OF_RANKS: &[&str] = &["Exp", "MatMul", "ReduceL2", "ReduceSum", "ReduceSumSquare", "Sqrt"];

/// Leaves float: positions that a GridSample reads, outputs of layers that give only steps of positions, and tensors
/// that a TopK or ArgMax only ranks. In 8 bits, positions on a map of 128 pixels move by a pixel, and distances of near
/// neighbors become equal.
pub(super) fn skip_positions(draft: &mut Draft, _: &RuleCall) {
    let graph = draft.graph;
    let (mut positions, mut ranks): (BTreeSet<usize>, BTreeSet<usize>) = Default::default();
    // Nodes are in topological order, so in reverse all readers of a tensor come first.
    for (node_idx, node) in graph.node.iter().enumerate().rev() {
        let op = node.op_type();
        let is_listed = [BINARY, MOVES, OF_POSITIONS].iter().any(|list| list.contains(&op));
        let computes = node::is_standard(node) && draft.weight_input(node_idx).is_none();
        let uses: Vec<Edge> = node.output.iter().flat_map(|output| draft.index.value_readers(output)).collect();
        if computes && is_listed && uses.iter().any(|&edge| is_grid(draft, &positions, edge)) {
            positions.insert(node_idx);
        }
        let is_ranked = !uses.is_empty() && uses.iter().all(|&edge| is_ranked(draft, &ranks, edge));
        let is_output = node.output.iter().any(|output| draft.index.is_output(output));
        if computes && (is_listed || OF_RANKS.contains(&op)) && is_ranked && !is_output {
            ranks.insert(node_idx);
        }
    }
    // Differences of positions are small against the positions.
    let of_positions = positions.iter().flat_map(|&node_idx| &graph.node[node_idx].output);
    let readers = of_positions.flat_map(|output| draft.index.value_readers(output)).map(|edge| edge.0);
    let differences =
        readers.filter(|&reader| graph.node.get(reader).is_some_and(|node| BINARY.contains(&node.op_type())));
    let with_positions: BTreeSet<usize> = differences.chain(positions.iter().copied()).collect();
    let gives_steps = |node_idx: &usize| {
        let mut uses =
            graph.node[*node_idx].output.iter().flat_map(|output| draft.index.value_readers(output)).peekable();
        draft.weight_input(*node_idx).is_some()
            && uses.peek().is_some()
            && uses.all(|edge| with_positions.contains(&edge.0))
    };
    let steps: Vec<usize> = (0..graph.node.len()).filter(gives_steps).collect();
    draft.float_outputs.extend(steps);
    for node_idx in with_positions {
        draft.leave_float(node_idx, "computes positions");
    }
    for node_idx in ranks {
        draft.leave_float(node_idx, "its values are only ranked");
    }
}

/// Whether a use is the grid of a GridSample, or by a node that computes positions.
fn is_grid(draft: &Draft, positions: &BTreeSet<usize>, (node_idx, input_idx): Edge) -> bool {
    let is_sampler = draft.graph.node.get(node_idx).is_some_and(|node| node.op_type() == "GridSample");
    positions.contains(&node_idx) || is_sampler && input_idx == 1
}

/// Whether a use only ranks the values: by an ArgMax or ArgMin, by a TopK whose values nothing reads, or by a node whose
/// values are ranked.
fn is_ranked(draft: &Draft, ranks: &BTreeSet<usize>, (node_idx, input_idx): Edge) -> bool {
    let Some(node) = draft.graph.node.get(node_idx) else { return false };
    let is_unused = |output: Option<&String>| {
        output.is_none_or(|output| draft.index.consumers(output).is_empty() && !draft.index.is_output(output))
    };
    match node.op_type() {
        "ArgMax" | "ArgMin" => true,
        "TopK" => input_idx == 0 && is_unused(node.output.first()),
        _ => ranks.contains(&node_idx),
    }
}
