//! Outputs with a range that the operator determines.

use super::{Check, Finding, RuleReport};
use crate::check::QdqGraph;
use crate::onnx::data_type::type_name;
use crate::scheme::{ParameterKind, RuleCall};

/// Quantized outputs must have the parameters that the target has built in.
pub const FIXED_OUTPUT: Check = Check {
    name: "fixed_output",
    about: "outputs of `ops` that are quantized to `dtype` have the given `scale` and `zero_point`",
    takes: &[
        ("ops", ParameterKind::Ops),
        ("dtype", ParameterKind::Dtypes),
        ("scale", ParameterKind::Fraction),
        ("zero_point", ParameterKind::Number),
    ],
    run: fixed_output,
    ..Check::DEFAULT
};

fn fixed_output(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let Some(scale) = call.fraction("scale") else { return };
    let zero_point = call.number("zero_point", 0);
    let dtypes = call.dtypes("dtype");
    for node in graph.graph.node.iter().filter(|node| call.lists("ops", node.op_type())) {
        for quantize in node.output.iter().flat_map(|output| graph.quantizes_of(output)) {
            let Some(data_type) = quantize.data_type else { continue };
            if dtypes.as_ref().is_some_and(|dtypes| !dtypes.contains(&data_type)) {
                continue;
            }
            let same_scale = quantize.scale.known().is_none_or(|scales| *scales == [scale]);
            let zero_points = quantize.zero_point.known().unwrap_or(&[0]);
            let same_zero = zero_points.iter().all(|z| i64::from(*z) == zero_point);
            if !same_scale || !same_zero {
                let expected = format!("scale {scale:e}, zero point {zero_point}");
                let what = format!("quantization of the {} output", type_name(data_type));
                report.add(Finding::new(what, quantize.parameters(), expected).at(node).on(quantize.input));
            }
        }
    }
}
