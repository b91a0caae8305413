//! Turns constants into initializers.
//!
//! 1. A Constant node of numbers becomes an initializer of the same name; one that makes an output of
//!    the graph, or holds text or a sparse tensor, stays.
//! 2. An initializer that is also an input of the graph is taken off the inputs: it is a default that
//!    quantization fixes. IR version 4 is needed for that and set.
//! 3. Uses of an Identity of an initializer, or of a Cast to the type that it has, become uses of the
//!    initializer; the node goes unless it makes an output of the graph.
//! 4. A Transpose of a float32 matrix that is an initializer becomes the turned matrix, unless it makes an output of the
//!    graph: a weight that is turned when the network runs is a constant weight.
//! 5. Inputs that are left out at the end of a node's list are dropped from it, which means the same.

use super::{Change, Pass};
use crate::onnx::graph::{GraphIndex, drop_unused, replace_uses};
use crate::onnx::node;
use crate::onnx::proto::{ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor;
use anyhow::Result;
use std::collections::BTreeSet;

/// The pass; see the module's documentation.
pub const LIFT_CONSTANTS: Pass = Pass { name: "lift_constants", run };

fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let mut changes = Vec::new();
    let outputs: BTreeSet<String> = graph.output.iter().map(|v| v.name().to_string()).collect();

    let mut lifted = 0;
    let mut kept = Vec::with_capacity(graph.node.len());
    for node in std::mem::take(&mut graph.node) {
        match node::constant(&node).filter(|tensor| !outputs.contains(tensor.name())) {
            Some(tensor) => {
                graph.initializer.push(tensor);
                lifted += 1;
            }
            None => kept.push(node),
        }
    }
    graph.node = kept;
    if lifted > 0 {
        changes.push(Change::LiftedConstants(lifted));
    }

    for node in &mut graph.node {
        while node.input.last().is_some_and(String::is_empty) {
            node.input.pop();
        }
    }

    let names: BTreeSet<String> = graph.initializer.iter().map(|tensor| tensor.name().to_string()).collect();
    let n_inputs = graph.input.len();
    graph.input.retain(|value| !names.contains(value.name()));
    let removed = n_inputs - graph.input.len();
    if removed > 0 {
        changes.push(Change::TakenOffInputs(removed));
    }

    let mut bypassed = 0;
    loop {
        let index = GraphIndex::new(graph);
        let found = graph.node.iter().position(|node| {
            node.input.first().is_some_and(|input| passes_on(&index, node, input))
                && node.output.first().is_some_and(|output| !index.is_output(output))
        });
        let Some(position) = found else { break };
        let node = graph.node.remove(position);
        replace_uses(graph, &node.output[0], &node.input[0]);
        bypassed += 1;
    }
    if bypassed > 0 {
        changes.push(Change::BypassedNodes(bypassed));
    }
    let index = GraphIndex::new(graph);
    let turned: Vec<Option<TensorProto>> = graph.node.iter().map(|node| turned_matrix(&index, node)).collect();
    let mut kept = Vec::with_capacity(graph.node.len());
    let mut sources = Vec::new();
    for (node, turned) in std::mem::take(&mut graph.node).into_iter().zip(turned) {
        match turned {
            Some(matrix) => {
                graph.initializer.push(matrix);
                sources.extend(node.input);
            }
            None => kept.push(node),
        }
    }
    graph.node = kept;
    if !sources.is_empty() {
        changes.push(Change::FoldedTransposes(sources.len()));
        drop_unused(graph, sources);
    }
    if removed > 0 {
        model.ir_version = model.ir_version.map(|version| version.max(4));
    }
    Ok(changes)
}

/// The initializer that replaces a Transpose of an initializer, a float32 matrix; it has the output's name.
fn turned_matrix(index: &GraphIndex, node: &NodeProto) -> Option<TensorProto> {
    let ([input], [output]) = (node.input.as_slice(), node.output.as_slice()) else { return None };
    let turns = node::attribute(node, "perm").is_none_or(|perm| perm.ints == [1, 0]);
    let stored = index.initializer(input).filter(|_| node.op_type() == "Transpose" && turns)?;
    let [rows, columns] = tensor::shape(stored).ok()?.try_into().ok()?;
    let values = tensor::f32_values(stored).ok().filter(|_| !index.is_output(output))?;
    let turned: Vec<f32> =
        (0..columns).flat_map(|c| (0..rows).map(move |r| (r, c))).map(|(r, c)| values[r * columns + c]).collect();
    tensor::from_f32(output, &[columns, rows], &turned).ok()
}

/// Whether the node only passes on the initializer `input`.
fn passes_on(index: &GraphIndex, node: &NodeProto, input: &str) -> bool {
    let Some(initializer) = index.initializer(input) else { return false };
    match node.op_type() {
        "Identity" => true,
        "Cast" => node::int(node, "to", 0) == i64::from(initializer.data_type()),
        _ => false,
    }
}
