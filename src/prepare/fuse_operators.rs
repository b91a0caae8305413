//! Fuses operators that spell out a GELU or a division by the L2 norm, for targets that have one operator for each, and
//! removes the guards of Softmax against NaN.
//!
//! `0.5 * x * (1 + Erf(x / sqrt(2)))`, with the products in any order, becomes Gelu. `x / ReduceL2(x)` over one axis
//! becomes LpNormalization, also with a lower bound of the norm of at most 1e-6 and an Expand. Vectors of zeros then
//! become zeros, also without a bound. Source: ONNX Runtime, `fusion_gelu.py` and `fusion_lpnorm.py` of its
//! preprocessing for QNN.
//!
//! `Where(IsNaN(p), 0, p)` behind a Softmax, as PyTorch exports scaled dot-product attention, becomes `p`: an integer is
//! never NaN, and these targets have no IsNaN. A Reciprocal becomes a Div of 1: the HTP gives wrong values for a Reciprocal
//! above 2 (onnxruntime-qnn 2.7).

use super::Change;
use super::fold_constants::drop_dead;
use super::renamed_tensors::RenamedTensors;
use crate::onnx::graph::{GraphIndex, drop_unused};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::onnx::tensor;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::f32::consts::{FRAC_1_SQRT_2, SQRT_2};

/// First version of the default operator set that has Gelu.
const GELU_OPSET: i64 = 20;
/// Largest lower bound of a norm that LpNormalization may drop.
const LARGEST_BOUND: f32 = 1e-6;

/// Returns the minimum version of the default operator set for the fused operators of a model.
pub fn opset_of_fused(model: &ModelProto) -> i64 {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    if nodes.into_iter().any(|node| node.op_type() == "Erf") { GELU_OPSET } else { 0 }
}

/// Fuses operators, removes guards and replaces each Reciprocal. Returns the numbers of each as changes, or an empty list
/// without any.
///
/// # Errors
/// If the model has no graph.
pub fn fuse_operators(model: &mut ModelProto) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let n_quotients = divide_ones(graph)?;
    let (mut renamed, mut guards) = (RenamedTensors::default(), BTreeSet::new());
    let fused: BTreeMap<usize, NodeProto> = {
        let index = GraphIndex::new(graph);
        for (node_idx, node) in graph.node.iter().enumerate() {
            if let Some((guarded, probabilities)) = guard(&index, node) {
                renamed.insert(guarded.to_string(), probabilities.to_string());
                guards.insert(node_idx);
            }
        }
        let of_node = |node_idx: usize| match op(&graph.node[node_idx]) {
            "Erf" => gelu(graph, &index, node_idx),
            "Div" => l2_normalization(graph, &index, node_idx),
            _ => None,
        };
        (0..graph.node.len()).filter_map(of_node).collect()
    };
    let (n_fused, mut freed) = (fused.len(), BTreeSet::new());
    for (node_idx, node) in fused {
        freed.extend(std::mem::replace(&mut graph.node[node_idx], node).input);
    }
    freed.extend(guards.iter().flat_map(|&node_idx| graph.node[node_idx].input.iter().take(2).cloned()));
    renamed.apply(graph, &guards);
    let freed = drop_dead(graph, freed);
    drop_unused(graph, freed);
    Ok(Change::counted([
        (n_fused, Change::FusedOperators),
        (guards.len(), Change::RemovedGuards),
        (n_quotients, Change::DividedOnes),
    ]))
}

/// Returns the Gelu that replaces the last node of a GELU around the Erf at `erf_idx`, with the position of that node.
fn gelu(graph: &GraphProto, index: &GraphIndex, erf_idx: usize) -> Option<(usize, NodeProto)> {
    let erf = &graph.node[erf_idx];
    let scaled = index.producer(erf.input.first()?)?;
    let x = match (op(scaled), &scaled.input[..]) {
        ("Div", [x, divisor]) if is_number(index, divisor, SQRT_2) => x,
        ("Mul", _) => factor_beside(index, scaled, FRAC_1_SQRT_2)?,
        _ => return None,
    };
    let add = &graph.node[index.only_value_reader(erf.output.first()?)?.0];
    let [a, b] = add.input.as_slice() else { return None };
    if op(add) != "Add" || !is_number(index, a, 1.0) && !is_number(index, b, 1.0) {
        return None;
    }
    let (mut product, mut has_x, mut has_half) = (add, false, false);
    loop {
        let (node_idx, input_idx) = index.only_value_reader(product.output.first()?)?;
        product = &graph.node[node_idx];
        let other = product.input.get(1 - input_idx.min(1))?;
        let half_of_x = || {
            let half = index.producer(other).filter(|half| op(half) == "Mul")?;
            factor_beside(index, half, 0.5).filter(|factor| *factor == x)
        };
        match op(product) {
            "Mul" if !has_half && is_number(index, other, 0.5) => has_half = true,
            "Mul" if !has_x && other == x => has_x = true,
            "Mul" if !has_x && !has_half && half_of_x().is_some() => (has_x, has_half) = (true, true),
            _ => return None,
        }
        if has_x && has_half {
            return Some((node_idx, node::make("Gelu", product.name(), &[x], product.output.first()?)));
        }
    }
}

/// Returns the LpNormalization that replaces the Div at `div_idx`, with the position of that node.
fn l2_normalization(graph: &GraphProto, index: &GraphIndex, div_idx: usize) -> Option<(usize, NodeProto)> {
    let div = &graph.node[div_idx];
    let [x, divisor] = div.input.as_slice() else { return None };
    let mut norm = index.producer(divisor)?;
    if op(norm) == "Expand" {
        norm = index.producer(norm.input.first()?)?;
    }
    if op(norm) == "Clip" {
        let (Some(low), None) = index.clip_bounds(norm)? else { return None };
        norm = index.producer(norm.input.first()?).filter(|_| low <= LARGEST_BOUND)?;
    }
    let of_x = op(norm) == "ReduceL2" && norm.input.first() == Some(x) && node::int(norm, "keepdims", 1) == 1;
    let axes = index.axes(norm).filter(|_| of_x)?;
    let [axis] = axes.as_slice() else { return None };
    let mut normalization = node::make("LpNormalization", div.name(), &[x], div.output.first()?);
    node::set_int(&mut normalization, "axis", *axis);
    node::set_int(&mut normalization, "p", 2);
    Some((div_idx, normalization))
}

/// Replaces each Reciprocal by a Div of a constant 1. Returns their number.
fn divide_ones(graph: &mut GraphProto) -> Result<usize> {
    let one = Names::of(graph).fresh("one");
    let mut n_divided = 0;
    for node in graph.node.iter_mut().filter(|node| op(node) == "Reciprocal") {
        let ([x], [output]) = (&node.input[..], &node.output[..]) else { continue };
        *node = node::make("Div", node.name(), &[&one, x], output);
        n_divided += 1;
    }
    if n_divided > 0 {
        graph.initializer.push(tensor::from_f32(&one, &[], &[1.0])?);
    }
    Ok(n_divided)
}

/// Returns the output of a Where that replaces NaN behind a Softmax by 0, and the output of the Softmax.
fn guard<'g>(index: &GraphIndex<'g>, node: &'g NodeProto) -> Option<(&'g str, &'g str)> {
    let ("Where", [is_nan, zero, x], [output]) = (op(node), &node.input[..], &node.output[..]) else { return None };
    let is_nan = index.producer(is_nan).filter(|it| op(it) == "IsNaN" && it.input.first() == Some(x))?;
    let is_guard = op(index.producer(x)?) == "Softmax" && is_number(index, zero, 0.0);
    let is_captured = [output, is_nan.output.first()?].into_iter().any(|name| index.is_captured(name));
    (is_guard && !is_captured && !index.is_output(output)).then_some((output, x))
}

/// Whether `name` is a constant with this one value, up to the rounding of exporters, that gives no product more axes.
fn is_number(index: &GraphIndex, name: &str, value: f32) -> bool {
    index.initializer(name).is_some_and(|constant| constant.dims.len() <= 1)
        && index.floats(name).is_some_and(|found| matches!(found[..], [found] if (found - value).abs() < 1e-4))
}

/// Returns the input of a Mul beside the constant `value`.
fn factor_beside<'g>(index: &GraphIndex, product: &'g NodeProto, value: f32) -> Option<&'g String> {
    let [a, b] = product.input.as_slice() else { return None };
    match (is_number(index, a, value), is_number(index, b, value)) {
        (true, false) => Some(b),
        (false, true) => Some(a),
        _ => None,
    }
}

/// Returns the operator of the default domain; an empty text for other domains.
fn op(node: &NodeProto) -> &str {
    if node::is_standard(node) { node.op_type() } else { "" }
}
