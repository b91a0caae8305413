//! The rule about expectations over the probabilities of a Softmax.

use super::Draft;
use super::trace::MOVES;
use crate::onnx::node;
use crate::scheme::RuleCall;

/// Maximum columns of the constant.
const MAX_COLUMNS: i64 = 8;

/// Leaves the product of a Softmax with a constant of few columns float. Such a product is an expectation: a position
/// on a map, a distance from its bins, an age. A position is finer than a step of the grid, and most probabilities are
/// far below a step of 1/255.
pub(super) fn skip_expectations(draft: &mut Draft, _: &RuleCall) {
    for node_idx in 0..draft.graph.node.len() {
        let Some(columns) = draft.columns(node_idx).filter(|columns| *columns <= MAX_COLUMNS) else { continue };
        if draft.reads_softmax(node_idx) {
            let many = if columns == 1 { "one value" } else { "a few values" };
            draft.leave_float(node_idx, format!("an expectation of {many} over a Softmax"));
        }
    }
}

impl Draft<'_> {
    /// Returns the number of output channels of a layer's weight.
    fn columns(&self, node_idx: usize) -> Option<i64> {
        let (node, input_idx) = (&self.graph.node[node_idx], self.weight_input(node_idx)?);
        let dims = &self.index.initializer(node.input.get(input_idx)?)?.dims;
        let axis = node::axis_position(node::output_axis(node, input_idx), dims.len());
        dims.get(axis).copied()
    }

    /// Whether a node reads a Softmax, directly or behind operators that only move values.
    fn reads_softmax(&self, node_idx: usize) -> bool {
        let mut producer = self.activation_producers(node_idx).next();
        while let Some(moves) = producer.filter(|&before| MOVES.contains(&self.op(before))) {
            producer = self.activation_producers(moves).next();
        }
        producer.is_some_and(|before| self.op(before) == "Softmax")
    }
}
