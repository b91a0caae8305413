//! Who makes and who uses a tensor: an index over the nodes of one graph.
//!
//! Built once and borrowed by the passes that only read.

use super::proto::{GraphProto, NodeProto, TensorProto};
use super::{node, tensor};
use std::collections::{BTreeMap, BTreeSet};

/// A use of a tensor: the consuming node's position in the graph, and the position among its inputs.
pub type Edge = (usize, usize);

/// Index of one graph. Positions are those of `graph.node`.
#[derive(Debug)]
pub struct GraphIndex<'a> {
    graph: &'a GraphProto,
    producers: BTreeMap<&'a str, usize>,
    consumers: BTreeMap<&'a str, Vec<(usize, usize)>>,
    initializers: BTreeMap<&'a str, &'a TensorProto>,
    outputs: BTreeSet<&'a str>,
}

impl<'a> GraphIndex<'a> {
    /// Reads every node once. Tensors that a nested graph takes from this one count as used by the node
    /// that holds the nested graph, at the input position `usize::MAX`.
    pub fn new(graph: &'a GraphProto) -> GraphIndex<'a> {
        let mut producers = BTreeMap::new();
        let mut consumers: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
        for (node_idx, node) in graph.node.iter().enumerate() {
            for output in node.output.iter().filter(|name| !name.is_empty()) {
                producers.insert(output.as_str(), node_idx);
            }
            for (input_idx, input) in node.input.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
                consumers.entry(input).or_default().push((node_idx, input_idx));
            }
            let mut captured = BTreeSet::new();
            captured_names(node, &mut captured);
            for name in captured {
                consumers.entry(name).or_default().push((node_idx, usize::MAX));
            }
        }
        let initializers = graph.initializer.iter().map(|tensor| (tensor.name(), tensor)).collect();
        let outputs = graph.output.iter().map(|value| value.name()).collect();
        GraphIndex { graph, producers, consumers, initializers, outputs }
    }

    /// The node that makes `tensor`; `None` for graph inputs and initializers.
    pub fn producer(&self, tensor: &str) -> Option<&'a NodeProto> {
        self.producers.get(tensor).map(|&node_idx| &self.graph.node[node_idx])
    }

    /// Position of the node that makes `tensor`.
    pub fn producer_idx(&self, tensor: &str) -> Option<usize> {
        self.producers.get(tensor).copied()
    }

    /// Every use of `tensor` as (node, input), in node order; a graph output is not among them.
    pub fn consumers(&self, tensor: &str) -> &[(usize, usize)] {
        self.consumers.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// The uses of `tensor` whose node reads its values: all but Shape and Size, which ask for its dimensions alone.
    pub fn value_readers(&self, tensor: &str) -> impl Iterator<Item = Edge> + use<'_, 'a> {
        let asks_for_shape = |node: &NodeProto| matches!(node.op_type(), "Shape" | "Size");
        let all = self.consumers(tensor).iter().copied();
        all.filter(move |(node_idx, _)| !self.graph.node.get(*node_idx).is_some_and(asks_for_shape))
    }

    /// The one use of the values of `tensor`; `None` where there are none or several, and where it is an output of the graph.
    pub fn only_value_reader(&self, tensor: &str) -> Option<Edge> {
        let mut readers = self.value_readers(tensor).filter(|_| !self.is_output(tensor));
        let first = readers.next()?;
        readers.next().is_none().then_some(first)
    }

    /// The bounds of a Relu or Clip; `None` for other operators, and where a bound is not a constant.
    pub fn clip_bounds(&self, node: &NodeProto) -> Option<(Option<f32>, Option<f32>)> {
        let bound = |position: usize, name: &str| -> Option<Option<f32>> {
            if let Some(value) = node::float(node, name) {
                return Some(Some(value));
            }
            let Some(input) = node.input.get(position).filter(|name| !name.is_empty()) else {
                return Some(None);
            };
            self.floats(input)?.first().copied().map(Some)
        };
        match node.op_type() {
            "Relu" => Some((Some(0.0), None)),
            "Clip" => Some((bound(1, "min")?, bound(2, "max")?)),
            _ => None,
        }
    }

    /// The initializer of that name, whether or not it is also a graph input.
    pub fn initializer(&self, tensor: &str) -> Option<&'a TensorProto> {
        self.initializers.get(tensor).copied()
    }

    /// The values of the initializer of that name, where it is one of floats.
    pub fn floats(&self, tensor: &str) -> Option<Vec<f32>> {
        tensor::f32_values(self.initializer(tensor)?).ok()
    }

    /// The position of the initializer among the two inputs of a node; `None` where neither is one, or both.
    pub fn constant_operand(&self, node: &NodeProto) -> Option<usize> {
        let [a, b] = node.input.as_slice() else { return None };
        match (self.initializer(a), self.initializer(b)) {
            (Some(_), None) => Some(0),
            (None, Some(_)) => Some(1),
            _ => None,
        }
    }

    /// The position of the constant that an Add gives to a MatMul; `None` for other nodes.
    pub fn added_to_product(&self, add: &NodeProto) -> Option<usize> {
        let slot = self.constant_operand(add).filter(|_| add.op_type() == "Add")?;
        let product = self.producer(&add.input[1 - slot])?;
        (product.op_type() == "MatMul").then_some(slot)
    }

    /// The Add that alone reads a MatMul and gives it a constant, with the constant's position; `None` where there is none, and
    /// for other nodes.
    pub fn add_behind(&self, product: &NodeProto) -> Option<(&'a NodeProto, usize)> {
        let add = self.graph.node.get(self.only_value_reader(product.output.first()?)?.0)?;
        self.added_to_product(add).map(|slot| (add, slot))
    }

    /// Whether `n` uses of `tensor` by nodes are all that there is: no other, and it is no output of the graph.
    pub fn has_only(&self, tensor: &str, n: usize) -> bool {
        self.consumers(tensor).len() == n && !self.is_output(tensor)
    }

    /// Whether `tensor` is an output of the graph.
    pub fn is_output(&self, tensor: &str) -> bool {
        self.outputs.contains(tensor)
    }
}

/// Removes those of the initializers `names` that nothing uses any more, and says which.
pub fn drop_unused(graph: &mut GraphProto, names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let index = GraphIndex::new(graph);
    let is_unused = |name: &String| index.has_only(name, 0);
    let unused: BTreeSet<String> = names.into_iter().filter(is_unused).collect();
    graph.initializer.retain(|tensor| !unused.contains(tensor.name()));
    unused
}

/// Makes every use of `from`, in nested graphs too, a use of `to`. Outputs of the graph are not uses.
pub fn replace_uses(graph: &mut GraphProto, from: &str, to: &str) {
    for node in &mut graph.node {
        for input in node.input.iter_mut().filter(|input| *input == from) {
            *input = to.to_string();
        }
        for attribute in &mut node.attribute {
            for nested in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                let shadowed = nested.input.iter().any(|value| value.name() == from)
                    || nested.initializer_named(from).is_some()
                    || nested.node.iter().any(|node| node.output.iter().any(|o| o == from));
                if !shadowed {
                    replace_uses(nested, from, to);
                }
            }
        }
    }
}

/// Names that graphs nested in `node` use but do not make.
fn captured_names<'a>(node: &'a NodeProto, captured: &mut BTreeSet<&'a str>) {
    for attribute in &node.attribute {
        for graph in attribute.g.iter().chain(&attribute.graphs) {
            let mut made: BTreeSet<&str> = graph.input.iter().map(|value| value.name()).collect();
            made.extend(graph.initializer.iter().map(|tensor| tensor.name()));
            made.extend(graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)));
            let mut used: BTreeSet<&str> = graph.output.iter().map(|value| value.name()).collect();
            for inner in &graph.node {
                used.extend(inner.input.iter().map(String::as_str));
                captured_names(inner, &mut used);
            }
            used.remove("");
            captured.extend(used.difference(&made));
        }
    }
}
