//! Tensors that only a Softmax uses: attention scores, and the masks that are added to them.

use crate::onnx::graph::GraphIndex;
use crate::onnx::node;
use crate::onnx::proto::GraphProto;
use std::collections::BTreeMap;

/// The path of a tensor to the Softmax that alone uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SoftmaxRole {
    /// A constant that an addend is multiplied by: 0 and 1 become a mask.
    Factor,
    /// Directly, or through operators that move, select or clip values.
    Input,
    /// Through an Add.
    Addend,
}

/// Returns the role of every tensor that has one, initializers included.
pub(super) fn roles<'a>(graph: &'a GraphProto, index: &GraphIndex<'a>) -> BTreeMap<&'a str, SoftmaxRole> {
    let mut roles = BTreeMap::new();
    let mut note = |tensor: &'a str| {
        if let Some(role) = role(graph, index, &roles, tensor) {
            roles.insert(tensor, role);
        }
    };
    // Nodes are in topological order, so in reverse all readers of a tensor come first.
    for node in graph.node.iter().rev() {
        node.output.iter().for_each(|output| note(output));
    }
    graph.input.iter().for_each(|input| note(input.name()));
    graph.initializer.iter().for_each(|tensor| note(tensor.name()));
    roles
}

fn role(
    graph: &GraphProto,
    index: &GraphIndex,
    known: &BTreeMap<&str, SoftmaxRole>,
    tensor: &str,
) -> Option<SoftmaxRole> {
    if tensor.is_empty() || index.is_output(tensor) {
        return None;
    }
    let of_use = |(node_idx, input_idx): (usize, usize)| {
        let node = &graph.node[node_idx];
        let behind = || known.get(node.output.first()?.as_str()).copied();
        if !node::is_standard(node) {
            return None;
        }
        match (node.op_type(), input_idx) {
            ("Softmax", 0) => Some(SoftmaxRole::Input),
            ("Add", 0 | 1) => behind().map(|_| SoftmaxRole::Addend),
            ("Mul", 0 | 1) if index.initializer(tensor).is_some() => behind().map(|_| SoftmaxRole::Factor),
            ("Where", 1 | 2) => behind(),
            (
                "Reshape" | "Transpose" | "Unsqueeze" | "Squeeze" | "Expand" | "Slice" | "Flatten" | "Identity"
                | "Clip",
                0,
            ) => behind(),
            ("Max", index) if index != usize::MAX => behind(),
            _ => None,
        }
    };
    // An Add among the readers makes the role `Addend`. A reader that leads to no Softmax leaves the tensor without a
    // role.
    let uses: Option<Vec<SoftmaxRole>> = index.value_readers(tensor).map(of_use).collect();
    uses?.into_iter().max()
}
