//! Integers of 2 and 4 bits, which the engine lacks, as integers of 8 bits.

use crate::onnx::data_type::{DataType, TypeKind};
use crate::onnx::integers::integer_values;
use crate::onnx::node::{int, set_int};
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use crate::onnx::tensor;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Attribute of a QuantizeLinear whose integers have fewer bits than their type: the smallest integer.
pub const Q_MIN: &str = "mqq_q_min";
/// Attribute for the largest integer.
pub const Q_MAX: &str = "mqq_q_max";

/// Returns the 8-bit type that holds the integers of `data_type`, and their bounds.
fn wide(data_type: i32) -> Option<(DataType, [i64; 2])> {
    let narrow = DataType::of(data_type).filter(|narrow| narrow.bits() < 8)?;
    let wide = if narrow.kind() == TypeKind::Signed { DataType::Int8 } else { DataType::Uint8 };
    Some((wide, narrow.integer_range()?.map(i64::from)))
}

/// Returns `model` with 8-bit integers in place of 2-bit and 4-bit ones, with the same saturation; `None` where the
/// model has neither.
///
/// # Errors
/// If a tensor's data does not match its shape.
pub fn widened(model: &ModelProto) -> Result<Option<ModelProto>> {
    if !model.graph.as_ref().is_some_and(has_narrow) {
        return Ok(None);
    }
    let mut model = model.clone();
    if let Some(graph) = &mut model.graph {
        widen(graph, &mut BTreeMap::new())?;
    }
    Ok(Some(model))
}

/// Whether a graph or one of its subgraphs has integers of 2 or 4 bits.
fn has_narrow(graph: &GraphProto) -> bool {
    let is_narrow = |data_type: i32| wide(data_type).is_some();
    let in_attribute = |attribute: &AttributeProto| {
        attribute.t.as_ref().is_some_and(|tensor| is_narrow(tensor.data_type()))
            || attribute.g.iter().chain(&attribute.graphs).any(has_narrow)
    };
    let in_node =
        |node: &NodeProto| is_narrow(int(node, "output_dtype", 0) as i32) || node.attribute.iter().any(in_attribute);
    graph.initializer.iter().any(|tensor| is_narrow(tensor.data_type())) || graph.node.iter().any(in_node)
}

/// Widens the integers of a graph and of its subgraphs. `bounds` has those of the tensors of outer graphs.
fn widen(graph: &mut GraphProto, bounds: &mut BTreeMap<String, [i64; 2]>) -> Result<()> {
    for tensor in &mut graph.initializer {
        if let Some(range) = widen_tensor(tensor)? {
            bounds.insert(tensor.name().to_string(), range);
        }
    }
    for node in &mut graph.node {
        let output = node.output.first().cloned().unwrap_or_default();
        for tensor in node.attribute.iter_mut().filter_map(|attribute| attribute.t.as_mut()) {
            if let Some(range) = widen_tensor(tensor)? {
                bounds.insert(output.clone(), range);
            }
        }
        for nested in
            node.attribute.iter_mut().flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs))
        {
            widen(nested, bounds)?;
        }
        if node.op_type() == "QuantizeLinear" {
            widen_result(node, bounds);
        }
    }
    graph.input.iter_mut().chain(&mut graph.output).for_each(widen_value);
    Ok(())
}

fn widen_tensor(tensor: &mut TensorProto) -> Result<Option<[i64; 2]>> {
    let Some((data_type, range)) = wide(tensor.data_type()) else { return Ok(None) };
    let values = integer_values(tensor).with_context(|| format!("tensor `{}`", tensor.name()))?;
    *tensor = tensor::from_integers(tensor.name(), data_type, &tensor::shape(tensor)?, &values)?;
    Ok(Some(range))
}

/// Sets the bounds of a QuantizeLinear's integers, from its zero point or else `output_dtype`.
fn widen_result(node: &mut NodeProto, bounds: &BTreeMap<String, [i64; 2]>) {
    let zero_point = node.input.get(2).filter(|name| !name.is_empty());
    let named = wide(int(node, "output_dtype", 0) as i32);
    let range = match zero_point {
        Some(zero_point) => bounds.get(zero_point).copied(),
        None => named.map(|(_, range)| range),
    };
    if let (Some((data_type, _)), Some(attribute)) =
        (named, node.attribute.iter_mut().find(|a| a.name() == "output_dtype"))
    {
        attribute.i = Some(data_type as i64);
    }
    let Some([low, high]) = range else { return };
    set_int(node, Q_MIN, low);
    set_int(node, Q_MAX, high);
}

fn widen_value(value: &mut ValueInfoProto) {
    let tensor = value.r#type.as_mut().and_then(|t| t.tensor_type.as_mut());
    if let Some(tensor) = tensor
        && let Some((data_type, _)) = wide(tensor.elem_type())
    {
        tensor.elem_type = Some(data_type as i32);
    }
}
