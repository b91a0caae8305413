//! The rule about operators that are quantized because their inputs are.

use super::Draft;
use crate::scheme::RuleCall;
use std::collections::BTreeMap;

/// Quantizes pooling and elementwise operators that follow quantized ones. Source: Model-Optimizer,
/// `filter_quantizable_kgen_heads`.
pub(super) fn quantize_followers(draft: &mut Draft, call: &RuleCall) {
    let fuse = call.number("fuse", 0) != 0;
    for node_idx in draft.open_nodes(call.ops("ops")) {
        if draft.fused_input.contains_key(&node_idx) {
            continue;
        }
        let node = &draft.graph.node[node_idx];
        let inputs = draft.activation_inputs(node_idx);
        let pointwise = matches!(node.op_type(), "Add" | "Mul" | "Sub" | "Div");
        let has_constant = node.input.iter().any(|n| !n.is_empty() && draft.is_constant(n));
        if fuse && pointwise {
            let output = node.output.first().and_then(|output| draft.backbone(output));
            if has_constant || output.is_some() {
                continue;
            }
        }
        let follows = |i: usize| {
            let tensor = &node.input[i];
            match draft.backbone(tensor) {
                // A tensor that a matrix product is added to is a residual stream, kept in float.
                Some(backbone) if fuse && pointwise => draft.graph.node[backbone].op_type().starts_with("Conv"),
                Some(_) => true,
                None => comes_quantized(draft, tensor, &mut BTreeMap::new()),
            }
        };
        let following: Vec<usize> = inputs.iter().copied().filter(|&i| follows(i)).collect();
        if following.is_empty() {
            continue;
        }
        let keep_float =
            |i: usize| fuse && node.op_type() == "Add" && !follows(i) && !draft.is_quantizer(&node.input[i]);
        let chosen: Vec<usize> = inputs.into_iter().filter(|&i| !keep_float(i)).collect();
        let reason = format!("input of {}, which follows a quantized operator", node.op_type());
        for input_idx in chosen {
            draft.quantize_edge((node_idx, input_idx), reason.clone());
        }
    }
}

/// Whether a quantized node produces the tensor, or a Concat of only such tensors. `known` holds the answers for the
/// outputs of Concats that were met.
fn comes_quantized<'t>(draft: &'t Draft, tensor: &'t str, known: &mut BTreeMap<&'t str, bool>) -> bool {
    if let Some(comes) = known.get(tensor) {
        return *comes;
    }
    let Some(producer) = draft.index.producer_idx(tensor) else { return false };
    if draft.is_quantized(producer) {
        return true;
    }
    let node = &draft.graph.node[producer];
    let inputs = draft.activation_inputs(producer);
    let joins = node.op_type() == "Concat" && draft.row(producer).is_some() && !inputs.is_empty();
    let comes = joins
        && inputs
            .iter()
            .map(|&i| node.input[i].as_str())
            .all(|input| draft.backbone(input).is_some() || comes_quantized(draft, input, known));
    known.insert(tensor, comes);
    comes
}
