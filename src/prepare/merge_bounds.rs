//! Turns bounds that are written as several nodes into one Relu or Clip, which tables fuse with the layer before it.
//!
//! A chain of Relu, Clip, and Min and Max with a constant number becomes one node: `Min(Max(x, 0), 6)`, in either
//! order, is `Clip(x, 0, 6)`, and `Max(x, 0)` alone is Relu. Between the nodes of a chain, nothing else reads the
//! tensors. A single Min, a single Clip and a single Max with another constant stay.

use super::ranks::ranks;
use super::{Change, default_opset};
use crate::onnx::graph::{GraphIndex, drop_unused};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::onnx::tensor::from_f32;
use anyhow::Result;
use std::collections::{BTreeSet, HashMap};

/// Lower and upper bound of values.
#[derive(Clone, Copy)]
struct ValueBounds {
    low: f32,
    high: f32,
}

impl ValueBounds {
    const NONE: ValueBounds = ValueBounds { low: f32::NEG_INFINITY, high: f32::INFINITY };

    /// Returns the bounds of values that are bounded by `self` and then by `next`.
    fn then(self, next: ValueBounds) -> ValueBounds {
        let bound = |x: f32| x.max(next.low).min(next.high);
        ValueBounds { low: bound(self.low), high: bound(self.high) }
    }

    fn is_relu(self) -> bool {
        self.low == 0.0 && self.high == f32::INFINITY
    }
}

/// Nodes that become one.
struct Chain {
    nodes: Vec<usize>,
    input: String,
    bounds: ValueBounds,
}

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    // Before, the bounds of Clip are attributes.
    if default_opset(model)? < 11 {
        return Ok(Vec::new());
    }
    let graph = model.graph_mut()?;
    let found = chains(graph);
    let mut names = Names::of(graph);
    let (n_found, mut gone, mut constants) = (found.len(), BTreeSet::<usize>::new(), Vec::new());
    for Chain { nodes, input, bounds } in found {
        let Some((last, before)) = nodes.split_last() else { continue };
        gone.extend(before);
        constants.extend(nodes.iter().flat_map(|&node_idx| graph.node[node_idx].input.iter().cloned()));
        let (name, output) = (graph.node[*last].name().to_string(), graph.node[*last].output[0].clone());
        if bounds.is_relu() {
            graph.node[*last] = node::make("Relu", &name, &[&input], &output);
            continue;
        }
        let mut inputs = vec![input];
        for (suffix, bound) in [("low", bounds.low), ("high", bounds.high)] {
            if bound.is_infinite() {
                inputs.push(String::new());
                continue;
            }
            let name = names.fresh(&format!("{output}_{suffix}"));
            graph.initializer.push(from_f32(&name, &[], &[bound])?);
            inputs.push(name);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        graph.node[*last] = node::make("Clip", &name, &inputs, &output);
    }
    let mut node_idx = 0..;
    graph.node.retain(|_| node_idx.next().is_some_and(|node_idx| !gone.contains(&node_idx)));
    drop_unused(graph, constants);
    Ok(Change::counted([(n_found, Change::MergedBounds)]))
}

/// Returns the longest chains.
fn chains(graph: &GraphProto) -> Vec<Chain> {
    let (index, ranks) = (GraphIndex::new(graph), ranks(graph));
    let bounds_of = |node: &NodeProto| bounds_of(&index, &ranks, node);
    let mut taken = BTreeSet::new();
    let mut found = Vec::new();
    for (first, node) in graph.node.iter().enumerate() {
        let Some((slot, bounds)) = bounds_of(node).filter(|_| !taken.contains(&first)) else { continue };
        let mut chain = Chain { nodes: vec![first], input: node.input[slot].clone(), bounds };
        let mut output = &node.output[0];
        while let [(next, slot)] = *index.consumers(output)
            && let Some((bounded, bounds)) = graph.node.get(next).and_then(bounds_of)
            && bounded == slot
            && !index.is_output(output)
            && !index.is_captured(output)
        {
            chain.nodes.push(next);
            chain.bounds = chain.bounds.then(bounds);
            output = &graph.node[next].output[0];
        }
        taken.extend(chain.nodes.iter().copied());
        let is_relu = node.op_type() == "Max" && chain.bounds.is_relu();
        // Equal or swapped bounds make a constant.
        let is_range = chain.bounds.low < chain.bounds.high;
        if (chain.nodes.len() > 1 || is_relu) && is_range {
            found.push(chain);
        }
    }
    found
}

/// Returns the position of the input that a node bounds, and its bounds; `None` for other nodes and unknown bounds.
fn bounds_of(index: &GraphIndex, ranks: &HashMap<&str, usize>, node: &NodeProto) -> Option<(usize, ValueBounds)> {
    if !node::is_standard(node) || node.output.len() != 1 {
        return None;
    }
    // A number with axes gives its rank to a result of lower rank.
    let rank = |slot: usize| ranks.get(node.input.get(slot)?.as_str()).copied();
    let scalar = |slot: usize| match index.floats(node.input.get(slot)?)?[..] {
        [value] if value.is_finite() && rank(slot)? <= rank(1 - slot).unwrap_or(0) => Some(value),
        _ => None,
    };
    let one = |bound: f32| match node.op_type() {
        "Max" => ValueBounds { low: bound, ..ValueBounds::NONE },
        _ => ValueBounds { high: bound, ..ValueBounds::NONE },
    };
    match (node.op_type(), node.input.len()) {
        ("Relu", 1) => Some((0, ValueBounds { low: 0.0, ..ValueBounds::NONE })),
        ("Clip", _) => {
            let (low, high) = index.clip_bounds(node)?;
            let bounds = ValueBounds { low: low.unwrap_or(f32::NEG_INFINITY), high: high.unwrap_or(f32::INFINITY) };
            (!node.input.first()?.is_empty()).then_some((0, bounds))
        }
        ("Max" | "Min", 2) => match [scalar(0), scalar(1)] {
            [None, Some(bound)] => Some((0, one(bound))),
            [Some(bound), None] => Some((1, one(bound))),
            _ => None,
        },
        _ => None,
    }
}
