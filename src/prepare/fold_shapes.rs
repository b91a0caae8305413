//! Stores the outputs of Shape nodes, for targets of fixed shapes.
//!
//! All dimensions are numbers there. Nodes that then have constant inputs are computed by `fold_constants`.

use super::fold_constants::{self, drop_dead};
use super::values_of_shapes::values_of_shapes;
use super::{Change, node};
use crate::onnx::graph::drop_unused;
use crate::onnx::proto::{ModelProto, NodeProto};
use anyhow::Result;
use std::collections::BTreeSet;

/// Stores the outputs of Shape nodes that are no outputs of the graph, and folds the nodes behind them. Returns the
/// changes, or an empty list without any.
///
/// # Errors
/// If the model has no graph.
pub fn fold_shapes(model: &mut ModelProto) -> Result<Vec<Change>> {
    let is_shape = |node: &NodeProto| node::is_standard(node) && node.op_type() == "Shape";
    if !model.graph()?.node.iter().any(is_shape) {
        return Ok(Vec::new());
    }
    let known = values_of_shapes(model);
    let graph = model.graph_mut()?;
    let outputs: BTreeSet<String> = graph.output.iter().map(|output| output.name().to_string()).collect();
    let (mut n_stored, mut freed) = (0, BTreeSet::new());
    for node in std::mem::take(&mut graph.node) {
        let shape = node.output.first().filter(|name| is_shape(&node) && !outputs.contains(*name));
        match shape.and_then(|name| known.get(name)?.to_proto(name).ok()) {
            Some(shape) => {
                n_stored += 1;
                graph.initializer.push(shape);
                freed.extend(node.input);
            }
            None => graph.node.push(node),
        }
    }
    let freed = drop_dead(graph, freed);
    drop_unused(graph, freed);
    let mut changes = Change::counted([(n_stored, Change::StoredShapes)]);
    if n_stored > 0 {
        changes.extend(fold_constants::run(model, 0)?);
    }
    Ok(changes)
}
