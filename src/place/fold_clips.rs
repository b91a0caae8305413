//! The rule about activation functions that the range replaces.

use super::Draft;
use super::clips::FoldableClip;
use crate::onnx::node;
use crate::scheme::RuleCall;

/// Removes a Relu or Clip where the next grid saturates at its bounds. In Qualcomm's HTP simulation a Clip between two
/// equal encodings loses its lower bound. Source: ONNX Runtime, `quantization/operators/activation.py`, which removes
/// them for asymmetric activations.
pub(super) fn fold_clips(draft: &mut Draft, call: &RuleCall) {
    for node_idx in 0..draft.graph.node.len() {
        let node = &draft.graph.node[node_idx];
        let standard = node::is_standard(node);
        if !standard || !call.ops("ops").iter().any(|op| op == node.op_type()) {
            continue;
        }
        let (Some(input), [output]) = (node.input.first(), node.output.as_slice()) else {
            continue;
        };
        // The node must be the only reader of its input, and the input must be computed and not quantized.
        let alone = draft.index.consumers(input) == [(node_idx, 0)]
            && draft.index.producer(input).is_some()
            && !draft.index.is_output(input)
            && !draft.is_quantizer(input);
        let Some((min, max)) = alone.then(|| draft.index.clip_bounds(node)).flatten() else {
            continue;
        };
        if draft.is_quantizer(output) {
            let clip = FoldableClip { node: node_idx, input: input.clone(), min, max };
            draft.fold_clip(output, clip);
        }
    }
}
