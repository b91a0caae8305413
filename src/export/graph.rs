//! Edits of the prepared model for formats that are ONNX graphs.

use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// The initializer with this name. Fails if there is none.
pub(super) fn initializer<'a>(graph: &'a GraphProto, name: &str) -> Result<&'a TensorProto> {
    graph.initializer_named(name).with_context(|| format!("tensor `{name}`: is not an initializer of the model"))
}

/// Nodes to insert after the tensors that they read. Nodes after graph inputs and initializers come first.
#[derive(Default)]
pub(super) struct Inserted {
    after: BTreeMap<String, Vec<NodeProto>>,
}

impl Inserted {
    /// Adds `node`, to be inserted right after the producer of `tensor`.
    pub(super) fn after(&mut self, tensor: &str, node: NodeProto) {
        self.after.entry(tensor.to_string()).or_default().push(node);
    }

    /// Inserts the added nodes into `graph`.
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
