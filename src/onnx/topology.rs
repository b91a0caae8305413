//! Requirements of every ONNX runtime on a graph.

use super::graph::names_read;
use super::graph::{given, tensors};
use super::node::node_name;
use super::proto::ModelProto;
use anyhow::{Result, ensure};

/// Checks that nodes are in topological order and each tensor has one producer, as every ONNX runtime requires. A node
/// reads the tensors that its subgraphs capture.
///
/// # Errors
/// If a requirement is not met; the message names the node and the tensor.
pub fn check_topology(model: &ModelProto) -> Result<()> {
    let graph = model.graph()?;
    let mut made = given(graph);
    for node in &graph.node {
        for input in names_read(node) {
            ensure!(made.contains(input), "node `{}`: no earlier node produces input `{input}`", node_name(node));
        }
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            ensure!(
                made.insert(output),
                "node `{}`: output `{output}` already exists, expected one producer for each tensor",
                node_name(node)
            );
        }
    }
    check_outputs_made(model)
}

/// Checks that a node gives each output of the graph, or that it is an input or a constant.
///
/// # Errors
/// If an output is none of these; the message names it.
pub fn check_outputs_made(model: &ModelProto) -> Result<()> {
    let graph = model.graph()?;
    let made = tensors(graph);
    for output in &graph.output {
        ensure!(made.contains(output.name()), "output `{}`: no node produces it", output.name());
    }
    Ok(())
}
