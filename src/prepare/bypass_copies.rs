//! Bypasses nodes that only copy their first input.
//!
//! 1. Copies are Identity, a Dropout in inference, a Cast to the type that the tensor has, a Transpose that keeps the
//!    order of the axes, and a Concat, Sum, Mean, Max or Min of one tensor.
//! 2. Readers of the copy read the copy's input instead. If the copy is an output of the graph, the node that produces
//!    the input produces this output instead. If the input is a graph input, an initializer or another output of the
//!    graph, the node stays.
//! 3. A node whose input or output a subgraph reads stays, and so does a Dropout with a mask that is read.

use super::Change;
use super::renamed_tensors::RenamedTensors;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node;
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::onnx::tensor;
use crate::onnx::value_info::ValueInfos;
use anyhow::Result;
use std::collections::BTreeSet;

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let value_info = ValueInfos::of_model(model);
    let graph = model.graph_mut()?;
    let index = GraphIndex::new(graph);
    let mut renamed = RenamedTensors::default();
    let mut bypassed = BTreeSet::new();
    for (node_idx, node) in graph.node.iter().enumerate() {
        let (Some(input), Some(output)) = (node.input.first(), node.output.first()) else { continue };
        if !only_copies(&index, &value_info, node) || index.is_captured(input) || index.is_captured(output) {
            continue;
        }
        let source = renamed.name(input).to_string();
        if !index.is_output(output) {
            renamed.insert(output.clone(), source);
        } else if index.producer(&source).is_some() && !index.is_output(&source) {
            renamed.insert(source, output.clone());
        } else {
            continue;
        }
        bypassed.insert(node_idx);
    }
    renamed.apply(graph, &bypassed);
    Ok(Change::counted([(bypassed.len(), Change::BypassedNodes)]))
}

/// Whether the node only copies its first input.
fn only_copies(index: &GraphIndex, value_info: &ValueInfos, node: &NodeProto) -> bool {
    let [input, others @ ..] = node.input.as_slice() else { return false };
    if input.is_empty() || !node::is_standard(node) {
        return false;
    }
    match node.op_type() {
        "Identity" => true,
        "Cast" => value_info.data_type(input).is_some_and(|of_input| node::int(node, "to", 0) == i64::from(of_input)),
        "Concat" | "Sum" | "Mean" | "Max" | "Min" => others.is_empty(),
        "Transpose" => {
            node::attribute(node, "perm").is_some_and(|perm| perm.ints.iter().copied().eq(0..perm.ints.len() as i64))
        }
        "Dropout" => {
            let is_read = |mask: &String| index.is_output(mask) || !index.consumers(mask).is_empty();
            let is_false = |mode: &String| index.initializer(mode).is_some_and(|stored| !tensor::is_true(stored));
            !node.output.iter().skip(1).any(is_read) && others.get(1).is_none_or(|it| it.is_empty() || is_false(it))
        }
        _ => false,
    }
}
