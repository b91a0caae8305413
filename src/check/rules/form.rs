//! QuantizeLinear and DequantizeLinear as ONNX defines them.
//!
//! Source: ONNX `docs/Changelog.md`, both operators, versions 10, 13, 19, 21, 23, 25; ONNX Runtime
//! `docs/ContribOperators.md` for the domain `com.microsoft`.

use super::super::linear::{Kind, Linear, Values};
use super::super::qdq::QdqGraph;
use super::{Check, Finding, Report};
use crate::onnx::integers::type_name;
use crate::scheme::RuleCall;

/// The nodes are valid ONNX: inputs, element types of the opset, shapes of the parameters.
pub const LINEAR_FORM: Check = Check {
    name: "linear_form",
    about: "Q and DQ are valid in the model's operator sets: inputs, types, axis, shapes of parameters",
    is_universal: true,
    run: linear_form,
    ..Check::DEFAULT
};

/// First version of the default operator set whose Q and DQ take the type.
fn since(data_type: i32, kind: Kind) -> Option<i64> {
    Some(match data_type {
        2 | 3 => 10,
        6 if kind == Kind::Dequantize => 10,
        17..=20 => 19,
        4 | 5 | 21 | 22 => 21,
        23 => 23,
        25 | 26 => 25,
        _ => return None,
    })
}

/// Whether the operators of `com.microsoft` take the type.
fn is_contrib_type(data_type: i32) -> bool {
    matches!(data_type, 2..=6 | 17..=22)
}

fn linear_form(graph: &QdqGraph, _: &RuleCall, report: &mut Report) {
    for linear in &graph.linears {
        let inputs = linear.node.input.iter().take(2).filter(|name| !name.is_empty()).count();
        if inputs < 2 || linear.output.is_empty() {
            let found = format!("{inputs} inputs and {} outputs", linear.node.output.len());
            let expected = "a tensor, a scale, perhaps a zero point, and one output";
            report.add(Finding::new("node", found, expected).at(linear.node));
            continue;
        }
        check_type(graph, linear, report);
        check_parameters(graph, linear, report);
    }
}

fn check_type(graph: &QdqGraph, linear: &Linear, report: &mut Report) {
    let domain = linear.node.domain();
    let Some(data_type) = linear.data_type else { return };
    let is_contrib = domain == "com.microsoft";
    let version = graph.opset(domain).unwrap_or(0);
    let expected = match (is_contrib, since(data_type, linear.kind)) {
        (true, _) if is_contrib_type(data_type) => None,
        (false, Some(first)) if version >= first => None,
        (false, Some(first)) if is_contrib_type(data_type) => {
            Some(format!("operator set {first} or later, or the domain com.microsoft"))
        }
        (false, Some(first)) => Some(format!("operator set {first} or later")),
        _ => Some("an integer type of quantization".to_string()),
    };
    if let Some(expected) = expected {
        let found = format!("{} in operator set {version}", type_name(data_type));
        report.add(Finding::new("type", found, expected).at(linear.node).on(linear.input));
    }
    let version = if is_contrib { i64::MAX } else { version };
    let needs = [
        (linear.is_per_channel(), "one scale per channel", 13),
        (linear.block_size != 0, "blocks", 21),
    ];
    for (has, what, first) in needs {
        if has && version < first {
            let found = format!("{what} in operator set {version}");
            let expected = format!("operator set {first} or later");
            report.add(Finding::new("node", found, expected).at(linear.node).on(linear.input));
        }
    }
}

fn check_parameters(graph: &QdqGraph, linear: &Linear, report: &mut Report) {
    let name = |i: usize| linear.node.input.get(i).map_or("", String::as_str);
    if let Values::Broken(reason) = &linear.scale {
        report.add(Finding::new("scale", reason, "readable").at(linear.node).on(name(1)));
    }
    if let Values::Broken(reason) = &linear.zero_point {
        report.add(Finding::new("zero point", reason, "readable").at(linear.node).on(name(2)));
    }
    let Values::Constant(scales, scale_shape) = &linear.scale else { return };
    if let Values::Constant(_, shape) = &linear.zero_point
        && shape != scale_shape
        && shape.iter().product::<usize>() != 1.max(scales.len())
    {
        let (found, expected) =
            (format!("{shape:?}"), format!("that of the scale, {scale_shape:?}"));
        report.add(
            Finding::new("shape of the zero point", found, expected).at(linear.node).on(name(2)),
        );
    }
    if scales.is_empty() {
        report.add(Finding::new("scale", "empty", "a number").at(linear.node).on(name(1)));
    }
    let Some(shape) = graph.shape(linear.input) else { return };
    if !linear.is_per_channel() {
        return;
    }
    let rank = shape.len() as i64;
    let axis = if linear.axis < 0 { linear.axis + rank } else { linear.axis };
    let Some(n) = usize::try_from(axis).ok().and_then(|axis| shape.get(axis)) else {
        let expected = format!("within rank {rank}");
        let found = linear.axis.to_string();
        report.add(Finding::new("axis", found, expected).at(linear.node).on(linear.input));
        return;
    };
    let fits = match usize::try_from(linear.block_size) {
        Ok(0) => scale_shape.len() == 1 && scales.len() == *n,
        Ok(block) => {
            let expected = shape.iter().enumerate().map(|(i, dim)| match i as i64 == axis {
                true => dim.div_ceil(block),
                false => *dim,
            });
            scale_shape.iter().copied().eq(expected)
        }
        Err(_) => false,
    };
    if !fits {
        let expected = match linear.block_size {
            0 => format!("[{n}], one per slice of axis {axis} of {shape:?}"),
            block => format!("{shape:?} with axis {axis} divided by {block}"),
        };
        let found = format!("{scale_shape:?}");
        report.add(Finding::new("shape of the scale", found, expected).at(linear.node).on(name(1)));
    }
}
