//! Turns constants into initializers.
//!
//! 1. A numeric Constant node becomes an initializer with the name of the node's output. A Constant stays if it is an
//!    output of the graph, or holds text or a sparse tensor.
//! 2. An initializer that is also an input of the graph, and so only its default value, is taken off the inputs. Its
//!    value is then fixed. This needs IR version 4, to which the model is raised.

use super::Change;
use crate::onnx::node;
use crate::onnx::proto::ModelProto;
use anyhow::Result;
use std::collections::BTreeSet;

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
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

    let names: BTreeSet<String> = graph.initializer.iter().map(|tensor| tensor.name().to_string()).collect();
    let n_inputs = graph.input.len();
    graph.input.retain(|value| !names.contains(value.name()));
    let removed = n_inputs - graph.input.len();
    if removed > 0 {
        model.ir_version = model.ir_version.map(|version| version.max(4));
    }
    Ok(Change::counted([(lifted, Change::LiftedConstants), (removed, Change::TakenOffInputs)]))
}
