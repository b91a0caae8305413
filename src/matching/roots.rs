//! The values of a quantized model that stand for one tensor: the tensor itself, its integers, and the dequantized
//! integers.

use crate::check::{QdqGraph, QdqNode, QdqOperator};
use crate::onnx::data_type::DataType;
use crate::onnx::graph::activations;
use crate::onnx::node::is_qdq;
use crate::onnx::proto::{ModelProto, NodeProto};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a chain of nodes. An invalid graph may hold a cycle.
const MAX_CHAIN: usize = 64;

/// A graph in which the values on both sides of QuantizeLinear and DequantizeLinear count as one tensor. The root of a
/// tensor is the value in front of the first QuantizeLinear.
pub struct TensorRoots<'a> {
    /// The graph.
    pub qdq: QdqGraph<'a>,
    /// Tensors that depend on an input of the graph.
    activations: BTreeSet<&'a str>,
    /// Values that are the integers of a QuantizeLinear, or computed from such integers without a DequantizeLinear.
    integers: BTreeSet<&'a str>,
    /// Values behind each root, in the order of the graph.
    behind: BTreeMap<&'a str, Vec<&'a str>>,
}

/// The integer grid of a tensor with one scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntegerGrid {
    /// Real units per step.
    pub scale: f64,
    /// Lowest and highest real value.
    pub ends: [f64; 2],
}

impl<'a> TensorRoots<'a> {
    /// Reads a model; `None` if it has no graph.
    pub fn new(model: &'a ModelProto) -> Option<TensorRoots<'a>> {
        let qdq = QdqGraph::new(model)?;
        let graph = qdq.graph;
        let activations = activations(graph);
        let mut behind: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut integers: BTreeSet<&str> = BTreeSet::new();
        for node in &graph.node {
            let is_made = match node.op_type() {
                "QuantizeLinear" | "DynamicQuantizeLinear" => true,
                "DequantizeLinear" | "Cast" | "Shape" | "Size" => false,
                _ => node.input.first().is_some_and(|input| integers.contains(input.as_str())),
            };
            integers.extend(node.output.first().filter(|_| is_made).map(String::as_str));
        }
        let mut tensors = TensorRoots { qdq, activations, integers, behind: BTreeMap::new() };
        for node in graph.node.iter().filter(|node| is_pass_through(node)) {
            if let Some(output) = node.output.first().filter(|output| tensors.is_activation(output)) {
                behind.entry(tensors.root(output)).or_default().push(output);
            }
        }
        tensors.behind = behind;
        Some(tensors)
    }

    /// Returns the nodes, in order of execution.
    pub fn nodes(&self) -> &'a [NodeProto] {
        &self.qdq.graph.node
    }

    /// Whether the tensor depends on an input of the graph.
    pub fn is_activation(&self, tensor: &str) -> bool {
        self.activations.contains(tensor)
    }

    /// Returns the root of a value, which may be the value itself.
    pub fn root<'t>(&self, value: &'t str) -> &'t str
    where
        'a: 't,
    {
        let mut root = value;
        for _ in 0..MAX_CHAIN {
            match self.qdq.index.producer(root).filter(|node| is_pass_through(node)).and_then(|node| node.input.first())
            {
                Some(input) => root = input,
                None => break,
            }
        }
        root
    }

    /// Returns the float value that readers of a root take: the output of its DequantizeLinear, or the root if it has
    /// none.
    pub fn read(&self, root: &'a str) -> &'a str {
        let mut behind = self.behind.get(root).into_iter().flatten();
        let dequantized = behind.find(|value| self.qdq.dequantize_of(value).is_some());
        dequantized.copied().unwrap_or(root)
    }

    /// Returns the QuantizeLinear of a root, or its DequantizeLinear if the root itself holds integers.
    pub fn quantizer(&self, root: &str) -> Option<&QdqNode<'a>> {
        let behind = || self.behind.get(root).into_iter().flatten().filter_map(|value| self.qdq.qdq_of(value));
        behind().find(|qdq| qdq.operator == QdqOperator::Quantize).or_else(|| behind().next())
    }

    /// Returns the integer grid of a root, if it has one constant scale.
    pub fn grid(&self, root: &str) -> Option<IntegerGrid> {
        let qdq = self.quantizer(root)?;
        let (&[scale], zero_points) = (qdq.scale.known()?, qdq.zero_point.known()) else { return None };
        let zero_point = zero_points.map_or(0, |values| values.first().copied().unwrap_or_default());
        let scale = f64::from(scale);
        let ends = DataType::of(qdq.data_type?)?.integer_range()?.map(|end| f64::from(end - zero_point) * scale);
        Some(IntegerGrid { scale, ends })
    }

    /// Returns the nodes that read a root or a value behind it, with the input index. QuantizeLinear, DequantizeLinear,
    /// Identity and Dropout are left out.
    pub fn readers(&self, root: &str) -> Vec<(&'a NodeProto, usize)> {
        let behind = self.behind.get(root).into_iter().flatten().copied();
        let uses = [root].into_iter().chain(behind).flat_map(|value| self.qdq.users(value));
        uses.filter(|(node, _)| !is_pass_through(node)).collect()
    }

    /// Returns the name of a root, or of a value behind it that is an output of the graph.
    pub fn name<'t>(&self, root: &'t str) -> &'t str
    where
        'a: 't,
    {
        let mut behind = self.behind.get(root).into_iter().flatten().copied();
        behind.find(|value| self.qdq.index.is_output(value)).unwrap_or(root)
    }

    /// Whether a value holds integers.
    pub fn is_integer(&self, value: &str) -> bool {
        self.integers.contains(value)
    }

    /// Whether a value holds integers, or is the output of a DequantizeLinear.
    pub fn is_quantized(&self, value: &str) -> bool {
        self.is_integer(value) || self.qdq.qdq_of(value).is_some()
    }

    /// Whether a root, or a value behind it, is an output of the graph.
    pub fn is_output(&self, root: &str) -> bool {
        let mut behind = self.behind.get(root).into_iter().flatten();
        self.qdq.index.is_output(root) || behind.any(|value| self.qdq.index.is_output(value))
    }
}

/// Whether the node's result stands for its first input.
pub(super) fn is_pass_through(node: &NodeProto) -> bool {
    is_qdq(node) || matches!(node.op_type(), "Identity" | "Dropout")
}
