//! Integer types of tensors.

use super::{Check, Finding, RuleReport};
use crate::check::{QdqGraph, QdqNode, Role};
use crate::onnx::data_type::type_name;
use crate::quant::Codes;
use crate::scheme::{BiasRow, ParameterKind, RuleCall, Scheme, WeightStorage};

/// Tensors must have an integer type that the table allows for their role.
pub const DTYPES: Check = Check {
    name: "dtypes",
    about: "allowed integer types of activations, weights, biases and other constants (default: those of activations)",
    takes: &[
        ("activation", ParameterKind::Dtypes),
        ("weight", ParameterKind::Dtypes),
        ("bias", ParameterKind::Dtypes),
        ("constant", ParameterKind::Dtypes),
    ],
    contradiction: of_rows,
    run: dtypes,
    ..Check::DEFAULT
};

/// Returns the first type of a row that the rule does not allow for its role.
fn of_rows(scheme: &Scheme, call: &RuleCall) -> Option<(String, String)> {
    // With any other storage of weights, activations have no Q/DQ.
    let has_activations = matches!(scheme.weight_storage, WeightStorage::Integer | WeightStorage::Float);
    for (op, row) in &scheme.ops {
        let bias = match &row.bias {
            BiasRow::Type { qtype } => Some(qtype),
            BiasRow::Float | BiasRow::Int32 => None,
        };
        let constant = if call.dtypes("constant").is_some() { "constant" } else { "activation" };
        for (key, role, name) in [
            ("input", "activation", row.input.as_ref().filter(|_| has_activations)),
            ("output", "activation", row.output.as_ref().filter(|_| has_activations)),
            ("constant", constant, row.constant.as_ref()),
            ("weight", "weight", row.weight.as_ref().map(|weight| &weight.qtype)),
            ("bias", "bias", bias),
        ] {
            let of_name = name.and_then(|name| scheme.types.get_key_value(name));
            let (Some((name, qtype)), Some(allowed)) = (of_name, call.dtypes(role)) else { continue };
            let found = qtype.dtype();
            let names: Vec<&str> = allowed.iter().map(|number| type_name(*number)).collect();
            if qtype.kind == Codes::Affine && !names.contains(&found.as_str()) {
                let expected = if names.is_empty() { "float".to_string() } else { names.join(" or ") };
                return Some((format!("types.{name}"), format!("{found} for {key} of {op}, expected {expected}")));
            }
        }
    }
    None
}

fn dtypes(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    for qdq in graph.distinct() {
        let allowed = match qdq.role {
            Role::Constant => call.dtypes("constant").or_else(|| call.dtypes("activation")),
            role => call.dtypes(role.name()),
        };
        let (Some(allowed), Some(found)) = (allowed, qdq.data_type) else { continue };
        if !allowed.contains(&found) {
            let names: Vec<&str> = allowed.iter().map(|t| type_name(*t)).collect();
            let expected = match names.is_empty() {
                true => "float".to_string(),
                false => names.join(" or "),
            };
            let what = format!("type of the {}", qdq.role.name());
            report.add(Finding::new(what, type_name(found), expected).at(qdq.node).on(qdq.input));
        }
    }
}

/// No operator may have a refused pair of activation and weight types.
pub const DTYPE_PAIRS: Check = Check {
    name: "dtype_pairs",
    about: "no operator has a pair of activation and weight types that `refuse` lists",
    takes: &[("refuse", ParameterKind::DtypePairs)],
    run: dtype_pairs,
    ..Check::DEFAULT
};

fn dtype_pairs(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    for node in &graph.graph.node {
        let operands: Vec<&QdqNode> = node.input.iter().filter_map(|input| graph.dequantize_of(input)).collect();
        let of = |role: Role| operands.iter().find(|qdq| qdq.role == role);
        let (Some(activation), Some(weight)) = (of(Role::Activation), of(Role::Weight)) else {
            continue;
        };
        let (Some(a), Some(w)) = (activation.data_type, weight.data_type) else { continue };
        let pair = format!("{}/{}", type_name(a), type_name(w));
        if call.lists("refuse", &pair) {
            report.add(
                Finding::new("pair of activation/weight types", &pair, "another pair")
                    .at(node)
                    .on(weight.input)
                    .hint("store the weight in the activation's type, or in a signed type"),
            );
        }
    }
}
