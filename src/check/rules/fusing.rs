//! Operators that the target runs in float despite Q/DQ around them.

use super::{Check, Finding, RuleReport, Severity};
use crate::check::{QdqGraph, QdqNode, Role, operand_role};
use crate::onnx::data_type::{DataType, type_name};
use crate::onnx::proto::NodeProto;
use crate::scheme::{ParameterKind, RuleCall};

/// Maximum activation functions between an operator and its Q.
const MAX_CHAIN: usize = 4;

/// Returns the number of leading inputs that carry data. The second input of Reshape is a shape, of Gather an index.
pub(super) fn n_data_inputs(node: &NodeProto) -> usize {
    match node.op_type() {
        "Conv" | "ConvTranspose" | "Gemm" | "MatMul" | "Add" | "Sub" | "Mul" | "Div" => 2,
        "Concat" | "Sum" | "Max" | "Min" | "Mean" => node.input.len(),
        _ => 1,
    }
}

/// Returns the data inputs of `node`, each with the DQ that produces it, if any.
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
                let what = match (graph.is_constant(name), operand_role(node.op_type(), i)) {
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
    about: "the output of operators of `ops` with quantized operands is an input of Q, directly or after one operator of `past`, or of `past_if_redundant` where all values of Q lie within its bounds; graph outputs are exempt",
    takes: &[("ops", ParameterKind::Ops), ("past", ParameterKind::Ops), ("past_if_redundant", ParameterKind::Ops)],
    severity: Severity::Warning,
    run: quantized_output,
    ..Check::DEFAULT
};

fn quantized_output(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    for node in quantized_operators(graph, call) {
        if let Some(OperatorOutput::Float(finding)) = output_of(graph, node, call) {
            report.add(finding.at(node));
        }
    }
}

/// If a target fuses operators with the Q/DQ around them, at least one operator must be fused.
pub const INTEGER_OPERATORS: Check = Check {
    name: "integer_operators",
    about: "of the operators of `ops` with quantized operands at least one runs on integers: its operands have types of `dtypes`, and its output is an input of Q as in `quantized_output`",
    takes: &[
        ("ops", ParameterKind::Ops),
        ("past", ParameterKind::Ops),
        ("past_if_redundant", ParameterKind::Ops),
        ("dtypes", ParameterKind::Dtypes),
    ],
    severity: Severity::Warning,
    run: integer_operators,
    ..Check::DEFAULT
};

fn integer_operators(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let nodes: Vec<&NodeProto> = quantized_operators(graph, call).collect();
    let dtypes = call.dtypes("dtypes");
    let is_one = |(_, qdq): &(&str, Option<&QdqNode>)| {
        let data_type = qdq.and_then(|qdq| qdq.data_type);
        dtypes.as_ref().is_none_or(|dtypes| data_type.is_none_or(|data_type| dtypes.contains(&data_type)))
    };
    let is_joined = |node: &&NodeProto| {
        operands(graph, node).iter().all(is_one)
            && matches!(output_of(graph, node, call), Some(OperatorOutput::Quantized))
    };
    if !nodes.is_empty() && !nodes.iter().any(is_joined) {
        let (n, ops) = (nodes.len(), call.ops("ops").join(", "));
        let found = format!("0 of {n} {ops} with quantized inputs");
        report.add(
            Finding::new(
                "number of operators on integers",
                found,
                "one or more, with 8-bit operands and a quantized output",
            )
            .hint("quantize the float model with this backend: the file is for a target that fuses other patterns"),
        );
    }
}

/// Returns the operators of `ops` whose operands are all quantized.
fn quantized_operators<'g, 'a>(
    graph: &'g QdqGraph<'a>,
    call: &'g RuleCall,
) -> impl Iterator<Item = &'a NodeProto> + use<'g, 'a> {
    let of_call = graph.graph.node.iter().filter(|node| call.lists("ops", node.op_type()));
    of_call.filter(|node| {
        let operands = operands(graph, node);
        !operands.is_empty() && operands.iter().all(|(_, qdq)| qdq.is_some())
    })
}

/// The reader of an operator's output.
enum OperatorOutput {
    /// Only Q nodes read the output.
    Quantized,
    /// The output is an output of the graph, which the target writes as float.
    OfGraph,
    /// An operator reads the output in float, or a Clip or Relu in front of Q stays.
    Float(Finding),
}

/// Returns the reader of the output of `node`, past the operators that `call` names.
fn output_of(graph: &QdqGraph, node: &NodeProto, call: &RuleCall) -> Option<OperatorOutput> {
    let mut tensor = node.output.first().map(String::as_str)?;
    let mut redundant = Vec::new();
    for _ in 0..MAX_CHAIN {
        let users = graph.users(tensor);
        let [(next, _)] = users.as_slice() else { break };
        let is_redundant = call.lists("past_if_redundant", next.op_type());
        if graph.index.is_output(tensor) || !(is_redundant || call.lists("past", next.op_type())) {
            break;
        }
        let Some(output) = next.output.first() else { break };
        redundant.extend(is_redundant.then_some(*next));
        tensor = output;
    }
    if graph.index.is_output(tensor) {
        return Some(OperatorOutput::OfGraph);
    }
    let users = graph.users(tensor);
    if let Some((user, _)) = users.iter().find(|(user, _)| user.op_type() != "QuantizeLinear") {
        let found = format!("read in float by {}", user.op_type());
        let finding = Finding::new("output", found, "an input of QuantizeLinear only").on(tensor);
        return Some(OperatorOutput::Float(finding));
    }
    let quantizes = graph.quantizes_of(tensor);
    let kept = redundant.into_iter().find_map(|clip| {
        let bounds = graph.index.clip_bounds(clip)?;
        quantizes.iter().find_map(|quantize| outside(quantize, bounds)).map(|range| (clip, range))
    });
    Some(match kept {
        Some((clip, [low, high])) => {
            let found = format!(
                "an input of {}, which the target keeps: the QuantizeLinear behind it holds {low} to {high}",
                clip.op_type()
            );
            let finding = Finding::new("output", found, "an input of QuantizeLinear that holds no value outside");
            OperatorOutput::Float(finding.on(tensor))
        }
        None => OperatorOutput::Quantized,
    })
}

/// Returns the lowest and the highest value of a Q's integers; `None` if both are within `bounds`, or unknown.
///
/// Source: microsoft/onnxruntime, core/optimizer/qdq_transformer, relu_quantizelinear.cc and clip_quantizelinear.cc.
fn outside(quantize: &QdqNode, (low, high): (Option<f32>, Option<f32>)) -> Option<[f32; 2]> {
    const ROUNDING: f32 = 10.0 * f32::EPSILON;
    let [scale] = quantize.scale.known()? else { return None };
    let zero_point = match quantize.zero_point.known() {
        Some([zero_point]) => *zero_point,
        Some(_) => return None,
        None => 0,
    };
    let [from, to] = DataType::of(quantize.data_type?)?.integer_range()?.map(|q| (q - zero_point) as f32 * scale);
    let is_outside = low.is_some_and(|low| low - from > ROUNDING) || high.is_some_and(|high| to - high > ROUNDING);
    is_outside.then_some([from, to])
}

/// A constant left operand must have a type that the target takes there.
pub const LEFT_CONSTANT: Check = Check {
    name: "left_constant",
    about: "a quantized constant that is the first operand of operators of `ops` has a type of `dtypes`",
    takes: &[("ops", ParameterKind::Ops), ("dtypes", ParameterKind::Dtypes)],
    severity: Severity::Warning,
    run: left_constant,
    ..Check::DEFAULT
};

fn left_constant(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let Some(allowed) = call.dtypes("dtypes") else { return };
    for node in quantized_operators(graph, call) {
        let Some(left) = node.input.first().and_then(|name| graph.dequantize_of(name)) else { continue };
        let Some(found) = left.data_type.filter(|found| graph.is_constant(left.input) && !allowed.contains(found))
        else {
            continue;
        };
        let names: Vec<&str> = allowed.iter().map(|data_type| type_name(*data_type)).collect();
        report.add(
            Finding::new("type of the constant left operand", type_name(found), names.join(" or "))
                .at(node)
                .on(left.input)
                .hint("the operator runs in float: transpose the product, so that the constant is on the right, or exclude the node"),
        );
    }
}

/// Operators that the target cannot build between quantized tensors.
pub const REFUSED_OPERATORS: Check = Check {
    name: "refused_operators",
    about: "no operator of `ops` reads a quantized tensor: the target refuses the model, or runs the operator elsewhere",
    takes: &[("ops", ParameterKind::Ops)],
    is_about_the_float_model: true,
    run: refused_operators,
    ..Check::DEFAULT
};

fn refused_operators(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    for node in quantized_operators(graph, call) {
        report.add(
            Finding::new("operator", node.op_type(), "one that the target builds between quantized tensors")
                .at(node)
                .hint("export the float model without this operator, or cut the model before it with --outputs"),
        );
    }
}

/// Quantized tensors must not have more axes than the target takes.
pub const MAX_RANK: Check = Check {
    name: "max_rank",
    about: "quantized inputs of every operator outside `except` have at most `max` axes: the target refuses the model, or runs the operator elsewhere",
    takes: &[("max", ParameterKind::Count), ("except", ParameterKind::Ops)],
    is_about_the_float_model: true,
    run: max_rank,
    ..Check::DEFAULT
};

fn max_rank(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let max = call.number("max", i64::MAX);
    for node in graph.graph.node.iter().filter(|node| !call.lists("except", node.op_type())) {
        let operands = operands(graph, node);
        let ranks = operands.iter().filter_map(|(_, dequantize)| dequantize.as_ref()?.rank);
        if let Some(rank) = ranks.max().filter(|rank| *rank as i64 > max) {
            report.add(
                Finding::new("number of axes of an input", rank.to_string(), format!("at most {max}"))
                    .at(node)
                    .hint("the target runs this operator elsewhere, or refuses the model: export the float model with fewer axes, or cut it before this node with --outputs"),
            );
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
