//! Rules about the model as a whole.

use super::{Check, Finding, RuleReport, Severity};
use crate::check::{QdqGraph, QdqNode, QdqOperator};
use crate::onnx::check_topology;
use crate::onnx::inputs::is_open;
use crate::onnx::node::{is_integer_operator, is_qdq};
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::scheme::{ParameterKind, RuleCall};

/// Nodes must be in topological order, and each tensor must have one producer.
pub const SOUND_GRAPH: Check = Check {
    name: "sound_graph",
    about: "nodes are in topological order; exactly one node produces each tensor and each output",
    is_universal: true,
    run: sound_graph,
    ..Check::DEFAULT
};

fn sound_graph(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    if let Err(error) = check_topology(graph.model) {
        report.add(Finding::new("graph", format!("invalid ({error:#})"), "a valid graph"));
    }
}

/// The version of the default operator set must be within limits.
pub const OPERATOR_SET: Check = Check {
    name: "operator_set",
    about: "the version of the default opset is at least `min` and at most `max`",
    takes: &[("min", ParameterKind::Count), ("max", ParameterKind::Count)],
    run: operator_set,
    ..Check::DEFAULT
};

fn operator_set(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let (min, max) = (call.number("min", 1), call.number("max", i64::MAX));
    let found = graph.opset("");
    if !found.is_some_and(|version| (min..=max).contains(&version)) {
        let expected = match max {
            i64::MAX => format!("{min} or later"),
            max => format!("{min} to {max}"),
        };
        let found = found.map_or("missing".to_string(), |version| version.to_string());
        report.add(
            Finding::new("opset", found, expected)
                .hint("convert the float model (`mqq prepare --opset`) and quantize it again"),
        );
    }
}

/// The model must have no integer operators.
pub const QDQ_ONLY: Check = Check {
    name: "qdq_only",
    about: "the model is quantized by Q/DQ pairs, and has no QLinear…, …Integer, DynamicQuantizeLinear or MatMulNBits operators",
    run: qdq_only,
    ..Check::DEFAULT
};

fn qdq_only(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for node in graph.graph.node.iter().filter(|node| is_integer_operator(node)) {
        report.add(Finding::new("operator", "an integer operator", "a float operator between DQ and Q").at(node));
    }
}

/// Inputs must have fixed shapes.
pub const STATIC_INPUTS: Check = Check {
    name: "static_inputs",
    about: "every dimension of every input is fixed",
    is_about_the_float_model: true,
    run: static_inputs,
    ..Check::DEFAULT
};

fn static_inputs(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    let constants = |name: &str| graph.index.initializer(name).is_some();
    for input in graph.graph.input.iter().filter(|input| !constants(input.name())) {
        let Some(shape) = input.tensor_type().and_then(|tensor| tensor.shape.as_ref()) else {
            report.add(Finding::new("shape", "missing", "numbers").on(input.name()));
            continue;
        };
        let open = shape.dim.iter().position(is_open);
        if let Some(i) = open {
            let name = shape.dim.get(i).and_then(|dim| dim.dim_param.clone());
            let found = name.map_or("open".to_string(), |name| format!("`{name}`"));
            report.add(
                Finding::new(format!("dimension {i} of the input"), found, "a number")
                    .on(input.name())
                    .hint("fix the shape in the float model and quantize it again"),
            );
        }
    }
}

/// All Q/DQ must be in the main graph.
pub const SCOPE: Check = Check {
    name: "scope",
    about: "nested graphs (If, Loop, Scan) and functions have no Q/DQ, because rules check the main graph only",
    severity: Severity::Warning,
    is_universal: true,
    run: scope,
    ..Check::DEFAULT
};

fn scope(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for node in &graph.graph.node {
        let n_nested = n_nested_linears(node);
        if n_nested > 0 {
            let found = format!("{n_nested} Q/DQ that are not checked");
            report.add(Finding::new("in nested graphs", found, "none").at(node));
        }
    }
    for function in &graph.model.functions {
        if function.node.iter().any(is_qdq) {
            let found = format!("Q/DQ in function `{}`, not checked", function.name());
            report.add(Finding::new("in functions", found, "none"));
        }
    }
}

fn n_nested_linears(node: &NodeProto) -> usize {
    let graphs = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
    let nodes = graphs.flat_map(|graph| &graph.node);
    nodes.map(|inner| usize::from(is_qdq(inner)) + n_nested_linears(inner)).sum()
}

/// At least one operator must be quantized.
pub const QUANTIZED: Check = Check {
    name: "quantized",
    about: "an operator has an input from a DQ, or computes on integers",
    is_universal: true,
    run: quantized,
    ..Check::DEFAULT
};

fn quantized(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    let is_read = |qdq: &QdqNode| {
        let mut readers = graph.users(qdq.output).into_iter();
        qdq.operator == QdqOperator::Dequantize && readers.any(|(node, _)| !is_qdq(node))
    };
    // Integer operators, and Q/DQ in subgraphs and functions, count as quantized without a further check.
    let n_seen = graph.qdq_nodes.len();
    if graph.qdq_nodes.iter().any(is_read) || n_quantized(graph.model) > n_seen {
        return;
    }
    let found = match n_seen {
        0 => "float and has no Q/DQ".to_string(),
        n => format!("float: no operator has an input from its {n} Q/DQ"),
    };
    report.add(
        Finding::new("model", found, "a quantized model")
            .hint("pass the model that `mqq calibrate` or another quantizer wrote"),
    );
}

/// Whether the model has QuantizeLinear, DequantizeLinear or integer operators.
pub fn is_quantized(model: &ModelProto) -> bool {
    n_quantized(model) > 0
}

/// Returns the number of Q/DQ and integer operators in the main graph and in functions, and of Q/DQ in subgraphs.
fn n_quantized(model: &ModelProto) -> usize {
    let graph = model.graph.iter().flat_map(|graph| &graph.node);
    let nodes = graph.chain(model.functions.iter().flat_map(|function| &function.node));
    let is_one = |node: &NodeProto| is_qdq(node) || is_integer_operator(node);
    nodes.map(|node| usize::from(is_one(node)) + n_nested_linears(node)).sum()
}
