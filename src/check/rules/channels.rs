//! Per-tensor and per-channel scales, and the axis of the channels.

use super::{Check, Finding, RuleReport};
use crate::check::{QdqGraph, QdqNode, Role, operand_role};
use crate::onnx::node;
use crate::onnx::proto::NodeProto;
use crate::scheme::{Axis, Granularity, Parameter, ParameterKind, RuleCall, Scheme};

/// Scales must be per tensor.
pub const PER_TENSOR: Check = Check {
    name: "per_tensor",
    about: "each tensor has one scale; `of` selects roles (default: all)",
    takes: &[("of", ParameterKind::Words(Role::NAMES))],
    run: per_tensor,
    ..Check::DEFAULT
};

fn per_tensor(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let several = graph.distinct().filter(|qdq| qdq.is_per_channel());
    for qdq in several.filter(|qdq| qdq.role.is_among(call)) {
        let found = qdq.scale.known().map_or(0, <[f32]>::len).to_string();
        let what = format!("number of scales of the {}", qdq.role.name());
        report.add(Finding::new(what, found, "1").at(qdq.node).on(qdq.input));
    }
}

/// Per-channel scales must lie along the operator's channel axis.
pub const PER_CHANNEL_AXIS: Check = Check {
    name: "per_channel_axis",
    about: "axis of a weight's scales, for each operator type: a number, `output`, `columns` of a matrix, or `none` for one scale",
    takes: &[("*", ParameterKind::Axis)],
    contradiction: of_rows,
    run: per_channel_axis,
    ..Check::DEFAULT
};

/// Returns the first row whose axis differs from the axis of the rule, if both are numbers.
fn of_rows(scheme: &Scheme, call: &RuleCall) -> Option<(String, String)> {
    scheme.ops.iter().find_map(|(op, row)| {
        let weight = row.weight.as_ref()?;
        let is_per_channel = scheme.types.get(&weight.qtype)?.granularity == Granularity::PerChannel;
        match (weight.axis, call.parameters.get(op)) {
            (Axis::Number(found @ 0..), Some(Parameter::Number(expected))) if is_per_channel && found != *expected => {
                Some((format!("ops.{op}.weight.axis"), format!("{found}, expected {expected}")))
            }
            _ => None,
        }
    })
}

fn per_channel_axis(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    for node in &graph.graph.node {
        let Some(wanted) = call.parameters.get(node.op_type()) else { continue };
        for (i, input) in node.input.iter().enumerate() {
            let Some(qdq) = graph.dequantize_of(input).filter(|l| l.is_per_channel()) else {
                continue;
            };
            if operand_role(node.op_type(), i) != Role::Weight || !graph.is_constant(qdq.input) || qdq.block_size != 0 {
                continue;
            }
            check_axis(graph, node, i, qdq, wanted, report);
        }
    }
}

fn check_axis(
    graph: &QdqGraph,
    node: &NodeProto,
    input: usize,
    qdq: &QdqNode,
    wanted: &Parameter,
    report: &mut RuleReport,
) {
    let rank = graph.shape(qdq.input).map(|shape| shape.len());
    let from_front = |axis: i64| rank.map_or(axis, |rank| node::from_first(axis, rank));
    let one_scale = match wanted {
        Parameter::Number(_) => false,
        Parameter::Name(text) if text == "output" => false,
        Parameter::Name(text) if text == "columns" => rank.is_some_and(|rank| node::columns(input, rank).is_none()),
        _ => true,
    };
    if one_scale {
        let found = "one per channel";
        report.add(Finding::new("scale", found, "one for the tensor").at(node).on(qdq.input));
        return;
    }
    let expected = match wanted {
        Parameter::Number(axis) => Some(*axis),
        _ => output_axis(node, input, rank),
    };
    if let Some(expected) = expected
        && from_front(qdq.axis) != from_front(expected)
    {
        let (found, expected) = (from_front(qdq.axis), from_front(expected));
        report.add(Finding::new("axis of the scales", found.to_string(), expected.to_string()).at(node).on(qdq.input));
    }
}

/// Returns the axis of the output channels in a node's constant input, if it is known.
fn output_axis(node: &NodeProto, input: usize, rank: Option<usize>) -> Option<i64> {
    if !matches!(node.op_type(), "Conv" | "ConvTranspose" | "Gemm" | "MatMul") {
        return None;
    }
    match node::output_axis(node, input) {
        axis if axis < 0 => Some(node::from_first(axis, rank?)),
        axis => Some(axis),
    }
}
