//! Values of stored integers.

use super::super::linear::Kind;
use super::super::qdq::QdqGraph;
use super::parameters::Wanted;
use super::{Check, Finding, Report};
use crate::onnx::integers::integer_values;
use crate::scheme::RuleCall;

/// Stored integers lie in a part of their type's range.
pub struct IntegerRange;

impl Check for IntegerRange {
    fn name(&self) -> &'static str {
        "integer_range"
    }

    fn description(&self) -> &'static str {
        "integers that are stored before a DQ lie in `min` to `max`; `of` names the roles"
    }

    fn parameters(&self) -> &'static [(&'static str, Wanted)] {
        &[("of", Wanted::Roles), ("min", Wanted::Number), ("max", Wanted::Number)]
    }

    fn run(&self, graph: &QdqGraph, call: &RuleCall, report: &mut Report) {
        let (min, max) = (call.number("min", i64::MIN), call.number("max", i64::MAX));
        let linears = graph.linears.iter().filter(|linear| linear.kind == Kind::Dequantize);
        for linear in linears.filter(|linear| call.is_of(linear)) {
            let Some(Ok(values)) = graph.constant(linear.input).map(integer_values) else {
                continue;
            };
            let inside = |value: &i32| (min..=max).contains(&i64::from(*value));
            if let Some(outside) = values.iter().find(|value| !inside(value)) {
                let what = format!("an integer of the {}", linear.role.name());
                report.add(
                    Finding::new(what, outside.to_string(), format!("{min} to {max}"))
                        .at(linear.node)
                        .on(linear.input)
                        .hint("quantize on the narrow range"),
                );
            }
        }
    }
}
