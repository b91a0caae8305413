//! Values of tensors that follow from shapes.

use crate::engine::{Parsed, Value};
use crate::onnx::graph::names_read;
use crate::onnx::inputs::{Shapes, inputs_of, is_open};
use crate::onnx::proto::ModelProto;
use std::collections::{BTreeSet, HashMap};

/// Values of the largest tensor that is computed from dimensions.
const MAX_VALUES: usize = 1024;

/// Operators that compare numbers.
const COMPARISONS: &[&str] = &["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"];

/// Returns the tensors of at most [`MAX_VALUES`] values that follow from constants and from fixed dimensions of the
/// inputs, whatever the open dimensions are. Empty if the engine does not take the graph.
pub(super) fn values_of_shapes(model: &ModelProto) -> HashMap<String, Value> {
    let Some(graph) = &model.graph else { return HashMap::new() };
    let (mut shapes, mut open, mut numbers) = (Shapes::new(), Vec::new(), HashMap::new());
    for input in inputs_of(graph) {
        let Some(shape) = input.tensor_type().and_then(|tensor| tensor.shape.as_ref()) else { return HashMap::new() };
        let (mut fixed, mut of_input) = (Vec::new(), Vec::new());
        for (axis, dim) in shape.dim.iter().enumerate() {
            fixed.push(if is_open(dim) { 1 } else { dim.dim_value() as usize });
            let name = match dim.dim_param() {
                "" => format!("{} {axis}", input.name()),
                name => name.to_string(),
            };
            let number = numbers.len();
            of_input.push(is_open(dim).then(|| *numbers.entry(name).or_insert(number)));
        }
        shapes.insert(input.name().to_string(), fixed);
        open.push(of_input);
    }
    let known = Parsed::new(model, &shapes).and_then(|parsed| parsed.known_values(&open, MAX_VALUES));
    let mut known = known.unwrap_or_default();
    // The engine takes an open dimension for another number than any constant, in comparisons.
    let mut guessed: BTreeSet<&str> = BTreeSet::new();
    for node in &graph.node {
        let reads_open = || node.input.iter().any(|name| !name.is_empty() && !known.contains_key(name));
        let reads_guessed = names_read(node).iter().any(|name| guessed.contains(name));
        if reads_guessed || COMPARISONS.contains(&node.op_type()) && reads_open() {
            guessed.extend(node.output.iter().map(String::as_str));
        }
    }
    guessed.into_iter().for_each(|name| drop(known.remove(name)));
    known
}
