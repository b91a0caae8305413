//! Nodes behind layers.

use crate::onnx::graph::GraphIndex;
use crate::onnx::node::PRODUCTS;
use crate::onnx::proto::GraphProto;
use std::collections::BTreeSet;

/// Operators that always belong to the layer before: ranges make them redundant, or they run between quantizers.
pub(super) const FOLLOWERS: [&str; 2] = ["Relu", "Clip"];

/// Returns `layers` and the nodes after them, up to the next layers. A node is taken if `may_follow` holds for it or it
/// is a Relu or Clip, and if it reads only constants and outputs of taken nodes.
pub fn with_followers(
    graph: &GraphProto,
    layers: &BTreeSet<usize>,
    may_follow: impl Fn(usize) -> bool,
) -> BTreeSet<usize> {
    let index = GraphIndex::new(graph);
    let mut nodes = layers.clone();
    for (node_idx, node) in graph.node.iter().enumerate() {
        let is_listed = may_follow(node_idx) || FOLLOWERS.contains(&node.op_type());
        let mut made =
            node.input.iter().filter(|name| !name.is_empty() && index.initializer(name).is_none()).peekable();
        let is_after = made.peek().is_some()
            && made.all(|name| index.producer_idx(name).is_some_and(|producer| nodes.contains(&producer)));
        if is_listed && is_after && !PRODUCTS.contains(&node.op_type()) {
            nodes.insert(node_idx);
        }
    }
    nodes
}
