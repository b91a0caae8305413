//! Axes of weights.

use crate::onnx::proto::NodeProto;

/// The axis of the output channels of the weight at `input_idx`; negative counts from the last.
pub(super) fn of_outputs(node: &NodeProto, input_idx: usize) -> i64 {
    match (node.op_type(), input_idx) {
        ("ConvTranspose", _) => 1,
        ("Gemm", 1) => i64::from(!is_transposed(node, "transB")),
        ("Gemm", _) => i64::from(is_transposed(node, "transA")),
        ("MatMul", 1) => -1,
        ("MatMul", _) => -2,
        _ => 0,
    }
}

/// The axis that the operator sums over, of the weight at `input_idx`; negative counts from the last. Of a
/// convolution's it is the one of the input channels.
pub(super) fn of_reduction(node: &NodeProto, input_idx: usize) -> i64 {
    match (node.op_type(), input_idx) {
        ("ConvTranspose", _) => 0,
        ("Gemm", 1) => i64::from(is_transposed(node, "transB")),
        ("Gemm", _) => i64::from(!is_transposed(node, "transA")),
        ("MatMul", 1) => -2,
        ("MatMul", _) => -1,
        _ => 1,
    }
}

fn is_transposed(node: &NodeProto, name: &str) -> bool {
    node.attribute.iter().any(|attribute| attribute.name() == name && attribute.i() != 0)
}

/// `axis` of a tensor of `rank` dimensions, counted from the first and kept inside.
pub(super) fn position(axis: i64, rank: usize) -> usize {
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    axis.clamp(0, rank.max(1) as i64 - 1) as usize
}
