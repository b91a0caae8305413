//! Precisions of single nodes, in place of those of their rows: what mixed precision chose.

use super::{Draft, Placement};
use std::collections::BTreeMap;

/// The name that stands for a rule where a node was left float.
const RULE: &str = "mixed_precision";

/// Which nodes have another precision than the table gives them, by position in the graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Assigned {
    /// Nodes that stay float, with the reason.
    pub float: BTreeMap<usize, String>,
    /// Types of the activations that a node reads and makes.
    pub activations: BTreeMap<usize, String>,
    /// Types of nodes' weights.
    pub weights: BTreeMap<usize, String>,
}

impl Assigned {
    /// What stays float in a placement because it was assigned.
    pub fn of(placement: &Placement) -> Assigned {
        let float = placement.float_nodes.iter().filter(|float| float.rule == RULE);
        Assigned { float: float.map(|float| (float.node, float.reason.clone())).collect(), ..Assigned::default() }
    }

    /// Before the rules run, as for nodes that the user takes out.
    pub(super) fn leave_float(&self, draft: &mut Draft) {
        draft.rule = RULE;
        for (&node_idx, reason) in &self.float {
            draft.leave_float(node_idx, reason.clone());
        }
    }

    /// After the rules, which may have given types of their own.
    pub(super) fn set_types(&self, draft: &mut Draft) {
        for (&node_idx, qtype) in &self.weights {
            draft.set_types(node_idx, None, Some(qtype));
        }
        for (&node_idx, qtype) in &self.activations {
            for tensor in draft.quantizers_around(node_idx) {
                let group = draft.group_of(tensor);
                draft.group_types.insert(group, qtype.clone());
            }
        }
    }
}

impl<'a> Draft<'a> {
    /// The quantized tensors that a node reads, and those that it makes, behind what runs at its end.
    fn quantizers_around(&self, node_idx: usize) -> Vec<&'a str> {
        let graph = self.graph;
        let Some(node) = graph.node.get(node_idx) else { return Vec::new() };
        let inputs = node.input.iter().enumerate();
        let read = inputs.filter(|(i, _)| self.is_quantized_edge((node_idx, *i)));
        let mut placement: Vec<&str> = read.map(|(_, name)| name.as_str()).collect();
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            placement.extend(self.quantizer_after(output));
        }
        placement
    }

    /// `tensor`, or the quantized tensor that a chain of float operators makes of it alone.
    fn quantizer_after(&self, mut tensor: &'a str) -> Option<&'a str> {
        let graph = self.graph;
        for _ in 0..=graph.node.len() {
            if self.is_quantizer(tensor) {
                return Some(tensor);
            }
            let (next, 0) = self.index.only_value_reader(tensor)? else { return None };
            tensor = graph.node.get(next)?.output.first()?;
        }
        None
    }
}
