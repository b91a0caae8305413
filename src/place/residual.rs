//! The rule about residual additions.

use super::Draft;
use crate::scheme::RuleCall;

/// Leaves one input of a residual Add float and quantizes the other. The Add is then fused to the convolution that
/// produces the float input. Source: Model-Optimizer, `build_non_residual_input_map`.
pub(super) fn residual_add_longest_path_float(draft: &mut Draft, _: &RuleCall) {
    for node_idx in draft.open_nodes(&["Add"]) {
        let node = &draft.graph.node[node_idx];
        if draft.activation_inputs(node_idx) != [0, 1] {
            continue;
        }
        let producers = [0, 1].map(|i| draft.index.producer_idx(&node.input[i]));
        let [Some(first), Some(second)] = producers else { continue };
        let conv = |i: usize| {
            let backbone = draft.backbone(&node.input[i])?;
            draft.graph.node[backbone].op_type().starts_with("Conv").then_some(backbone)
        };
        let fused = match (conv(0), conv(1)) {
            (Some(a), Some(b)) if a == b => continue,
            (Some(_), Some(_)) => match draft.steps_to_common_ancestor(first, second) {
                Some((a, b)) if a > b => 0,
                _ => 1,
            },
            // Nothing can be fused if one input comes directly from the convolution at which the other path starts.
            (Some(a), None) if draft.is_ancestor(a, second) && a == first => continue,
            (None, Some(b)) if draft.is_ancestor(b, first) && b == second => continue,
            (Some(_), None) => 0,
            (None, Some(_)) => 1,
            (None, None) => continue,
        };
        draft.fused_input.insert(node_idx, fused);
        let reason = "the shorter path of a residual Add";
        draft.quantize_edge((node_idx, 1 - fused), reason);
    }
}

impl Draft<'_> {
    fn is_ancestor(&self, ancestor: usize, of: usize) -> bool {
        self.steps_to_common_ancestor(ancestor, of).is_some_and(|(up, _)| up == 0)
    }
}
