//! The draft: marks on nodes and uses while the rules run.

use super::clips::FoldableClip;
use crate::onnx::graph::{DisjointSets, Edge, GraphIndex};
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::value_info::ValueInfos;
use crate::scheme::{OpRow, Scheme};
use std::collections::{BTreeMap, BTreeSet};

/// A mark on a node, a use or a tensor, with the rule that made it.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    pub rule: &'static str,
    pub reason: String,
}

/// Operators whose inputs after the first are parameters, even where they are computed.
const FIRST_INPUT_ONLY: &[&str] = &[
    "Resize", "Upsample", "Pad", "Clip", "BatchNormalization", "InstanceNormalization", "LayerNormalization",
    "GroupNormalization", "Dropout",
];

/// A placement in progress: the marks that rules have made so far.
pub struct Draft<'a> {
    /// The graph.
    pub graph: &'a GraphProto,
    /// Producers and readers of its tensors.
    pub index: GraphIndex<'a>,
    /// Types and shapes.
    pub value_info: &'a ValueInfos,
    pub(super) scheme: &'a Scheme,
    /// Nodes in a region of wider types.
    pub(super) region: BTreeSet<usize>,
    /// The rule that is running, named by every mark.
    pub(super) rule: &'static str,
    pub(super) float: BTreeMap<usize, Mark>,
    pub(super) edges: BTreeMap<Edge, Mark>,
    /// Tensors with every use quantized.
    pub(super) quantized_tensors: BTreeMap<&'a str, Mark>,
    /// Uses that stay float whatever later rules ask for.
    pub(super) float_edges: BTreeSet<Edge>,
    /// Outputs of the network that are quantized.
    pub(super) network_outputs: BTreeMap<&'a str, Mark>,
    /// Clips by their output tensor, which are removed if the quantized range ends at their bounds.
    pub(super) clips: BTreeMap<&'a str, FoldableClip>,
    /// Types of single uses, and of the weights of single nodes. They replace the types of the table's rows.
    pub(super) input_types: BTreeMap<Edge, String>,
    pub(super) weight_types: BTreeMap<usize, String>,
    /// Types of whole sharing groups, by the group's name. They replace the types that the readers ask for.
    pub(super) group_types: BTreeMap<&'a str, String>,
    /// Nodes of which only weights or constants are quantized.
    pub(super) weights_alone: BTreeSet<usize>,
    /// Linear layers of transformers, whose input ranges hold every value.
    pub(super) linear: BTreeSet<usize>,
    /// Nodes with quantized inputs and float outputs.
    pub(super) float_outputs: BTreeSet<usize>,
    /// For an Add that is fused to a convolution: the input that stays float.
    pub(super) fused_input: BTreeMap<usize, usize>,
    /// Operators between a quantized operator and the quantizer of its output, each with the position of the quantized
    /// operator.
    pub(super) before_quantizer: BTreeMap<usize, usize>,
    /// Tensors whose ranges are much narrower than those of the tensors that they are joined with.
    pub(super) narrow_tensors: BTreeSet<String>,
    /// The sharing groups of tensors; the first name of a group is the group's name.
    groups: DisjointSets<&'a str>,
}

impl<'a> Draft<'a> {
    /// A draft without marks.
    pub fn new(graph: &'a GraphProto, value_info: &'a ValueInfos, scheme: &'a Scheme) -> Draft<'a> {
        Draft {
            graph,
            index: GraphIndex::new(graph),
            value_info,
            scheme,
            region: BTreeSet::new(),
            rule: "",
            float: BTreeMap::new(),
            edges: BTreeMap::new(),
            quantized_tensors: BTreeMap::new(),
            float_edges: BTreeSet::new(),
            network_outputs: BTreeMap::new(),
            clips: BTreeMap::new(),
            input_types: BTreeMap::new(),
            weight_types: BTreeMap::new(),
            group_types: BTreeMap::new(),
            weights_alone: BTreeSet::new(),
            linear: BTreeSet::new(),
            float_outputs: BTreeSet::new(),
            fused_input: BTreeMap::new(),
            before_quantizer: BTreeMap::new(),
            narrow_tensors: BTreeSet::new(),
            groups: DisjointSets::default(),
        }
    }

    fn mark(&self, reason: impl Into<String>) -> Mark {
        Mark { rule: self.rule, reason: reason.into() }
    }

    /// The table's row of a node that may still be quantized.
    pub fn row(&self, node_idx: usize) -> Option<&'a OpRow> {
        self.table_row(node_idx).filter(|_| !self.float.contains_key(&node_idx))
    }

    /// The table's row of a node, even if the node was left float.
    pub(super) fn table_row(&self, node_idx: usize) -> Option<&'a OpRow> {
        let node = &self.graph.node[node_idx];
        let region = self.scheme.region.as_ref().filter(|_| self.region.contains(&node_idx));
        let rows = region.map_or(&self.scheme.ops, |region| &region.ops);
        rows.get(node.op_type()).filter(|_| node::is_standard(node))
    }

    /// Positions of the nodes of these operators that may still be quantized, in order.
    pub fn open_nodes(&self, op_types: &[impl AsRef<str>]) -> Vec<usize> {
        let nodes = self.graph.node.iter().enumerate();
        let is_listed = |node: &NodeProto| op_types.iter().any(|op| op.as_ref() == node.op_type());
        let nodes = nodes.filter(|(i, node)| is_listed(node) && self.row(*i).is_some());
        nodes.map(|(node_idx, _)| node_idx).collect()
    }

    /// Leaves a node and its uses float, whatever earlier rules asked for. The first reason is kept.
    pub fn leave_float(&mut self, node_idx: usize, reason: impl Into<String>) {
        for input_idx in 0..self.graph.node[node_idx].input.len() {
            self.edges.remove(&(node_idx, input_idx));
        }
        let mark = self.mark(reason);
        self.float.entry(node_idx).or_insert(mark);
    }

    /// Whether `tensor` holds the same float values in every run.
    pub fn is_constant(&self, tensor: &str) -> bool {
        self.index.initializer(tensor).is_some()
            || self.index.producer(tensor).is_some_and(|node| node.op_type() == "Constant")
    }

    /// The operator of a node.
    pub(super) fn op(&self, node_idx: usize) -> &'a str {
        self.graph.node[node_idx].op_type()
    }

    /// Positions of the node's inputs that are activations: float32, not constant, and not a parameter of the operator
    /// such as the scales of a Resize.
    pub fn activation_inputs(&self, node_idx: usize) -> Vec<usize> {
        let node = &self.graph.node[node_idx];
        let n_data = if FIRST_INPUT_ONLY.contains(&node.op_type()) { 1 } else { usize::MAX };
        let inputs = node.input.iter().enumerate().take(n_data);
        let inputs =
            inputs.filter(|(_, name)| !name.is_empty() && !self.is_constant(name) && self.value_info.is_float(name));
        inputs.map(|(input_idx, _)| input_idx).collect()
    }

    /// The index of the input that a Mul or Div scales by a constant. `None` for other nodes, and for a constant that a
    /// tensor divides.
    pub(super) fn scaled_input(&self, node_idx: usize) -> Option<usize> {
        match (self.op(node_idx), self.activation_inputs(node_idx).as_slice()) {
            ("Mul", &[input]) | ("Div", &[input @ 0]) => Some(input),
            _ => None,
        }
    }

    /// The nodes that produce the activation inputs of a node.
    pub(super) fn activation_producers(&self, node_idx: usize) -> impl Iterator<Item = usize> {
        let node = &self.graph.node[node_idx];
        let inputs = self.activation_inputs(node_idx).into_iter();
        inputs.filter_map(|input_idx| self.index.producer_idx(&node.input[input_idx]))
    }

    /// Position of the constant weight among the first two inputs of a node whose row has a weight. The weight of a
    /// normalization is its gain, a vector.
    pub fn weight_input(&self, node_idx: usize) -> Option<usize> {
        let node = &self.graph.node[node_idx];
        self.table_row(node_idx)?.weight.as_ref()?;
        let inputs = node.input.iter().enumerate().take(2);
        let has_gain = matches!(node.op_type(), "LayerNormalization" | "InstanceNormalization");
        let least_rank = if has_gain { 1 } else { 2 };
        let is_weight = |name: &str| {
            self.index.float_initializer(name).is_some_and(|tensor| {
                let has_values = tensor.dims.iter().all(|&n| n > 0);
                tensor.dims.len() >= least_rank && has_values
            })
        };
        // A weight is the second input; only MatMul and Gemm may have it first.
        let mut found = inputs.filter(|(_, name)| is_weight(name)).map(|(i, _)| i);
        found.next_back()
    }

    /// Quantizes one use if its tensor is an activation and no rule keeps the use float.
    pub fn quantize_edge(&mut self, edge: Edge, reason: impl Into<String>) {
        let Some(name) = self.graph.node[edge.0].input.get(edge.1) else { return };
        let open = !name.is_empty() && !self.is_constant(name) && self.value_info.is_float(name);
        if !open || self.float_edges.contains(&edge) {
            return;
        }
        let mark = self.mark(reason);
        self.edges.entry(edge).or_insert(mark);
    }

    /// Keeps one use float, also against later rules.
    pub fn keep_edge_float(&mut self, edge: Edge) {
        self.edges.remove(&edge);
        self.float_edges.insert(edge);
    }

    /// Quantizes an output of the network: callers see dequantized values.
    pub fn quantize_network_output(&mut self, tensor: &str, reason: &str) {
        let Some(name) = self.tensor_name(tensor) else { return };
        let made = self.index.producer(name).is_some() && self.index.is_output(name);
        if made && !self.is_constant(name) && self.value_info.is_float(name) {
            let mark = self.mark(reason);
            self.network_outputs.entry(name).or_insert(mark);
        }
    }

    /// Gives the inputs or the weight of one node another type than the node's row has.
    pub fn set_types(&mut self, node_idx: usize, input: Option<&str>, weight: Option<&str>) {
        for input_idx in 0..self.graph.node[node_idx].input.len() {
            let edge = (node_idx, input_idx);
            self.input_types.extend(input.map(|name| (edge, name.to_string())));
        }
        self.weight_types.extend(weight.map(|name| (node_idx, name.to_string())));
    }

    /// Gives one use another type than the node's row has.
    pub fn set_input_type(&mut self, edge: Edge, qtype: &str) {
        self.input_types.insert(edge, qtype.to_string());
    }

    /// Marks the node that produces `tensor` for removal if the range of `tensor` ends at the node's bounds.
    pub fn fold_clip(&mut self, tensor: &str, clip: FoldableClip) {
        let Some(name) = self.tensor_name(tensor) else { return };
        self.clips.insert(name, clip);
    }

    /// Whether the use reads the quantized tensor.
    pub fn is_quantized_edge(&self, edge: Edge) -> bool {
        if self.float_edges.contains(&edge) {
            return false;
        }
        self.edges.contains_key(&edge)
            || self.graph.node[edge.0]
                .input
                .get(edge.1)
                .is_some_and(|name| self.quantized_tensors.contains_key(name.as_str()))
    }

    /// Quantizes every use of the tensor.
    pub fn quantize_tensor(&mut self, tensor: &str, reason: impl Into<String>) {
        let Some(name) = self.tensor_name(tensor) else { return };
        if self.is_constant(name) || !self.value_info.is_float(name) {
            return;
        }
        let mark = self.mark(reason);
        self.quantized_tensors.entry(name).or_insert(mark);
    }

    /// Whether a use reads the tensor quantized, or the tensor is a quantized output of the network.
    pub fn is_quantizer(&self, tensor: &str) -> bool {
        self.quantized_tensors.contains_key(tensor)
            || self.network_outputs.contains_key(tensor)
            || self.index.consumers(tensor).iter().any(|edge| self.edges.contains_key(edge))
    }

    /// Whether one of the node's inputs is quantized.
    pub fn is_quantized(&self, node_idx: usize) -> bool {
        self.weights_alone.contains(&node_idx) && !self.float.contains_key(&node_idx)
            || (0..self.graph.node[node_idx].input.len())
                .any(|input_idx| self.edges.contains_key(&(node_idx, input_idx)))
    }

    /// Makes two tensors share quantization parameters.
    pub fn share(&mut self, a: &str, b: &str) {
        if let (Some(a), Some(b)) = (self.tensor_name(a), self.tensor_name(b)) {
            self.groups.join(a, b);
        }
    }

    /// The name of the sharing group of a tensor.
    pub(super) fn group_of<'t>(&self, tensor: &'t str) -> &'t str
    where
        'a: 't,
    {
        let groups: &DisjointSets<&'t str> = &self.groups;
        groups.of(tensor)
    }

    /// Returns the graph's own string of a tensor name, which lives as long as the graph.
    fn tensor_name(&self, tensor: &str) -> Option<&'a str> {
        if let Some(node) = self.index.producer(tensor) {
            return node.output.iter().map(String::as_str).find(|name| *name == tensor);
        }
        self.graph.input.iter().map(|value| value.name()).find(|name| *name == tensor)
    }
}
