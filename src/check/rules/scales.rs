//! Scales and zero points by themselves.

use super::super::linear::{Linear, Values};
use super::super::qdq::QdqGraph;
use super::parameters::Wanted;
use super::{Check, Finding, Report};
use crate::scheme::RuleCall;

/// `scale[3]` of several, `scale` of one.
fn element(what: &str, i: usize, n: usize) -> String {
    if n == 1 { what.to_string() } else { format!("{what} [{i}] of {n}") }
}

/// Name of input `i`.
fn parameter<'a>(linear: &'a Linear, i: usize) -> &'a str {
    linear.node.input.get(i).map_or("", String::as_str)
}

/// Scales are above zero, finite and not subnormal.
pub struct PositiveScales;

impl Check for PositiveScales {
    fn name(&self) -> &'static str {
        "positive_scales"
    }

    fn description(&self) -> &'static str {
        "scales are above zero, finite and not subnormal"
    }

    fn is_universal(&self) -> bool {
        true
    }

    fn run(&self, graph: &QdqGraph, _: &RuleCall, report: &mut Report) {
        for linear in graph.distinct() {
            let Some(scales) = linear.scale.known() else { continue };
            let bad = scales.iter().position(|scale| !scale.is_normal() || *scale <= 0.0);
            if let Some(i) = bad {
                report.add(
                    Finding::new(
                        element("scale", i, scales.len()),
                        format!("{:e}", scales[i]),
                        "a normal number above 0",
                    )
                    .at(linear.node)
                    .on(parameter(linear, 1))
                    .hint("a tensor or channel without a value other than 0 may take any scale, such as 1"),
                );
            }
        }
    }
}

/// Scales and zero points are constants.
pub struct ConstantParameters;

impl Check for ConstantParameters {
    fn name(&self) -> &'static str {
        "constant_parameters"
    }

    fn description(&self) -> &'static str {
        "scales and zero points are initializers or Constant nodes"
    }

    fn run(&self, graph: &QdqGraph, _: &RuleCall, report: &mut Report) {
        for linear in &graph.linears {
            let computed = [
                ("scale", 1, linear.scale == Values::Computed),
                ("zero point", 2, linear.zero_point == Values::Computed),
            ];
            for (what, i, _) in computed.iter().filter(|(_, _, computed)| *computed) {
                report.add(
                    Finding::new(*what, "computed in the graph", "a constant")
                        .at(linear.node)
                        .on(parameter(linear, *i)),
                );
            }
        }
    }
}

/// Scales are powers of two.
pub struct PowerOfTwo;

impl Check for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power_of_two"
    }

    fn description(&self) -> &'static str {
        "scales are powers of two; `of` names the roles, all by default"
    }

    fn parameters(&self) -> &'static [(&'static str, Wanted)] {
        &[("of", Wanted::Roles)]
    }

    fn run(&self, graph: &QdqGraph, call: &RuleCall, report: &mut Report) {
        const FRACTION: u32 = (1 << 23) - 1;
        for linear in graph.distinct().filter(|linear| call.is_of(linear)) {
            let Some(scales) = linear.scale.known() else { continue };
            if let Some(i) = scales.iter().position(|scale| scale.to_bits() & FRACTION != 0) {
                let what =
                    element(&format!("scale of the {}", linear.role.name()), i, scales.len());
                report.add(
                    Finding::new(what, format!("{:e}", scales[i]), "a power of two")
                        .at(linear.node)
                        .on(parameter(linear, 1)),
                );
            }
        }
    }
}

/// Zero points are 0.
pub struct Symmetric;

impl Check for Symmetric {
    fn name(&self) -> &'static str {
        "symmetric"
    }

    fn description(&self) -> &'static str {
        "zero points are 0; `of` names the roles, all by default"
    }

    fn parameters(&self) -> &'static [(&'static str, Wanted)] {
        &[("of", Wanted::Roles)]
    }

    fn run(&self, graph: &QdqGraph, call: &RuleCall, report: &mut Report) {
        for linear in graph.distinct().filter(|linear| call.is_of(linear)) {
            let Some(zero_points) = linear.zero_point.known() else { continue };
            if let Some(i) = zero_points.iter().position(|zero_point| *zero_point != 0) {
                let what = format!("zero point of the {}", linear.role.name());
                report.add(
                    Finding::new(
                        element(&what, i, zero_points.len()),
                        zero_points[i].to_string(),
                        "0",
                    )
                    .at(linear.node)
                    .on(parameter(linear, 2))
                    .hint("quantize symmetrically on a signed grid"),
                );
            }
        }
    }
}
