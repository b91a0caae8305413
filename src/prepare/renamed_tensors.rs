//! Renames tensors when nodes are removed.

use crate::onnx::proto::GraphProto;
use std::collections::{BTreeSet, HashMap};

/// New names of tensors by old names. A new name may itself be renamed.
#[derive(Default)]
pub(super) struct RenamedTensors(HashMap<String, String>);

impl RenamedTensors {
    /// Renames a tensor. Further renames of the new name must not lead back to the old name.
    pub(super) fn insert(&mut self, tensor: String, name: String) {
        self.0.insert(tensor, name);
    }

    /// Returns the final name of a tensor, after all renames.
    pub(super) fn name<'a>(&'a self, tensor: &'a str) -> &'a str {
        let mut name = tensor;
        while let Some(next) = self.0.get(name) {
            name = next;
        }
        name
    }

    /// Removes the nodes at the positions `gone`, and renames the inputs and outputs of the other nodes. Subgraphs stay
    /// unchanged.
    pub(super) fn apply(self, graph: &mut GraphProto, gone: &BTreeSet<usize>) {
        let nodes = std::mem::take(&mut graph.node).into_iter().enumerate();
        graph.node = nodes.filter(|(node_idx, _)| !gone.contains(node_idx)).map(|(_, node)| node).collect();
        for node in &mut graph.node {
            for tensor in node.input.iter_mut().chain(&mut node.output) {
                let name = self.name(tensor);
                if name != tensor {
                    *tensor = name.to_string();
                }
            }
        }
        graph.value_info.retain(|value| !self.0.contains_key(value.name()));
    }
}
