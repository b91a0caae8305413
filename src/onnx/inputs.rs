//! The inputs of a model with fixed shapes.

use super::proto::{Dimension, GraphProto, ModelProto};
use crate::diag::{WithHint, none_of};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;

/// Shapes by input name, for inputs with open dimensions.
pub type Shapes = BTreeMap<String, Vec<usize>>;

/// An input of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSpec {
    /// ONNX name.
    pub name: String,
    /// Dimensions, outermost first, all fixed.
    pub shape: Vec<usize>,
    /// Element type, as its number in `TensorProto.DataType`.
    pub data_type: i32,
}

/// The inputs of `model` with fixed shapes: those of `shapes`, else the model's own. In these, a named dimension gets
/// the number that `shapes` gives its name, and an open first dimension is 1. Initializers that are also inputs are not
/// inputs here.
///
/// # Errors
/// If another dimension is open, `shapes` contradicts the model or names no input of it, or an input is not a tensor.
pub fn resolve_inputs(model: &ModelProto, shapes: &Shapes) -> Result<Vec<InputSpec>> {
    let graph = model.graph()?;
    let bound = bound_symbols(graph, shapes);
    let mut inputs = Vec::new();
    for value in &graph.input {
        if graph.initializer.iter().any(|tensor| tensor.name == value.name) {
            continue;
        }
        let name = value.name();
        let tensor = value.tensor_type().with_context(|| format!("input `{name}` is not a tensor"))?;
        let given = shapes.get(name);
        let declared: Option<Vec<Option<usize>>> = tensor.shape.as_ref().map(|shape| {
            let number = |dim: &Dimension| dim.dim_value.filter(|&n| n > 0).map(|n| n as usize);
            let symbol = |dim: &Dimension| bound.get(dim.dim_param()).copied();
            let dims = shape.dim.iter();
            dims.map(|dim| number(dim).or_else(|| symbol(dim).filter(|_| given.is_none()))).collect()
        });
        let shape = match (given, declared) {
            (Some(given), Some(declared)) => {
                let fits = given.len() == declared.len()
                    && given.iter().zip(&declared).all(|(g, d)| d.is_none_or(|d| d == *g));
                ensure!(fits, "input `{name}`: --shape gives {given:?}, expected {}", show_dims(&declared));
                given.clone()
            }
            (Some(given), None) => given.clone(),
            (None, None) => {
                return Err(anyhow!("input `{name}` has no shape")
                    .hint(format!("give one, for instance --shape {name}=1x3x224x224")));
            }
            (None, Some(declared)) => {
                let concrete: Option<Vec<usize>> =
                    declared.iter().enumerate().map(|(axis, dim)| dim.or((axis == 0).then_some(1))).collect();
                concrete.ok_or_else(|| {
                    let example: Vec<String> = declared
                        .iter()
                        .enumerate()
                        .map(|(axis, dim)| dim.unwrap_or(if axis == 0 { 1 } else { 224 }).to_string())
                        .collect();
                    let example = example.join("x");
                    let found = show_dims(&declared);
                    anyhow!("input `{name}` has the shape {found}, expected fixed dimensions")
                        .hint(format!("fix them, for instance --shape {name}={example}"))
                })?
            }
        };
        inputs.push(InputSpec { name: name.into(), shape, data_type: tensor.elem_type() });
    }
    for name in shapes.keys() {
        let known = inputs.iter().map(|input| input.name.as_str());
        let is_known = known.clone().any(|input| input == name);
        ensure!(is_known, none_of(format_args!("--shape names the input `{name}`"), name, known));
    }
    Ok(inputs)
}

/// The numbers of named dimensions, as far as `shapes` gives them.
fn bound_symbols<'a>(graph: &'a GraphProto, shapes: &Shapes) -> BTreeMap<&'a str, usize> {
    let mut bound = BTreeMap::new();
    for value in &graph.input {
        let declared = value.tensor_type().and_then(|tensor| tensor.shape.as_ref());
        let (Some(given), Some(declared)) = (shapes.get(value.name()), declared) else { continue };
        let named = declared.dim.iter().zip(given).filter(|(dim, _)| !dim.dim_param().is_empty());
        bound.extend(named.map(|(dim, &n)| (dim.dim_param(), n)));
    }
    bound
}

fn show_dims(dims: &[Option<usize>]) -> String {
    let dims: Vec<String> = dims.iter().map(|dim| dim.map_or("?".into(), |dim| dim.to_string())).collect();
    format!("[{}]", dims.join(", "))
}
