//! Values of stored integers.

use super::{Check, Finding, RuleReport};
use crate::check::{QdqGraph, QdqOperator, Role};
use crate::onnx::integers::integer_values;
use crate::scheme::{ParameterKind, RuleCall};

/// Stored integers must lie in a part of their type's range.
pub const INTEGER_RANGE: Check = Check {
    name: "integer_range",
    about: "stored integers before a DQ are between `min` and `max`; `of` selects roles",
    takes: &[("of", ParameterKind::Words(Role::NAMES)), ("min", ParameterKind::Number), ("max", ParameterKind::Number)],
    run: integer_range,
    ..Check::DEFAULT
};

fn integer_range(graph: &QdqGraph, call: &RuleCall, report: &mut RuleReport) {
    let (min, max) = (call.number("min", i64::MIN), call.number("max", i64::MAX));
    let qdq_nodes = graph.qdq_nodes.iter().filter(|qdq| qdq.operator == QdqOperator::Dequantize);
    for qdq in qdq_nodes.filter(|qdq| qdq.role.is_among(call)) {
        let Some(Ok(values)) = graph.constant(qdq.input).map(integer_values) else {
            continue;
        };
        let inside = |value: &i32| (min..=max).contains(&i64::from(*value));
        if let Some(outside) = values.iter().find(|value| !inside(value)) {
            let what = format!("an integer of the {}", qdq.role.name());
            report.add(
                Finding::new(what, outside.to_string(), format!("{min} to {max}"))
                    .at(qdq.node)
                    .on(qdq.input)
                    .hint("quantize to the narrow range"),
            );
        }
    }
}
