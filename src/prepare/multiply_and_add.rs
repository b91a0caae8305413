//! Turns divisions, differences and squares into products and sums, for targets that support these in more places.
//!
//! `x / c` becomes `x * (1 / c)`, with the reciprocal rounded to float32, so that quotients change by float rounding.
//! Other results stay bit-identical: `x - c` becomes `x + (-c)`, `c - x` becomes `c + (-x)` with a Neg, and `x ^ 2`
//! becomes `x * x`. A division stays if the divisor is 0 or has no normal reciprocal. A power stays if the exponent is
//! not a scalar 2.

use super::Change;
use crate::onnx::graph::drop_unused;
use crate::onnx::names::Names;
use crate::onnx::node::{self, node_name};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor;
use anyhow::Result;

/// Replaces Div, Sub and Pow nodes that have an initializer as an operand. Returns their number as a change, or an
/// empty list without any.
///
/// # Errors
/// If the model has no graph.
pub fn multiply_and_add(model: &mut ModelProto) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let mut names = Names::of(graph);
    let mut n_changed = 0;
    let mut operands = Vec::new();
    for mut node in std::mem::take(&mut graph.node) {
        if let Some(form) = form(graph, &node) {
            n_changed += 1;
            operands.extend(node.input.iter().cloned());
            apply(form, &mut node, graph, &mut names)?;
        }
        graph.node.push(node);
    }
    drop_unused(graph, operands);
    Ok(Change::counted([(n_changed, Change::MultipliedAndAdded)]))
}

/// The replacement of a node that has a constant operand.
enum Form {
    /// The operator `op_type` with the first input and a constant of this shape and these values.
    With { op_type: &'static str, shape: Vec<usize>, values: Vec<f32> },
    /// The constant plus the negative of the second input.
    MinusVariable,
    /// The first input times itself.
    Square,
}

fn form(graph: &GraphProto, node: &NodeProto) -> Option<Form> {
    let [first, second] = node.input.as_slice() else { return None };
    if !node::is_standard(node) {
        return None;
    }
    let with = |op_type, value: fn(f32) -> f32, is_usable: fn(&f32) -> bool| {
        let (shape, values) = floats(graph, second)?;
        let values: Vec<f32> = values.into_iter().map(value).collect();
        values.iter().all(is_usable).then_some(Form::With { op_type, shape, values })
    };
    match node.op_type() {
        "Div" => with("Mul", f32::recip, |value| value.is_normal()),
        "Sub" if floats(graph, first).is_some() => Some(Form::MinusVariable),
        "Sub" => with("Add", |value| -value, |_| true),
        // A constant of a higher rank than the base would give its rank to the power.
        "Pow" => {
            let exponent = constant(graph, second)?;
            (exponent.dims.is_empty() && tensor::f64_values(exponent).ok()? == [2.0]).then_some(Form::Square)
        }
        _ => None,
    }
}

/// Returns an initializer that is not a graph input.
fn constant<'g>(graph: &'g GraphProto, name: &str) -> Option<&'g TensorProto> {
    let is_input = graph.input.iter().any(|input| input.name() == name);
    graph.initializer_named(name).filter(|_| !is_input)
}

/// Returns the shape and the values of a float constant.
fn floats(graph: &GraphProto, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
    let stored = constant(graph, name)?;
    Some((tensor::shape(stored).ok()?, tensor::f32_values(stored).ok()?))
}

/// Changes the node, and adds the constant or Neg that it reads to the graph.
fn apply(form: Form, node: &mut NodeProto, graph: &mut GraphProto, names: &mut Names) -> Result<()> {
    match form {
        Form::With { op_type, shape, values } => {
            let name = names.fresh(&format!("{}_inverse", node.input[1]));
            graph.initializer.push(tensor::from_f32(&name, &shape, &values)?);
            node.op_type = Some(op_type.into());
            node.input[1] = name;
        }
        Form::MinusVariable => {
            let name = names.fresh(&format!("{}_neg", node_name(node)));
            let negative = names.fresh(&format!("{}_neg", node.input[1]));
            graph.node.push(node::make("Neg", &name, &[&node.input[1]], &negative));
            node.op_type = Some("Add".into());
            node.input[1] = negative;
        }
        Form::Square => {
            node.op_type = Some("Mul".into());
            node.input[1] = node.input[0].clone();
        }
    }
    Ok(())
}
