//! Fixes open dimensions, for targets that require it.
//!
//! In: a model and a shape for each of its inputs. Out: the model with these shapes. A named dimension of an input gets
//! the same number in outputs and `value_info`. Nodes and constants stay unchanged. A Reshape to another batch size
//! contradicts the new shapes, which later shape inference finds.

use super::Change;
use crate::diag::WithHint;
use crate::onnx::inputs::{is_open, shape_text};
use crate::onnx::proto::{Dimension, ModelProto, TensorShapeProto, TensorType, ValueInfoProto};
use crate::onnx::value_info::ValueInfos;
use anyhow::{Result, anyhow, ensure};
use std::collections::BTreeMap;

/// Gives the inputs the shapes in `shapes`. Returns the changes, or an empty list if no dimension was open. Fails if
/// one dimension name would stand for two numbers.
pub fn fix_inputs(model: &mut ModelProto, shapes: &BTreeMap<String, Vec<usize>>) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let mut bound: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut changes = Vec::new();
    for input in &mut graph.input {
        let name = input.name().to_string();
        let (Some(shape), Some(tensor)) = (shapes.get(&name), tensor_type(input)) else { continue };
        let before = show(tensor);
        let mut dims = tensor.shape.take().map(|shape| shape.dim).unwrap_or_default();
        dims.resize(shape.len(), Dimension::default());
        let mut was_open = false;
        for (dim, &n) in dims.iter_mut().zip(shape) {
            if let Some(symbol) = dim.dim_param.as_ref().filter(|symbol| !symbol.is_empty()) {
                let (other, of) = bound.entry(symbol.clone()).or_insert((n, name.clone()));
                ensure!(
                    *other == n,
                    anyhow!(
                        "dimension `{symbol}` is {n} for input `{name}` and {other} for `{of}`, expected one number"
                    )
                    .hint("fix both with --shape")
                );
            }
            was_open |= fix(dim, n);
        }
        tensor.shape = Some(TensorShapeProto { dim: dims });
        if was_open {
            let after = show(tensor);
            changes.push(Change::FixedShape { input: name, before, after });
        }
    }
    for value in graph.output.iter_mut().chain(&mut graph.value_info) {
        let shape = tensor_type(value).and_then(|tensor| tensor.shape.as_mut());
        for dim in shape.into_iter().flat_map(|shape| &mut shape.dim) {
            let number = dim.dim_param.as_ref().and_then(|symbol| bound.get(symbol));
            if let Some(&(n, _)) = number {
                fix(dim, n);
            }
        }
    }
    Ok(changes)
}

/// Fixes the open dimensions of outputs and `value_info` for which `value_info` knows the shape.
pub fn fill_in(model: &mut ModelProto, value_info: &ValueInfos) {
    let Some(graph) = &mut model.graph else { return };
    for value in graph.output.iter_mut().chain(&mut graph.value_info) {
        let name = value.name().to_string();
        let (Some(known), Some(tensor)) = (value_info.shape(&name), tensor_type(value)) else {
            continue;
        };
        let shape =
            tensor.shape.get_or_insert_with(|| TensorShapeProto { dim: vec![Dimension::default(); known.len()] });
        if shape.dim.len() == known.len() {
            for (dim, &n) in shape.dim.iter_mut().zip(known) {
                fix(dim, n);
            }
        }
    }
}

fn tensor_type(value: &mut ValueInfoProto) -> Option<&mut TensorType> {
    value.r#type.as_mut()?.tensor_type.as_mut()
}

/// Fixes an open dimension. Returns whether it was open.
fn fix(dim: &mut Dimension, n: usize) -> bool {
    let was_open = is_open(dim);
    if was_open {
        dim.dim_value = Some(n as i64);
        dim.dim_param = None;
    }
    was_open
}

/// Returns the shape of a tensor as text.
fn show(tensor: &TensorType) -> String {
    tensor.shape.as_ref().map_or_else(|| "(none)".to_string(), shape_text)
}
