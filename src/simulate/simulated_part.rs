//! Nodes that are not simulated, because they are behind shapes that depend on values.
//!
//! Non-maximum suppression keeps a different number of boxes in each network, so that tensors behind it cannot be
//! compared value by value. The float tensors that these nodes read are evaluated instead, such as boxes and scores
//! before the suppression.

use crate::onnx::graph::{GraphIndex, names_read};
use crate::onnx::node::SHAPED_BY_VALUES;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::onnx::value_info::ValueInfos;
use anyhow::Result;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The part of a graph that is simulated.
pub struct SimulatedPart<'a> {
    /// Positions of the nodes that are left out.
    pub skipped_nodes: BTreeSet<usize>,
    /// Names of the simulated outputs: the graph's own, and float tensors that the left-out nodes read.
    pub outputs: Vec<&'a str>,
}

impl<'a> SimulatedPart<'a> {
    /// Returns the part of a model. No node is left out where no tensor could be evaluated instead. Fails if the model
    /// has no graph.
    pub fn of(model: &'a ModelProto) -> Result<SimulatedPart<'a>> {
        let graph = model.graph()?;
        let all = || graph.output.iter().map(|output| output.name());
        let skipped_nodes = behind_shapes(graph);
        if skipped_nodes.is_empty() {
            return Ok(SimulatedPart { skipped_nodes, outputs: all().collect() });
        }
        let (index, types) = (GraphIndex::new(graph), ValueInfos::of_model(model));
        let is_made = |name: &str| index.producer_idx(name).is_some_and(|node_idx| !skipped_nodes.contains(&node_idx));
        let mut outputs: Vec<&str> = all().filter(|name| is_made(name)).collect();
        for &node_idx in &skipped_nodes {
            for name in names_read(&graph.node[node_idx]) {
                if is_made(name) && types.is_float(name) && !outputs.contains(&name) {
                    outputs.push(name);
                }
            }
        }
        Ok(match outputs.is_empty() {
            true => SimulatedPart { skipped_nodes: BTreeSet::new(), outputs: all().collect() },
            false => SimulatedPart { skipped_nodes, outputs },
        })
    }
}

/// Returns the graph of the simulated part, for code that inspects outputs.
///
/// # Errors
/// If the model has no graph.
pub fn simulated_graph(model: &ModelProto) -> Result<Cow<'_, GraphProto>> {
    let graph = model.graph()?;
    let SimulatedPart { skipped_nodes, outputs } = SimulatedPart::of(model)?;
    if skipped_nodes.is_empty() {
        return Ok(Cow::Borrowed(graph));
    }
    let known = |name: &&str| graph.output.iter().chain(&graph.value_info).find(|value| value.name() == *name).cloned();
    let output = outputs.iter().map(|name| known(name).unwrap_or_else(|| ValueInfoProto::without_shape(name, 1)));
    let node = graph.node.iter().enumerate().filter(|(node_idx, _)| !skipped_nodes.contains(node_idx));
    let (node, output) = (node.map(|(_, node)| node.clone()).collect(), output.collect());
    Ok(Cow::Owned(GraphProto { node, output, ..graph.clone() }))
}

fn behind_shapes(graph: &GraphProto) -> BTreeSet<usize> {
    let is_shaped = |node: &NodeProto| SHAPED_BY_VALUES.contains(&node.op_type());
    let (mut shaped, mut found) = (BTreeSet::new(), BTreeSet::new());
    // Every pass calls this, and most networks have no such node.
    if !graph.node.iter().any(is_shaped) {
        return found;
    }
    for (node_idx, node) in graph.node.iter().enumerate() {
        if is_shaped(node) || names_read(node).iter().any(|name| shaped.contains(name)) {
            shaped.extend(node.output.iter().map(String::as_str));
            found.insert(node_idx);
        }
    }
    found
}
