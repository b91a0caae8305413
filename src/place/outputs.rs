//! The rule that quantizes outputs of operators.

use super::Draft;
use super::trace::{BINARY, MOVES, POINTWISE};
use crate::scheme::RuleCall;

/// Name of the rule about outputs of layers.
pub const QUANTIZE_OUTPUTS: &str = "quantize_outputs";

/// Quantizes the outputs of quantized operators, after the activation function that follows.
pub(super) fn quantize_outputs(draft: &mut Draft, call: &RuleCall) {
    let (graph, past) = (draft.graph, call.ops("past"));
    let has_float_ends = call.number("float_ends", 0) == 1;
    for node_idx in 0..draft.graph.node.len() {
        let Some(row) = draft.row(node_idx) else { continue };
        if row.output.is_none() || !draft.is_quantized(node_idx) || draft.float_outputs.contains(&node_idx) {
            continue;
        }
        let node = &graph.node[node_idx];
        // A Split has several outputs; unused ones are skipped.
        for output in &node.output {
            if !draft.index.consumers(output).is_empty() {
                let (tensor, passed) = chain_end(draft, output, past);
                let is_end = has_float_ends && ends_in_float(draft, tensor);
                if !is_end && !draft.index.is_output(tensor) {
                    draft.before_quantizer.extend(passed.into_iter().map(|passed| (passed, node_idx)));
                    let reason = format!("output of {}", node.op_type());
                    draft.quantize_tensor(tensor, reason);
                }
            }
        }
    }
}

/// Returns the tensor at the end of the chain of `past` operators that alone reads `tensor`, and the positions of the
/// chain's nodes.
fn chain_end<'a>(draft: &Draft<'a>, mut tensor: &'a str, past: &[String]) -> (&'a str, Vec<usize>) {
    let (graph, mut passed) = (draft.graph, Vec::new());
    while let Some((node_idx, 0)) = draft.index.only_value_reader(tensor) {
        let next = &graph.node[node_idx];
        let Some(output) = next.output.first() else { break };
        if !past.iter().any(|op| op == next.op_type()) {
            break;
        }
        tensor = output;
        passed.push(node_idx);
    }
    (tensor, passed)
}

/// Whether only float operators that work on single values or move them, and a Softmax, lead from the tensor to outputs
/// of the network, and nothing else reads it. The values of a map on an 8-bit grid tie, so that it has more peaks.
fn ends_in_float(draft: &Draft, tensor: &str) -> bool {
    let is_listed = |node_idx: usize| {
        let op = draft.op(node_idx);
        let lists = [POINTWISE, MOVES, &["Softmax", "LogSoftmax"]];
        lists.iter().any(|list| list.contains(&op))
            || BINARY.contains(&op) && draft.activation_inputs(node_idx).len() == 1
    };
    let mut pending = vec![tensor];
    while let Some(tensor) = pending.pop() {
        for (node_idx, _) in draft.index.value_readers(tensor) {
            let Some(node) = draft.graph.node.get(node_idx).filter(|_| is_listed(node_idx)) else { return false };
            if draft.is_quantized(node_idx) {
                return false;
            }
            pending.extend(node.output.iter().map(String::as_str));
        }
    }
    true
}
