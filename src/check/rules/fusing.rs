//! Operators that the target runs in float despite Q/DQ around them.

use super::{Check, Finding, RuleReport, Severity};
use crate::check::{QdqGraph, QdqNode, Role, operand_role};
use crate::onnx::proto::NodeProto;
use crate::scheme::{ParameterKind, RuleCall};

/// Maximum activation functions between an operator and its Q.
const MAX_CHAIN: usize = 4;

/// Number of a node's first inputs that carry data: Reshape's second is a shape, Gather's an index.
pub(super) fn n_data_inputs(node: &NodeProto) -> usize {
    match node.op_type() {
        "Conv" | "ConvTranspose" | "Gemm" | "MatMul" | "Add" | "Sub" | "Mul" | "Div" => 2,
        "Concat" | "Sum" | "Max" | "Min" | "Mean" => node.input.len(),
        _ => 1,
    }
}

/// The data inputs of `node`, each with the DQ that produces it, if any.
fn operands<'g, 'a>(graph: &'g QdqGraph<'a>, node: &'a NodeProto) -> Vec<(&'a str, Option<&'g QdqNode<'a>>)> {
    let names = node.input.iter().take(n_data_inputs(node)).filter(|name| !name.is_empty());
    names.map(|name| (name.as_str(), graph.dequantize_of(name))).collect()
}

/// An operator must have all data inputs quantized or none.
pub const QUANTIZED_INPUTS: Check = Check {
    name: "quantized_inputs",
    about: "operators of `ops` have either all operands quantized or none; with one float operand they run in float",
    takes: &[("ops", ParameterKind::Ops)],
    severity: Severity::Warning,
    run: quantized_inputs,
    ..Check::DEFAULT
};

fn quantized_inputs(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    for node in graph.graph.node.iter().filter(|node| call.lists("ops", node.op_type())) {
        let operands = operands(graph, node);
        let quantized = operands.iter().filter(|(_, qdq)| qdq.is_some()).count();
        if quantized == 0 {
            continue;
        }
        for (i, (name, qdq)) in operands.iter().enumerate() {
            if qdq.is_none() {
                let what = match (graph.is_constant(name), operand_role(node, i)) {
                    (true, Role::Weight) => "weight",
                    (true, _) => "constant operand",
                    (false, _) => "input",
                };
                report.add(Finding::new(what, "float", "quantized, because another operand is").at(node).on(name));
            }
        }
    }
}

/// An operator with quantized inputs must have a Q after its output.
pub const QUANTIZED_OUTPUT: Check = Check {
    name: "quantized_output",
    about: "the output of operators of `ops` with quantized operands is an input of Q, directly or after one operator of `past`; graph outputs are exempt",
    takes: &[("ops", ParameterKind::Ops), ("past", ParameterKind::Ops)],
    severity: Severity::Warning,
    run: quantized_output,
    ..Check::DEFAULT
};

fn quantized_output(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    for node in graph.graph.node.iter().filter(|node| call.lists("ops", node.op_type())) {
        let operands = operands(graph, node);
        if operands.is_empty() || operands.iter().any(|(_, qdq)| qdq.is_none()) {
            continue;
        }
        let Some(mut tensor) = node.output.first().map(String::as_str) else { continue };
        for _ in 0..MAX_CHAIN {
            match graph.users(tensor).as_slice() {
                [(next, _)] if call.lists("past", next.op_type()) && !graph.index.is_output(tensor) => {
                    match next.output.first() {
                        Some(output) => tensor = output,
                        None => break,
                    }
                }
                _ => break,
            }
        }
        if graph.index.is_output(tensor) {
            continue;
        }
        let users = graph.users(tensor);
        let float = users.iter().find(|(user, _)| user.op_type() != "QuantizeLinear");
        if let Some((user, _)) = float {
            let found = format!("a float input of {}", user.op_type());
            report.add(Finding::new("output", found, "an input of QuantizeLinear only").at(node).on(tensor));
        }
    }
}

/// No operator may compute in float.
pub const NO_FLOAT_NODES: Check = Check {
    name: "no_float_nodes",
    about: "float inputs of every operator come from DQ; operators of `fuse` may also follow a quantized operator directly; operators of `except` may stay float",
    takes: &[("except", ParameterKind::Ops), ("fuse", ParameterKind::Ops)],
    severity: Severity::Warning,
    run: no_float_nodes,
    ..Check::DEFAULT
};

fn no_float_nodes(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    if graph.qdq_nodes.is_empty() {
        return;
    }
    for node in &graph.graph.node {
        let op_type = node.op_type();
        let qdq = matches!(op_type, "QuantizeLinear" | "DequantizeLinear" | "Constant");
        if qdq || call.lists("except", op_type) {
            continue;
        }
        let operands = operands(graph, node);
        let float = operands
            .iter()
            .find(|(name, dequantize)| dequantize.is_none() && graph.is_float(name) && !graph.is_constant(name));
        let Some((name, _)) = float else { continue };
        let producer = graph.index.producer(name);
        let fuses = call.lists("fuse", op_type)
            && producer.is_some_and(|producer| {
                self::operands(graph, producer).iter().any(|(_, dequantize)| dequantize.is_some())
            });
        if !fuses {
            report.add(
                Finding::new("input", "float", "a quantized input: the target has no float units").at(node).on(name),
            );
        }
    }
}
