//! Precisions of single nodes that mixed precision chose, which replace those of the table's rows.

use super::Draft;
use std::collections::{BTreeMap, BTreeSet};

/// The name that marks have instead of the name of a rule.
pub(super) const RULE: &str = "mixed_precision";

/// The nodes with another precision than the table gives them, by position in the graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Assigned {
    /// Nodes that stay float, with the reason.
    pub float: BTreeMap<usize, String>,
    /// Types of the activations that a node reads and writes.
    pub activations: BTreeMap<usize, String>,
    /// Types of the weights of nodes.
    pub weights: BTreeMap<usize, String>,
    /// Nodes in a region of wider types, to which the rows of the table's region apply.
    pub region: BTreeSet<usize>,
}

impl Assigned {
    /// Applies the float nodes and the region. Must run before the rules.
    pub(super) fn leave_float(&self, draft: &mut Draft) {
        draft.rule = RULE;
        draft.region.extend(&self.region);
        for (&node_idx, reason) in &self.float {
            draft.leave_float(node_idx, reason.clone());
        }
    }

    /// Applies the types. Must run after the rules, which may have set types of their own.
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
    /// Quantizes the input of each copy at the border of a region whose output is quantized.
    pub(super) fn quantize_copies(&mut self) {
        if self.region.is_empty() {
            return;
        }
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            let is_quantized = node.output.first().is_some_and(|output| self.is_quantizer(output));
            if node.op_type() == "Identity" && is_quantized {
                self.quantize_edge((node_idx, 0), "converted to the type of the nodes that read its copy");
            }
        }
    }

    /// Whether the node is a copy at the border of a region. The written model has a conversion in its place.
    pub(super) fn is_copy(&self, node_idx: usize) -> bool {
        !self.region.is_empty() && self.op(node_idx) == "Identity" && self.edges.contains_key(&(node_idx, 0))
    }

    /// Returns the quantized inputs of a node, and its quantized outputs, which may lie after operators fused to the
    /// node.
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

    /// `tensor`, or the quantized tensor at the end of the chain of float operators that alone reads it.
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
