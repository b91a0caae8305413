//! Rules about single scales and zero points.

use super::{Check, Finding, RuleReport};
use crate::check::{NodeInput, QdqGraph, QdqNode, Role};
use crate::quant::Symmetry;
use crate::scheme::{ParameterKind, RuleCall, Scheme, WeightStorage};

/// Names element `i` of `n`: `scale [3] of 64`, or `scale` if there is only one.
fn element(what: &str, i: usize, n: usize) -> String {
    if n == 1 { what.to_string() } else { format!("{what} [{i}] of {n}") }
}

/// Returns the name of input `i`.
fn parameter<'a>(qdq: &'a QdqNode, i: usize) -> &'a str {
    qdq.node.input.get(i).map_or("", String::as_str)
}

/// Scales must be positive, finite and not subnormal.
pub const POSITIVE_SCALES: Check = Check {
    name: "positive_scales",
    about: "scales are positive, finite and not subnormal",
    is_universal: true,
    run: positive_scales,
    ..Check::DEFAULT
};

fn positive_scales(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for qdq in graph.distinct() {
        let Some(scales) = qdq.scale.known() else { continue };
        let bad = scales.iter().position(|scale| !scale.is_normal() || *scale <= 0.0);
        if let Some(i) = bad {
            report.add(
                Finding::new(
                    element("scale", i, scales.len()),
                    format!("{:e}", scales[i]),
                    "a positive, finite number that is not subnormal",
                )
                .at(qdq.node)
                .on(parameter(qdq, 1))
                .hint("a tensor or channel of zeros may have any scale, such as 1"),
            );
        }
    }
}

/// Scales and zero points must be constants.
pub const CONSTANT_PARAMETERS: Check = Check {
    name: "constant_parameters",
    about: "scales and zero points are initializers or Constant nodes",
    run: constant_parameters,
    ..Check::DEFAULT
};

fn constant_parameters(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for qdq in &graph.qdq_nodes {
        let computed =
            [("scale", 1, qdq.scale == NodeInput::Computed), ("zero point", 2, qdq.zero_point == NodeInput::Computed)];
        for (what, i, _) in computed.iter().filter(|(_, _, computed)| *computed) {
            report.add(Finding::new(*what, "computed in the graph", "a constant").at(qdq.node).on(parameter(qdq, *i)));
        }
    }
}

/// Scales must be powers of two.
pub const POWER_OF_TWO: Check = Check {
    name: "power_of_two",
    about: "scales are powers of two; `of` selects roles (default: all)",
    takes: &[("of", ParameterKind::Words(Role::NAMES))],
    run: power_of_two,
    ..Check::DEFAULT
};

fn power_of_two(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    const FRACTION: u32 = (1 << 23) - 1;
    for qdq in graph.distinct().filter(|qdq| qdq.role.is_among(call)) {
        let Some(scales) = qdq.scale.known() else { continue };
        if let Some(i) = scales.iter().position(|scale| scale.to_bits() & FRACTION != 0) {
            let what = element(&format!("scale of the {}", qdq.role.name()), i, scales.len());
            report.add(
                Finding::new(what, format!("{:e}", scales[i]), "a power of two").at(qdq.node).on(parameter(qdq, 1)),
            );
        }
    }
}

/// Zero points must be 0.
pub const SYMMETRIC: Check = Check {
    name: "symmetric",
    about: "zero points are 0; `of` selects roles (default: all)",
    takes: &[("of", ParameterKind::Words(Role::NAMES))],
    contradiction: asymmetric_type,
    run: symmetric,
    ..Check::DEFAULT
};

/// Returns the first asymmetric type of a row, for a role that the rule selects.
fn asymmetric_type(scheme: &Scheme, call: &RuleCall) -> Option<(String, String)> {
    // With any other storage of weights, activations have no Q/DQ.
    let has_activations = matches!(scheme.weight_storage, WeightStorage::Integer | WeightStorage::Float);
    for (op, row) in &scheme.ops {
        for (key, role, name) in [
            ("input", Role::Activation, row.input.as_ref().filter(|_| has_activations)),
            ("output", Role::Activation, row.output.as_ref().filter(|_| has_activations)),
            ("constant", Role::Constant, row.constant.as_ref()),
            ("weight", Role::Weight, row.weight.as_ref().map(|weight| &weight.qtype)),
        ] {
            let of_name = name.and_then(|name| scheme.types.get_key_value(name)).filter(|_| role.is_among(call));
            let Some((name, qtype)) = of_name else { continue };
            if qtype.symmetry == Symmetry::Asymmetric {
                return Some((format!("types.{name}"), format!("asymmetric for {key} of {op}, expected symmetric")));
            }
        }
    }
    None
}

fn symmetric(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    for qdq in graph.distinct().filter(|qdq| qdq.role.is_among(call)) {
        let Some(zero_points) = qdq.zero_point.known() else { continue };
        if let Some(i) = zero_points.iter().position(|zero_point| *zero_point != 0) {
            let what = format!("zero point of the {}", qdq.role.name());
            report.add(
                Finding::new(element(&what, i, zero_points.len()), zero_points[i].to_string(), "0")
                    .at(qdq.node)
                    .on(parameter(qdq, 2))
                    .hint("quantize symmetrically to a signed type"),
            );
        }
    }
}
