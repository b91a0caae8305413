//! Edits of the prepared model for formats that are graphs.

use crate::onnx::graph::Edge;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::sidecar::Encoding;
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// The uses that read `encoding`'s tensor quantized.
///
/// # Errors
/// If the model has no such use, or the names of nodes do not tell which.
pub fn uses(graph: &GraphProto, encoding: &Encoding) -> Result<Vec<Edge>> {
    let wanted: BTreeSet<&str> = encoding.consumers.iter().map(String::as_str).collect();
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    let mut edges = Vec::new();
    for (node_idx, node) in graph.node.iter().enumerate() {
        let name = node_name(node);
        if !wanted.contains(name) || !node.input.contains(&encoding.name) {
            continue;
        }
        *found.entry(name).or_default() += 1;
        let inputs = node.input.iter().enumerate();
        edges
            .extend(inputs.filter(|(_, i)| **i == encoding.name).map(|(slot, _)| (node_idx, slot)));
    }
    for name in wanted {
        let n = found.get(name).copied().unwrap_or(0);
        ensure!(
            n > 0,
            "tensor `{}`: no node `{name}` of the model reads it, as the sidecar says",
            encoding.name
        );
        let listed = encoding.consumers.iter().filter(|consumer| *consumer == name).count();
        ensure!(
            n <= listed,
            "tensor `{}`: {n} nodes called `{name}` read it, expected names that tell them apart",
            encoding.name
        );
    }
    Ok(edges)
}

/// The initializer of this name.
///
/// # Errors
/// If there is none.
pub(super) fn initializer<'a>(graph: &'a GraphProto, name: &str) -> Result<&'a TensorProto> {
    let found = graph.initializer.iter().find(|tensor| tensor.name() == name);
    found.with_context(|| format!("tensor `{name}`: is no initializer of the model"))
}

/// Nodes to put behind the tensors that they read; those of initializers come first.
#[derive(Default)]
pub(super) struct Inserted {
    after: BTreeMap<String, Vec<NodeProto>>,
}

impl Inserted {
    /// `node` will stand right behind what makes `tensor`.
    pub(super) fn after(&mut self, tensor: &str, node: NodeProto) {
        self.after.entry(tensor.to_string()).or_default().push(node);
    }

    /// Puts the nodes into `graph`.
    pub(super) fn apply(mut self, graph: &mut GraphProto) {
        let mut nodes = Vec::new();
        let constants = graph.initializer.iter().map(|tensor| tensor.name().to_string());
        let inputs = graph.input.iter().map(|value| value.name().to_string());
        for name in inputs.chain(constants) {
            nodes.extend(self.after.remove(&name).into_iter().flatten());
        }
        for node in std::mem::take(&mut graph.node) {
            let outputs = node.output.clone();
            nodes.push(node);
            for output in outputs {
                nodes.extend(self.after.remove(&output).into_iter().flatten());
            }
        }
        graph.node = nodes;
    }
}
