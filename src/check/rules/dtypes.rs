//! Integer types.

use super::super::linear::{Linear, Role};
use super::super::qdq::QdqGraph;
use super::{Check, Finding, Report};
use crate::onnx::integers::type_name;
use crate::scheme::{ParameterKind, RuleCall};

/// Which integer types may stand where.
pub const DTYPES: Check = Check {
    name: "dtypes",
    about: "integer types of activations, weights, biases and other constants (as activations by default)",
    takes: &[
        ("activation", ParameterKind::Dtypes),
        ("weight", ParameterKind::Dtypes),
        ("bias", ParameterKind::Dtypes),
        ("constant", ParameterKind::Dtypes),
    ],
    run: dtypes,
    ..Check::DEFAULT
};

fn dtypes(graph: &QdqGraph, call: &RuleCall, report: &mut Report) {
    for linear in graph.distinct() {
        let allowed = match linear.role {
            Role::Constant => call.dtypes("constant").or_else(|| call.dtypes("activation")),
            role => call.dtypes(role.name()),
        };
        let (Some(allowed), Some(found)) = (allowed, linear.data_type) else { continue };
        if !allowed.contains(&found) {
            let names: Vec<&str> = allowed.iter().map(|t| type_name(*t)).collect();
            let expected = match names.is_empty() {
                true => "float".to_string(),
                false => names.join(" or "),
            };
            let what = format!("type of the {}", linear.role.name());
            report.add(
                Finding::new(what, type_name(found), expected).at(linear.node).on(linear.input),
            );
        }
    }
}

/// Pairs of an activation's and a weight's type that are refused.
pub const DTYPE_PAIRS: Check = Check {
    name: "dtype_pairs",
    about: "no operator has the types activation/weight that `refuse` lists",
    takes: &[("refuse", ParameterKind::DtypePairs)],
    run: dtype_pairs,
    ..Check::DEFAULT
};

fn dtype_pairs(graph: &QdqGraph, call: &RuleCall, report: &mut Report) {
    for node in &graph.graph.node {
        let operands: Vec<&Linear> =
            node.input.iter().filter_map(|input| graph.dequantize_of(input)).collect();
        let of = |role: Role| operands.iter().find(|linear| linear.role == role);
        let (Some(activation), Some(weight)) = (of(Role::Activation), of(Role::Weight)) else {
            continue;
        };
        let (Some(a), Some(w)) = (activation.data_type, weight.data_type) else { continue };
        let pair = format!("{}/{}", type_name(a), type_name(w));
        if call.lists("refuse", &pair) {
            report.add(
                Finding::new("pair of types activation/weight", &pair, "another pair")
                    .at(node)
                    .on(weight.input)
                    .hint("store the weight in the activation's type or signed"),
            );
        }
    }
}
