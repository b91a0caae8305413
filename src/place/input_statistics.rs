//! The rule about statistics of the network's inputs.

use super::Draft;
use super::trace::{BINARY, MOVES, POINTWISE};
use crate::scheme::RuleCall;
use std::collections::BTreeSet;

/// Operators that compute a statistic of a tensor.
const STATISTICS: &[&str] = &["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"];

/// Leaves the operators float that normalize a sample by its own statistics, and those that give the scale and offset
/// back to the outputs. Such statistics differ from sample to sample by orders of magnitude, which no range of all
/// samples resolves.
pub(super) fn skip_input_statistics(draft: &mut Draft, _: &RuleCall) {
    // `inputs` has the tensors that only elementwise operators and moves separate from an input of the network.
    // `statistics` has the statistics of such tensors.
    let mut inputs: BTreeSet<&str> = draft.graph.input.iter().map(|input| input.name()).collect();
    let mut statistics: BTreeSet<&str> = BTreeSet::new();
    for (node_idx, node) in draft.graph.node.iter().enumerate() {
        let op = node.op_type();
        let operands = draft.activation_inputs(node_idx);
        let operands: BTreeSet<&str> = operands.iter().map(|&input_idx| node.input[input_idx].as_str()).collect();
        let is_elementwise = POINTWISE.contains(&op) || BINARY.contains(&op);
        let is_known = is_elementwise || MOVES.contains(&op) || ["Cast", "Reciprocal"].contains(&op);
        if operands.is_empty() || !is_known && !STATISTICS.contains(&op) {
            continue;
        }
        let of_statistics = operands.is_subset(&statistics);
        let of_inputs = operands.iter().all(|operand| inputs.contains(operand) || statistics.contains(operand));
        if BINARY.contains(&op) && !operands.is_disjoint(&statistics) {
            draft.leave_float(node_idx, "reads a statistic of an input of the network");
        }
        if of_statistics || of_inputs && STATISTICS.contains(&op) {
            statistics.extend(node.output.iter().map(String::as_str));
        } else if of_inputs {
            inputs.extend(node.output.iter().map(String::as_str));
        }
    }
}
