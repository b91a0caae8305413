//! Constants that are NaN or infinite.

use super::{Check, Finding, RuleReport};
use crate::check::{QdqGraph, Role, operand_role};
use crate::onnx::integers::{integer_values, scale_values};
use crate::onnx::node::is_qdq;
use crate::onnx::proto::{ModelProto, NodeProto};

/// Weights, biases and dequantized constants must be finite, and no constant may be NaN.
pub const FINITE_VALUES: Check = Check {
    name: "finite_values",
    about: "weights and biases, and all values of a DequantizeLinear, are finite, and no other constant is NaN (a mask may be infinite)",
    is_universal: true,
    is_about_the_float_model: true,
    run: |graph, _, report| add_findings(graph, report),
    ..Check::DEFAULT
};

/// Returns a finding for each constant of `model` that has NaN, that is a weight or bias with infinite values,
/// or that a DequantizeLinear makes infinite: the product of an integer and its scale may exceed float32.
pub fn non_finite_constants(model: &ModelProto) -> Vec<Finding> {
    let mut report = RuleReport { rule: FINITE_VALUES.name, severity: FINITE_VALUES.severity, findings: Vec::new() };
    if let Some(graph) = QdqGraph::new(model) {
        add_findings(&graph, &mut report);
    }
    report.findings
}

fn add_findings(graph: &QdqGraph, report: &mut RuleReport) {
    add_non_finite(graph, report);
    add_infinite_products(graph, report);
}

fn add_non_finite(graph: &QdqGraph, report: &mut RuleReport) {
    let initializers = graph.graph.initializer.iter().map(|tensor| tensor.name());
    let nodes = graph.graph.node.iter().filter(|node| node.op_type() == "Constant");
    let made = nodes.filter_map(|node| Some(node.output.first()?.as_str()));
    for name in initializers.chain(made) {
        // Another rule, `positive_scales`, reports the scales of Q/DQ.
        let mut uses = graph.operators_reading(name);
        uses.retain(|(node, _)| !is_qdq(node));
        let Some((node, _)) = uses.first().copied() else { continue };
        let Some(Ok(values)) = graph.constant(name).map(scale_values) else { continue };
        let of_layer = uses.iter().find_map(|(node, i)| Some((*node, parameter(node, *i)?)));
        let (bad, is_bad): (&str, fn(&f32) -> bool) = match of_layer {
            Some(_) => ("NaN or infinite", |value| !value.is_finite()),
            None => ("NaN", |value| value.is_nan()),
        };
        let Some(first) = values.iter().position(is_bad) else { continue };
        let n_bad = values.iter().filter(|value| is_bad(value)).count();
        let (node, what) = of_layer.unwrap_or((node, "constant"));
        let found = format!("{} ({n_bad} of {} are {bad})", values[first], values.len());
        report.add(
            Finding::new(format!("{what} [{first}]"), found, "a finite number")
                .at(node)
                .on(name)
                .hint("fix the float model and quantize it again"),
        );
    }
}

fn add_infinite_products(graph: &QdqGraph, report: &mut RuleReport) {
    for node in graph.graph.node.iter().filter(|node| node.op_type() == "DequantizeLinear") {
        let constant = |input: usize| node.input.get(input).and_then(|name| graph.constant(name));
        let integers = |input: usize| constant(input).and_then(|tensor| integer_values(tensor).ok());
        let scales = constant(1).and_then(|scale| scale_values(scale).ok()).unwrap_or_default();
        let (Some(values), [scale]) = (integers(0), &scales[..]) else { continue };
        let zero_point = integers(2).and_then(|values| values.first().copied()).unwrap_or_default();
        let is_infinite = |value: &&i32| (value.saturating_sub(zero_point) as f32 * scale).is_infinite();
        let Some(found) = values.iter().find(is_infinite).filter(|_| scale.is_finite()) else { continue };
        report.add(
            Finding::new("value", format!("{found} times the scale {scale:e}, which is infinite"), "a finite product")
                .at(node)
                .on(&node.input[0])
                .hint("quantize the float model again, or, if the target runs float operators, keep the node float with --exclude"),
        );
    }
}

/// Returns the role of a constant at input `input` of `node`; `None` if the constant may be infinite.
fn parameter(node: &NodeProto, input: usize) -> Option<&'static str> {
    match (node.op_type(), input, operand_role(node.op_type(), input)) {
        (_, _, role @ (Role::Weight | Role::Bias)) => Some(role.name()),
        ("BatchNormalization", 1 | 3 | 4, _) => Some("parameter"),
        ("LayerNormalization" | "InstanceNormalization" | "GroupNormalization", 1, _) => Some("parameter"),
        _ => None,
    }
}
