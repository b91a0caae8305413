//! Regions of wider types, on targets that compute on integers alone.

use super::layer_followers::FOLLOWERS;
use super::{DetectorTail, Placement};
use crate::onnx::edit::InsertedCopy;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::value_info::ValueInfos;
use crate::scheme::Region;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that get the wider types of a table's region.
#[derive(Debug, Clone, Default)]
pub struct WideNodes {
    /// The nodes, by the name of each node's first output.
    pub outputs: BTreeSet<String>,
    /// A copy of each float tensor that crosses the border, for the nodes on the other side.
    pub copies: Vec<InsertedCopy>,
}

impl WideNodes {
    /// Returns the region of `nodes`. A float tensor that crosses its border is copied under its name in `names`. `None` if
    /// `names` has no name for the copy, or a node already makes a tensor of that name.
    pub fn of(
        graph: &GraphProto,
        value_info: &ValueInfos,
        nodes: &BTreeSet<usize>,
        names: &BTreeMap<String, String>,
    ) -> Option<WideNodes> {
        let outputs = nodes.iter().filter_map(|&node_idx| graph.node[node_idx].output.first().cloned()).collect();
        Some(WideNodes { outputs, copies: copies(graph, value_info, nodes, names)? })
    }

    /// Returns the tensor of which `tensor` is a copy, or `tensor` itself.
    pub fn source<'t>(&'t self, tensor: &'t str) -> &'t str {
        let copy = self.copies.iter().find(|copy| copy.output == tensor);
        copy.map_or(tensor, |copy| &copy.tensor)
    }

    /// Returns the region of all wide tails, in which boxes in pixels and scores share a grid of 16 bits.
    pub fn of_tails(
        graph: &GraphProto,
        value_info: &ValueInfos,
        placement: &Placement,
        region: &Region,
        names: &BTreeMap<String, String>,
    ) -> WideNodes {
        let mut nodes = BTreeSet::new();
        for tail in placement.tails.iter().filter(|tail| tail.is_wide(graph, value_info, placement, region)) {
            nodes.extend(tail.nodes.iter().filter(|&&node_idx| makes_floats(&graph.node[node_idx], value_info)));
        }
        WideNodes::of(graph, value_info, &nodes, names).unwrap_or_default()
    }
}

impl DetectorTail {
    /// Whether the table quantizes the whole tail, and the table's `region` has a row for each operator of the tail.
    pub fn is_wide(&self, graph: &GraphProto, value_info: &ValueInfos, placement: &Placement, region: &Region) -> bool {
        self.nodes.iter().all(|node_idx| {
            let node = &graph.node[*node_idx];
            let op = node.op_type();
            !makes_floats(node, value_info)
                || FOLLOWERS.contains(&op)
                || region.ops.contains_key(op) && placement.quantized_nodes.contains(node_idx)
        })
    }
}

fn makes_floats(node: &NodeProto, value_info: &ValueInfos) -> bool {
    node.output.iter().any(|output| value_info.is_float(output))
}

fn copies(
    graph: &GraphProto,
    value_info: &ValueInfos,
    nodes: &BTreeSet<usize>,
    names: &BTreeMap<String, String>,
) -> Option<Vec<InsertedCopy>> {
    let index = GraphIndex::new(graph);
    let mut readers: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for (node_idx, node) in graph.node.iter().enumerate() {
        let is_inside = nodes.contains(&node_idx);
        let crosses = |name: &&String| {
            let is_made_inside = index.producer_idx(name).is_some_and(|producer| nodes.contains(&producer));
            // Shapes that are computed stay integers.
            value_info.is_float(name) && index.initializer(name).is_none() && is_made_inside != is_inside
        };
        let crossing: BTreeSet<&String> = node.input.iter().filter(crosses).collect();
        for tensor in crossing {
            readers.entry(tensor).or_default().push(node.output.first()?.clone());
        }
    }
    let copy = |(tensor, readers): (&String, Vec<String>)| {
        let output = names.get(tensor).filter(|output| index.producer_idx(output).is_none())?;
        Some(InsertedCopy { tensor: tensor.clone(), output: output.clone(), readers })
    };
    readers.into_iter().map(copy).collect()
}
