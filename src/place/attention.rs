//! Rules about attention.

use super::Draft;
use crate::scheme::RuleCall;

/// Leaves the two products of an attention float if the backend has no fused kernel for the attention. Source:
/// Model-Optimizer, `find_nodes_from_mha_to_exclude` and `partitioning`.
pub(super) fn skip_attention_scores(draft: &mut Draft, call: &RuleCall) {
    let max_sequence = call.number("max_sequence", 512) as usize;
    let softmaxes = draft.graph.node.iter().filter(|node| node.op_type() == "Softmax");
    for softmax in softmaxes.collect::<Vec<_>>() {
        let (Some(scores), Some(weights)) = (softmax.input.first(), softmax.output.first()) else {
            continue;
        };
        let Some((first, masked)) = scores_product(draft, scores) else { continue };
        let long = draft.value_info.shape(scores).and_then(|s| s.last()).is_some_and(|&n| n > max_sequence);
        let reason = match (masked, long) {
            (true, _) => "attention with an added mask",
            (_, true) => "attention over a long sequence",
            _ => continue,
        };
        draft.leave_float(first, reason);
        let second = draft.index.consumers(weights).iter().map(|edge| edge.0);
        for node_idx in second.collect::<Vec<_>>() {
            if draft.graph.node[node_idx].op_type() == "MatMul" {
                draft.leave_float(node_idx, reason);
            }
        }
    }
}

/// Returns the product that computes the attention scores, and whether a mask is added. Between the product and
/// `scores` may be scalings, clippings, reshapings and the Add of the mask.
pub(super) fn scores_product(draft: &Draft, scores: &str) -> Option<(usize, bool)> {
    let (mut tensor, mut masked) = (scores, false);
    for _ in 0..8 {
        let node_idx = draft.index.producer_idx(tensor)?;
        let node = &draft.graph.node[node_idx];
        let varying = draft.activation_inputs(node_idx);
        match node.op_type() {
            "MatMul" => return (varying.len() == 2).then_some((node_idx, masked)),
            "Add" => masked |= varying.len() == 2,
            "Mul" | "Div" | "Sub" | "Max" | "Clip" | "Tanh" | "Cast" | "Identity" | "Dropout" | "Reshape"
            | "Transpose" | "Where" => {}
            _ => return None,
        }
        tensor = node.input.get(*varying.first()?)?;
    }
    None
}

/// Leaves the product of attention weights and values float, where operators that move values produce the values.
/// Source: NNCF, `onnx/quantization/ignored_patterns.py`, `MULTIHEAD_ATTENTION_OUTPUT`.
pub(super) fn skip_attention_output(draft: &mut Draft, _: &RuleCall) {
    const BRANCH: &[&str] = &["Reshape", "Transpose", "Gather", "Split", "Squeeze", "Concat"];
    for node_idx in draft.open_nodes(&["MatMul", "Gemm"]) {
        let node = &draft.graph.node[node_idx];
        let [a, b, ..] = node.input.as_slice() else { continue };
        let op = |name: &str| draft.index.producer(name).map_or("", |made| made.op_type());
        let from_softmax = |name: &str| match op(name) {
            "Softmax" => true,
            "Reshape" => {
                let source = draft.index.producer(name).and_then(|made| made.input.first());
                source.is_some_and(|source| op(source) == "Softmax")
            }
            _ => false,
        };
        if (from_softmax(a) && BRANCH.contains(&op(b))) || (from_softmax(b) && BRANCH.contains(&op(a))) {
            draft.leave_float(node_idx, "the output of attention");
        }
    }
}
