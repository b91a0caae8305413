//! Unused names for new nodes and tensors.

use super::proto::GraphProto;
use std::collections::BTreeSet;

/// All names of a graph and its subgraphs.
#[derive(Debug, Default)]
pub struct Names {
    taken: BTreeSet<String>,
}

impl Names {
    /// Collects the names of tensors and nodes.
    pub fn of(graph: &GraphProto) -> Names {
        let mut names = Names::default();
        names.read(graph);
        names
    }

    fn read(&mut self, graph: &GraphProto) {
        let values = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
        self.taken.extend(values.map(|value| value.name().to_string()));
        self.taken.extend(graph.initializer.iter().map(|tensor| tensor.name().to_string()));
        for node in &graph.node {
            self.taken.insert(node.name().to_string());
            self.taken.extend(node.input.iter().chain(&node.output).cloned());
            for attribute in &node.attribute {
                attribute.g.iter().chain(&attribute.graphs).for_each(|graph| self.read(graph));
            }
        }
    }

    /// Returns and reserves `base`, or the first free name of `base_1`, `base_2`, … if `base` is taken.
    pub fn fresh(&mut self, base: &str) -> String {
        let mut name = base.to_string();
        let mut n = 0;
        while !self.taken.insert(name.clone()) {
            n += 1;
            name = format!("{base}_{n}");
        }
        name
    }
}
