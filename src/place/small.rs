//! Rules about operators too small to gain from integers.

use super::Draft;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::int;
use crate::scheme::RuleCall;

/// Leaves convolutions with few channels float. Source: Model-Optimizer, `graph_utils`.
pub(super) fn skip_small_convs(draft: &mut Draft, call: &RuleCall) {
    let min = call.number("min_channels", 16);
    let multiple = call.number("multiple", 8).max(1);
    for node_idx in draft.open_nodes(&["Conv"]) {
        let node = &draft.graph.node[node_idx];
        let Some(weight) = node.input.get(1).and_then(|w| draft.index.initializer(w)) else {
            continue;
        };
        let [out, per_group, kernel @ ..] = weight.dims.as_slice() else { continue };
        let (out, per_group) = (*out, *per_group);
        if out >= min && per_group >= min {
            continue;
        }
        let first = node.input.first().is_some_and(|x| is_network_input(&draft.index, x));
        let is_multiple = |channels: i64| channels % multiple == 0;
        // The first condition of the kernels that the shape misses.
        let missing = if int(node, "group", 1) == 1 {
            if !is_multiple(out) && !is_multiple(per_group) {
                format!("{min} or more for both, or a multiple of {multiple} for one")
            } else if !first && out < min && per_group < min {
                format!("{min} or more for one")
            } else if kernel.iter().any(|size| size != &kernel[0]) {
                format!("{min} or more for both, or equal sides of the kernel {kernel:?}")
            } else {
                continue;
            }
        } else if !is_multiple(out) {
            format!("{min} or more for both, or a multiple of {multiple} for the output channels")
        } else if kernel.iter().any(|&size| size < 3) {
            format!("{min} or more for both, or sides of 3 or more for the kernel {kernel:?}")
        } else {
            continue;
        };
        let reason = format!("input channels per group: {per_group}, output channels: {out}, expected {missing}");
        draft.leave_float(node_idx, reason);
    }
}

/// Whether `tensor` is an input of the network, also behind Transposes, Casts and arithmetic with constants: channels-last
/// exports and normalizations begin with these.
fn is_network_input<'a>(index: &GraphIndex<'a>, mut tensor: &'a str) -> bool {
    while let Some(node) = index.producer(tensor) {
        let input = match node.op_type() {
            "Transpose" | "Cast" => Some(0),
            "Add" | "Sub" | "Mul" | "Div" => index.constant_operand(node).map(|constant| 1 - constant),
            _ => None,
        };
        let Some(input) = input.and_then(|input| node.input.get(input)) else { return false };
        tensor = input;
    }
    true
}

/// Name of the rule about small products.
pub const SKIP_SMALL_MATMULS: &str = "skip_small_matmuls";

/// Leaves matrix-vector products and tiny products float. Source: Model-Optimizer, `graph_utils`.
pub(super) fn skip_small_matmuls(draft: &mut Draft, call: &RuleCall) {
    let min = call.number("min_dim", 16) as usize;
    for node_idx in draft.open_nodes(&["MatMul", "Gemm"]) {
        let node = &draft.graph.node[node_idx];
        let shape = |name: Option<&String>| name.and_then(|name| draft.value_info.shape(name));
        let Some(out) = shape(node.output.first()) else {
            draft.leave_float(node_idx, "the shape of its output is unknown");
            continue;
        };
        let both_vary = draft.weight_input(node_idx).is_none();
        let last_two = &out[out.len().saturating_sub(2)..];
        let is_vector = match both_vary {
            true => last_two.len() < 2 || last_two.contains(&1),
            false => out.len() < 3 && out.contains(&1),
        };
        let k = shape(node.input.get(1)).filter(|b| b.len() >= 2).map(|b| {
            let axis = if int(node, "transB", 0) != 0 { 1 } else { 2 };
            b[b.len() - axis]
        });
        let n = out.last().copied().filter(|_| out.len() >= 2);
        let reason = if is_vector {
            format!("a matrix-vector product with the output shape {out:?}")
        } else if let Some(small) = [k, n].into_iter().flatten().find(|&dim| dim < min) {
            format!("a dimension is {small}, expected {min} or more")
        } else {
            continue;
        };
        draft.leave_float(node_idx, reason);
    }
}
