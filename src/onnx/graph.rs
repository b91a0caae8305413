//! An index over the nodes of one graph: producers and readers of tensors.
//!
//! Built once and borrowed by read-only passes.

use super::proto::{GraphProto, NodeProto, TensorProto};
use super::{node, tensor};
use std::collections::{BTreeMap, BTreeSet};

/// A use of a tensor: the reading node's position in the graph, and the input index.
pub type Edge = (usize, usize);

/// An index of one graph. Node positions are indices into `graph.node`.
#[derive(Debug)]
pub struct GraphIndex<'a> {
    graph: &'a GraphProto,
    producers: BTreeMap<&'a str, usize>,
    consumers: BTreeMap<&'a str, Vec<(usize, usize)>>,
    initializers: BTreeMap<&'a str, &'a TensorProto>,
    outputs: BTreeSet<&'a str>,
}

impl<'a> GraphIndex<'a> {
    /// Indexes every node once. A tensor that a subgraph captures counts as read by the node that holds the subgraph,
    /// at the input index `usize::MAX`.
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

    /// Returns the node that produces `tensor`; `None` for graph inputs and initializers.
    pub fn producer(&self, tensor: &str) -> Option<&'a NodeProto> {
        self.producers.get(tensor).map(|&node_idx| &self.graph.node[node_idx])
    }

    /// Returns the position of the node that produces `tensor`.
    pub fn producer_idx(&self, tensor: &str) -> Option<usize> {
        self.producers.get(tensor).copied()
    }

    /// Returns every use of `tensor` by a node, in node order. Graph outputs are not uses.
    pub fn consumers(&self, tensor: &str) -> &[(usize, usize)] {
        self.consumers.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// Whether a subgraph reads `tensor`.
    pub fn is_captured(&self, tensor: &str) -> bool {
        self.consumers(tensor).iter().any(|&(_, input_idx)| input_idx == usize::MAX)
    }

    /// Returns the uses of `tensor` that read its values: all except uses by Shape and Size.
    pub fn value_readers(&self, tensor: &str) -> impl Iterator<Item = Edge> + use<'_, 'a> {
        let asks_for_shape = |node: &NodeProto| matches!(node.op_type(), "Shape" | "Size");
        let all = self.consumers(tensor).iter().copied();
        all.filter(move |(node_idx, _)| !self.graph.node.get(*node_idx).is_some_and(asks_for_shape))
    }

    /// Returns the only use of the values of `tensor`; `None` if there are none or several, or if it is a graph output.
    pub fn only_value_reader(&self, tensor: &str) -> Option<Edge> {
        let mut readers = self.value_readers(tensor).filter(|_| !self.is_output(tensor));
        let first = readers.next()?;
        readers.next().is_none().then_some(first)
    }

    /// Returns the bounds of a Relu or Clip; `None` for other operators, and if a bound is not a constant.
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

    /// Returns the initializer with this name, even if it is a graph input as well.
    pub fn initializer(&self, tensor: &str) -> Option<&'a TensorProto> {
        self.initializers.get(tensor).copied()
    }

    /// Returns the initializer with this name if it holds float32 values.
    pub fn float_initializer(&self, tensor: &str) -> Option<&'a TensorProto> {
        self.initializer(tensor).filter(|tensor| tensor.data_type() == tensor::DataType::Float as i32)
    }

    /// Returns the values of the float32 initializer with this name.
    pub fn floats(&self, tensor: &str) -> Option<Vec<f32>> {
        tensor::f32_values(self.initializer(tensor)?).ok()
    }

    /// Returns the axes of a node, from its attribute `axes` or its second input; `None` if it has no axes or they are
    /// not constant.
    pub fn axes(&self, node: &NodeProto) -> Option<Vec<i64>> {
        match node::attribute(node, "axes") {
            Some(attribute) => Some(attribute.ints.clone()),
            None => tensor::i64_values(self.initializer(node.input.get(1)?)?).ok(),
        }
    }

    /// Returns the exponents of a Pow; `None` for other operators, and if they are not constant.
    pub fn exponents(&self, node: &NodeProto) -> Option<Vec<f64>> {
        let exponents = node.input.get(1).filter(|_| node.op_type() == "Pow")?;
        tensor::f64_values(self.initializer(exponents)?).ok()
    }

    /// Returns the index of the constant among the two inputs of a node; `None` if neither or both are initializers.
    pub fn constant_operand(&self, node: &NodeProto) -> Option<usize> {
        let [a, b] = node.input.as_slice() else { return None };
        match (self.initializer(a), self.initializer(b)) {
            (Some(_), None) => Some(0),
            (None, Some(_)) => Some(1),
            _ => None,
        }
    }

    /// Returns the input index of the constant that an Add adds to a MatMul's output; `None` for other nodes.
    pub fn added_to_product(&self, add: &NodeProto) -> Option<usize> {
        let slot = self.constant_operand(add).filter(|_| add.op_type() == "Add")?;
        let product = self.producer(&add.input[1 - slot])?;
        (product.op_type() == "MatMul").then_some(slot)
    }

    /// Returns the Add that alone reads a MatMul's output and adds a constant, with the constant's input index; `None`
    /// if there is none, and for other nodes.
    pub fn add_behind(&self, product: &NodeProto) -> Option<(&'a NodeProto, usize)> {
        let add = self.graph.node.get(self.only_value_reader(product.output.first()?)?.0)?;
        self.added_to_product(add).map(|slot| (add, slot))
    }

    /// Whether `tensor` has exactly `n` uses by nodes and is not a graph output.
    pub fn has_only(&self, tensor: &str, n: usize) -> bool {
        self.consumers(tensor).len() == n && !self.is_output(tensor)
    }

    /// Whether `tensor` is an output of the graph.
    pub fn is_output(&self, tensor: &str) -> bool {
        self.outputs.contains(tensor)
    }
}

/// Disjoint sets of nodes or tensors. The least member of a set stands for the set.
#[derive(Debug, Default)]
pub struct DisjointSets<T> {
    /// Each member to a lesser one of its set.
    parents: BTreeMap<T, T>,
}

impl<T: Ord + Copy> DisjointSets<T> {
    /// Returns the member that stands for the set of `member`.
    pub fn of(&self, mut member: T) -> T {
        while let Some(&parent) = self.parents.get(&member) {
            member = parent;
        }
        member
    }

    /// Joins the sets of two members.
    pub fn join(&mut self, a: T, b: T) {
        let (a, b) = (self.of(a), self.of(b));
        if a != b {
            self.parents.insert(a.max(b), a.min(b));
        }
    }
}

/// Removes the initializers in `names` that have no use left, and returns their names.
pub fn drop_unused(graph: &mut GraphProto, names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let index = GraphIndex::new(graph);
    let is_unused = |name: &String| index.has_only(name, 0);
    let unused: BTreeSet<String> = names.into_iter().filter(is_unused).collect();
    graph.initializer.retain(|tensor| !unused.contains(tensor.name()));
    unused
}

/// Returns the tensors that depend on an input of the graph. An input with an initializer is a constant.
pub fn activations(graph: &GraphProto) -> BTreeSet<&str> {
    let constants: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    let inputs = graph.input.iter().map(|input| input.name()).filter(|name| !constants.contains(name));
    let mut activations: BTreeSet<&str> = inputs.collect();
    for node in &graph.node {
        if node.input.iter().any(|input| activations.contains(input.as_str())) {
            activations.extend(node.output.iter().map(String::as_str).filter(|name| !name.is_empty()));
        }
    }
    activations
}

/// Returns the names of the inputs and constants of a graph.
pub fn given(graph: &GraphProto) -> BTreeSet<&str> {
    let mut given: BTreeSet<&str> = graph.input.iter().map(|value| value.name()).collect();
    given.extend(graph.initializer.iter().map(|tensor| tensor.name()));
    given.extend(graph.sparse_initializer.iter().filter_map(|tensor| Some(tensor.values.as_ref()?.name())));
    given
}

/// Returns the names of the inputs, the constants and the outputs of nodes of a graph, without those of its subgraphs. An
/// output that is left out has an empty name.
pub fn tensors(graph: &GraphProto) -> BTreeSet<&str> {
    let mut tensors = given(graph);
    tensors.extend(graph.node.iter().flat_map(|node| &node.output).map(String::as_str));
    tensors
}

/// Returns the names of the tensors that a node reads, including tensors that its subgraphs capture.
pub fn names_read(node: &NodeProto) -> BTreeSet<&str> {
    let mut names: BTreeSet<&str> = node.input.iter().filter(|name| !name.is_empty()).map(String::as_str).collect();
    captured_names(node, &mut names);
    names
}

/// Adds the names that the subgraphs of `node` use but do not produce to `captured`.
fn captured_names<'a>(node: &'a NodeProto, captured: &mut BTreeSet<&'a str>) {
    for attribute in &node.attribute {
        for graph in attribute.g.iter().chain(&attribute.graphs) {
            let made = tensors(graph);
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
