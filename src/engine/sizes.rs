//! Checks sizes that a model declares against limits, before anything is allocated.

use crate::diag::WithHint;
use crate::onnx::node::{attribute, constant, from_first, node_name};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};
use crate::onnx::value_info::ValueInfos;
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::HashMap;

/// Maximum elements of a tensor: 4 GiB of floats.
pub(super) const MAX_ELEMENTS: usize = 1 << 30;
/// Maximum elements along an axis that padding adds, a window spans or a range counts.
const MAX_WINDOW: u64 = 1 << 24;
/// Maximum axes of a tensor.
const MAX_RANK: i64 = 64;
/// Attributes with sizes of windows, padding and outputs.
const WINDOWS: &[&str] =
    &["pads", "paddings", "kernel_shape", "dilations", "strides", "output_padding", "output_shape"];

/// Refuses tensors whose values do not fill their shape, and nodes whose constant inputs or attributes declare a tensor
/// that is too large.
pub(super) fn check_declared(model: &ModelProto) -> Result<()> {
    model.graph.as_ref().map_or(Ok(()), of_graph)
}

fn of_graph(graph: &GraphProto) -> Result<()> {
    let lifted: Vec<TensorProto> = graph.node.iter().filter_map(constant).filter(is_small).collect();
    let known = graph.initializer.iter().chain(&lifted).filter(|tensor| is_small(tensor));
    let constants: HashMap<&str, &TensorProto> = known.map(|tensor| (tensor.name(), tensor)).collect();
    for tensor in &graph.initializer {
        tensor::ensure_whole(tensor).with_context(|| format!("tensor `{}`", tensor.name()))?;
    }
    for node in &graph.node {
        of_node(node, &constants).with_context(|| format!("node `{}` ({})", node_name(node), node.op_type()))?;
        for attribute in &node.attribute {
            attribute.g.iter().chain(&attribute.graphs).try_for_each(of_graph)?;
        }
    }
    Ok(())
}

/// Refuses nodes whose constant axes or parts do not fit the shape of their first input.
pub(super) fn check_shapes(graph: &GraphProto, shapes: &ValueInfos) -> Result<()> {
    let lifted: Vec<TensorProto> = graph.node.iter().filter_map(constant).filter(is_small).collect();
    let known = graph.initializer.iter().chain(&lifted).filter(|tensor| is_small(tensor));
    let constants: HashMap<&str, &TensorProto> = known.map(|tensor| (tensor.name(), tensor)).collect();
    for node in &graph.node {
        let Some(shape) = node.input.first().and_then(|input| shapes.shape(input)) else { continue };
        let integers = |i: usize| tensor::i64_values(constants.get(node.input.get(i)?.as_str())?).ok();
        fits(node, shape, integers).with_context(|| format!("node `{}` ({})", node_name(node), node.op_type()))?;
    }
    Ok(())
}

/// Checks a node with an input of this shape. `integers` returns the values of a constant input.
fn fits(node: &NodeProto, shape: &[usize], integers: impl Fn(usize) -> Option<Vec<i64>>) -> Result<()> {
    let rank = shape.len() as i64;
    let at = |axis: i64| {
        let is_inside = (-rank..rank).contains(&axis);
        ensure!(is_inside, "axis is {axis}, expected {} to {} for the shape {shape:?}", -rank, rank - 1);
        Ok(from_first(axis, shape.len()) as usize)
    };
    let given = attribute(node, "axis").map(|attribute| attribute.i());
    match node.op_type() {
        "RMSNormalization" | "Softmax" | "LogSoftmax" | "Hardmax" => given.map_or(Ok(()), |axis| at(axis).map(drop)),
        "Slice" => integers(3).into_iter().flatten().try_for_each(|axis| at(axis).map(drop)),
        "Split" => {
            let of_attribute = || attribute(node, "split").map(|attribute| attribute.ints.clone());
            let parts = integers(1).or_else(of_attribute).filter(|parts| !parts.is_empty());
            let Some(parts) = parts else { return Ok(()) };
            let length = shape[at(given.unwrap_or(0))?];
            let sum = parts.iter().fold(0i64, |sum, &part| sum.saturating_add(part));
            ensure!(usize::try_from(sum) == Ok(length), "split is {parts:?}, expected the sum {length}");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether a tensor may be a list of sizes.
fn is_small(tensor: &TensorProto) -> bool {
    tensor.dims.iter().product::<i64>() <= 64 && !tensor::is_external(tensor)
}

fn of_node(node: &NodeProto, constants: &HashMap<&str, &TensorProto>) -> Result<()> {
    let input = |i: usize| node.input.get(i).and_then(|name| constants.get(name.as_str())).copied();
    let integers = |i: usize| input(i).and_then(|tensor| tensor::i64_values(tensor).ok());
    for name in WINDOWS {
        let values = attribute(node, name).map_or(&[][..], |attribute| &attribute.ints);
        ensure_window(name, values)?;
    }
    if let Some(axis) = attribute(node, "axis").map(|attribute| attribute.i()) {
        ensure!((-MAX_RANK..MAX_RANK).contains(&axis), "axis is {axis}, expected {} to {}", -MAX_RANK, MAX_RANK - 1);
    }
    match node.op_type() {
        "ConstantOfShape" => ensure_product("shape", integers(0)),
        "Expand" => ensure_product("shape", integers(1)),
        "Tile" => ensure_product("repeats", integers(1)),
        "Resize" => ensure_product("sizes", integers(3)),
        "OneHot" => ensure_product("depth", integers(1)),
        "Pad" => ensure_window("pads", &integers(1).unwrap_or_default()),
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => {
            let size = input(0).and_then(|size| tensor::f64_values(size).ok()).unwrap_or_default();
            ensure_window("size", &size.into_iter().map(|size| size as i64).collect::<Vec<i64>>())
        }
        "Range" => match [0, 1, 2].map(input) {
            [Some(start), Some(limit), Some(delta)] => ensure_range(start, limit, delta),
            _ => Ok(()),
        },
        "Scan" => {
            let n = attribute(node, "num_scan_inputs").map_or(0, |attribute| attribute.i());
            let n_inputs = node.input.len();
            ensure!((1..=n_inputs as i64).contains(&n), "num_scan_inputs is {n}, expected 1 to {n_inputs}, its inputs");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn ensure_window(name: &str, values: &[i64]) -> Result<()> {
    let far = values.iter().find(|value| value.unsigned_abs() > MAX_WINDOW);
    far.map_or(Ok(()), |value| Err(anyhow!("{name} has {value}, expected at most {MAX_WINDOW}")))
}

fn ensure_product(name: &str, values: Option<Vec<i64>>) -> Result<()> {
    let values = values.unwrap_or_default();
    // 0 and -1 stand for sizes that are known elsewhere.
    let sizes = values.iter().filter(|&&value| value > 0);
    let n = sizes.fold(1u128, |n, &value| n.saturating_mul(value as u128));
    ensure!(n <= MAX_ELEMENTS as u128, "{name} is {values:?}, expected at most {MAX_ELEMENTS} elements");
    Ok(())
}

fn ensure_range(start: &TensorProto, limit: &TensorProto, delta: &TensorProto) -> Result<()> {
    let number = |tensor: &TensorProto| match tensor.data_type() {
        of if of == DataType::Float as i32 => tensor::f32_values(tensor).ok()?.first().map(|&value| f64::from(value)),
        of if of == DataType::Int64 as i32 => tensor::i64_values(tensor).ok()?.first().map(|&value| value as f64),
        _ => None,
    };
    let (Some(start), Some(limit), Some(delta)) = (number(start), number(limit), number(delta)) else { return Ok(()) };
    let n = (limit - start) / delta;
    ensure!(
        n.is_nan() || n <= MAX_WINDOW as f64,
        "range is {start} to {limit} by {delta}, expected at most {MAX_WINDOW} elements"
    );
    Ok(())
}

/// Refuses a tensor that is too large.
pub(super) fn ensure_fits(name: &str, shape: &[usize]) -> Result<()> {
    let n = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    let fits = n.is_some_and(|n| n <= MAX_ELEMENTS);
    ensure!(
        fits,
        anyhow!("tensor `{name}`: shape is {shape:?}, expected at most {MAX_ELEMENTS} elements")
            .hint("give smaller inputs with --shape")
    );
    Ok(())
}
