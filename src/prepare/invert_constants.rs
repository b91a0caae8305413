//! Divisions by constants become products, and differences sums, for targets that take these in more places.
//!
//! `x / c` becomes `x * (1 / c)`, with the reciprocal rounded to float32, so that quotients change by float rounding;
//! `x - c` becomes `x + (-c)`, which is the same. A divisor that is 0, or whose reciprocal is no normal number, stays.

use super::is_float_initializer;
use crate::onnx::graph::drop_unused;
use crate::onnx::names::Names;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::onnx::tensor;
use anyhow::{Context, Result};

/// Does that for every Div and Sub whose second input is an initializer, and says how many there were; nothing where
/// there is none.
///
/// # Errors
/// If the model has no graph.
pub fn invert_constants(model: &mut ModelProto) -> Result<Vec<String>> {
    let graph = model.graph.as_mut().context("model has no graph")?;
    let mut names = Names::of(graph);
    let mut replaced = Vec::new();
    for position in 0..graph.node.len() {
        let Some(Inverted { op_type, constant, shape, values }) = inverted(graph, position) else {
            continue;
        };
        let name = names.fresh(&format!("{constant}_inverse"));
        graph.initializer.push(tensor::from_f32(&name, &shape, &values)?);
        let node = &mut graph.node[position];
        node.op_type = Some(op_type.into());
        node.input[1] = name;
        replaced.push(constant);
    }
    let n_inverted = replaced.len();
    drop_unused(graph, replaced);
    Ok(match n_inverted {
        0 => Vec::new(),
        n => vec![format!("{n} Div and Sub nodes with a constant became Mul and Add")],
    })
}

/// What a node becomes.
struct Inverted {
    op_type: &'static str,
    /// The initializer that it takes.
    constant: String,
    /// Dimensions of that.
    shape: Vec<usize>,
    /// What it takes instead.
    values: Vec<f32>,
}

fn inverted(graph: &GraphProto, position: usize) -> Option<Inverted> {
    let node = &graph.node[position];
    if !matches!(node.domain(), "" | "ai.onnx") {
        return None;
    }
    let (op_type, invert): (_, fn(f32) -> f32) = match node.op_type() {
        "Div" => ("Mul", |value| value.recip()),
        "Sub" => ("Add", |value| -value),
        _ => return None,
    };
    let name = node.input.get(1).filter(|name| is_float_initializer(graph, name))?;
    let stored = graph.initializer.iter().find(|stored| stored.name() == name)?;
    let is_input = graph.input.iter().any(|input| input.name() == name);
    let (shape, values) = (tensor::shape(stored).ok()?, tensor::f32_values(stored).ok()?);
    let values: Vec<f32> = values.into_iter().map(invert).collect();
    let usable = |value: &f32| if op_type == "Mul" { value.is_normal() } else { value.is_finite() };
    let usable = !is_input && values.iter().all(usable);
    usable.then(|| Inverted { op_type, constant: name.clone(), shape, values })
}
