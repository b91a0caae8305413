//! Tensors that must share quantization parameters.

use super::fusing::n_data_inputs;
use super::{Check, Finding, RuleReport};
use crate::check::{QdqGraph, QdqNode, Role};
use crate::onnx::proto::NodeProto;
use crate::scheme::{ParameterKind, RuleCall};

/// Inputs and outputs of operators that only move or select values must have the same parameters.
pub const SHARED_GRIDS: Check = Check {
    name: "shared_grids",
    about: "quantized inputs and outputs of `ops` have bit-identical scale and zero point (with `among: inputs`: only inputs that are not constant; with `of_one_type`: only those of the same integer type)",
    takes: &[
        ("ops", ParameterKind::Ops),
        ("among", ParameterKind::Word(&["all", "inputs"])),
        ("of_one_type", ParameterKind::Switch),
    ],
    run: shared_grids,
    ..Check::DEFAULT
};

fn shared_grids(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let listed = graph.graph.node.iter().filter(|node| call.lists("ops", node.op_type()));
    for node in listed.filter(|node| gives_integers(graph, node)) {
        let inputs = node.input.iter().take(n_data_inputs(node));
        let with_constants = call.name("among") != Some("inputs");
        let mut around: Vec<(&str, &QdqNode)> = inputs
            .filter_map(|name| Some((name.as_str(), graph.dequantize_of(name)?)))
            .filter(|(_, qdq)| with_constants || qdq.role == Role::Activation)
            .collect();
        let n_inputs = around.len();
        let with_outputs = call.name("among") != Some("inputs");
        let outputs = node.output.iter().filter(|name| with_outputs && !name.is_empty());
        for output in outputs {
            let readers = graph.quantizes_of(output);
            around.extend(readers.into_iter().map(|quantize| (output.as_str(), quantize)));
        }
        let Some(((first_name, first), others)) = around.split_first() else { continue };
        let is_converted = |other: &QdqNode| call.number("of_one_type", 0) == 1 && other.data_type != first.data_type;
        for (i, (name, other)) in others.iter().enumerate() {
            if !other.same_grid(first) && !is_converted(other) {
                let what = if i + 1 < n_inputs { "quantization of the input" } else { "quantization of the output" };
                let expected = format!("that of `{first_name}` ({})", first.parameters());
                report.add(Finding::new(what, other.parameters(), expected).at(node).on(name));
            }
        }
    }
}

/// Whether a node's output is quantized, directly or after an activation function. Otherwise the node runs in float.
fn gives_integers(graph: &QdqGraph, node: &NodeProto) -> bool {
    let is_quantized = |tensor: &String| !graph.quantizes_of(tensor).is_empty();
    let is_activation = |(user, _): &(&NodeProto, usize)| matches!(user.op_type(), "Relu" | "Clip");
    let past = |output: &String| {
        graph.users(output).into_iter().filter(is_activation).any(|(user, _)| user.output.iter().any(is_quantized))
    };
    node.output.iter().filter(|name| !name.is_empty()).any(|output| is_quantized(output) || past(output))
}
