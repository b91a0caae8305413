//! Tails of detectors: the operators that compute boxes and scores from the output layers.
//!
//! Tails join coordinates in pixels with scores below 1. On a shared 8-bit grid the step is larger than any score.

use super::Draft;
use super::trace::MOVES;
use crate::onnx::graph::DisjointSets;
use crate::onnx::node;
use crate::onnx::proto::NodeProto;
use crate::scheme::RuleCall;
use std::collections::{BTreeMap, BTreeSet};

/// Leaves the tail of a detector float. Sources: ONNX Runtime issue 14233 (the last Muls and Concats of YOLOv5 give no
/// scores); Ultralytics, `utils/export/engine.py`, and NNCF issue 2610 (decoding and DFL stay float).
pub(super) fn skip_detector_tail(draft: &mut Draft, _: &RuleCall) {
    for tail in draft.detector_tails() {
        for node_idx in tail.nodes {
            draft.leave_float(node_idx, "part of a detector's tail");
        }
        draft.float_outputs.extend(tail.layers);
    }
}

/// The tail of a detector.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectorTail {
    /// Output layers, by position: layers with a trained weight that no other such layer follows. Empty where another
    /// layer predicts the quality of boxes from their distributions.
    pub layers: Vec<usize>,
    /// The nodes after the output layers, by position.
    pub nodes: Vec<usize>,
    /// The float tensors from which the tail is computed. The model can be cut at these tensors.
    pub begin: Vec<String>,
    /// The node that distinguishes the tail of a detector from the end of another network.
    pub sign: usize,
    /// The property of the node that shows a detector, as a phrase for messages.
    pub reason: &'static str,
}

/// Operators that a tail may have, besides those that move values.
const OF_TAILS: &[&str] = &[
    "Abs", "Add", "And", "ArgMax", "Cast", "Ceil", "Clip", "Concat", "Div", "Equal", "Exp", "Floor", "GatherElements",
    "GatherND", "Greater", "GreaterOrEqual", "HardSigmoid", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax",
    "Max", "Min", "Mod", "Mul", "Neg", "Pow", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceSum", "Relu", "Round",
    "ScatterElements", "ScatterND", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Tile", "TopK",
    "Where",
];

/// Operators that compute boxes from offsets.
const ARITHMETIC: &[&str] = &["Add", "Div", "Exp", "Mul", "Pow", "Sub"];

/// Operators that take parts of a tensor.
const PARTS: &[&str] = &["Gather", "GatherElements", "GatherND", "Slice", "Split"];

/// Minimum bins of a distribution whose mean is a coordinate.
const MIN_BINS: i64 = 4;

impl Draft<'_> {
    /// Returns the detector tails among the ends of the network. An end is a detector tail if a Concat joins the
    /// results of two output layers, or parts of one result after arithmetic; if it suppresses boxes; or if it takes
    /// means of distributions. A classifier's Softmax, a Sigmoid of a map and a residual Add are not tails.
    pub fn detector_tails(&self) -> Vec<DetectorTail> {
        let ends = Ends::of(self);
        let mut parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &node_idx in &ends.nodes {
            parts.entry(ends.parts.of(node_idx)).or_default().push(node_idx);
        }
        parts.into_values().filter_map(|nodes| ends.detector_tail(nodes)).collect()
    }

    /// Whether a node is a layer with a trained weight.
    fn is_trained(&self, node_idx: usize) -> bool {
        let node = &self.graph.node[node_idx];
        let of_weight = match node.op_type() {
            "Conv" | "ConvTranspose" | "Gemm" => 1..2,
            "MatMul" => 0..2,
            _ => return false,
        };
        let has_weight = node.input.get(of_weight).into_iter().flatten().any(|name| self.is_constant(name));
        has_weight && !self.is_mean_of_bins(node)
    }

    /// Whether a layer is the mean of a distribution over bins, as in DFL: a product of a Softmax with rising
    /// constants.
    fn is_mean_of_bins(&self, node: &NodeProto) -> bool {
        let Some(weight) = node.input.get(1).and_then(|name| self.index.initializer(name)) else { return false };
        let axis = node::axis_position(node::reduction_axis(node, 1), weight.dims.len());
        let has_bins = weight.dims.get(axis).is_some_and(|&n_bins| n_bins >= MIN_BINS);
        let one_product = weight.dims.iter().enumerate().all(|(i, &n)| i == axis || n == 1);
        if !matches!(node.op_type(), "Conv" | "Gemm" | "MatMul") || !has_bins || !one_product {
            return false;
        }
        let is_softmax = |node_idx: usize| self.graph.node[node_idx].op_type() == "Softmax";
        let rises = || {
            let values = self.index.floats(weight.name()).unwrap_or_default();
            values.windows(2).all(|pair| pair[0] < pair[1])
        };
        let comes_of_softmax = self.back_through(&node.input[0], |op| MOVES.contains(&op)).any(is_softmax);
        comes_of_softmax && rises()
    }

    fn touches_floats(&self, node: &NodeProto) -> bool {
        node.input.iter().chain(&node.output).any(|name| self.value_info.is_float(name))
    }
}

/// The nodes between the output layers and the network's outputs.
struct Ends<'d, 'a> {
    draft: &'d Draft<'a>,
    /// Layers with a trained weight that no other such layer follows.
    layers: BTreeSet<usize>,
    /// The nodes after these layers.
    nodes: BTreeSet<usize>,
    /// Sets of connected nodes.
    parts: DisjointSets<usize>,
}

impl<'d, 'a> Ends<'d, 'a> {
    fn of(draft: &'d Draft<'a>) -> Ends<'d, 'a> {
        let graph = draft.graph;
        // Nodes are in topological order, so in reverse all readers of a tensor come first.
        let mut reaches_layer = vec![false; graph.node.len()];
        let mut layers = BTreeSet::new();
        for (node_idx, node) in graph.node.iter().enumerate().rev() {
            let mut readers = node.output.iter().flat_map(|name| draft.index.value_readers(name)).map(|edge| edge.0);
            let is_ahead = readers.any(|reader| reaches_layer[reader]);
            let is_trained = draft.is_trained(node_idx);
            if is_trained && !is_ahead {
                layers.insert(node_idx);
            }
            reaches_layer[node_idx] = is_trained || is_ahead;
        }
        let mut ends = Ends { draft, layers, nodes: BTreeSet::new(), parts: DisjointSets::default() };
        let mut pending: Vec<&str> = graph.output.iter().map(|output| output.name()).collect();
        while let Some(tensor) = pending.pop() {
            let Some(node_idx) = draft.index.producer_idx(tensor) else { continue };
            if !reaches_layer[node_idx] && ends.may_be_of_tail(node_idx) && ends.nodes.insert(node_idx) {
                pending.extend(graph.node[node_idx].input.iter().map(String::as_str));
            }
        }
        ends.connect();
        ends
    }

    fn may_be_of_tail(&self, node_idx: usize) -> bool {
        let node = &self.draft.graph.node[node_idx];
        let op = node.op_type();
        let standard = node::is_standard(node);
        let listed = standard && (OF_TAILS.contains(&op) || MOVES.contains(&op) || self.draft.is_mean_of_bins(node));
        (listed || node::is_suppression(node)) && self.draft.touches_floats(node)
    }

    /// Connects producers with readers, and the readers of one layer's output.
    fn connect(&mut self) {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for node_idx in self.nodes.clone() {
            let node = &self.draft.graph.node[node_idx];
            let of_end = |name: &&String| {
                let producer = self.draft.index.producer_idx(name);
                producer.is_some_and(|i| self.nodes.contains(&i) || self.layers.contains(&i))
            };
            let tensors: Vec<&String> = node.input.iter().filter(of_end).chain(&node.output).collect();
            for tensor in tensors {
                let other = *seen.entry(tensor).or_insert(node_idx);
                self.parts.join(node_idx, other);
            }
        }
    }

    /// Returns the tail that the connected `nodes` are; `None` if they are not the tail of a detector.
    fn detector_tail(&self, nodes: Vec<usize>) -> Option<DetectorTail> {
        let graph = self.draft.graph;
        // The layers that each tensor comes from.
        let mut origins: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        let mut layers: BTreeSet<usize> = BTreeSet::new();
        let mut sign = None;
        let has = |ops: &[&str]| nodes.iter().any(|&i| ops.contains(&graph.node[i].op_type()));
        let computes_parts = has(PARTS) && has(ARITHMETIC);
        for &node_idx in &nodes {
            let node = &graph.node[node_idx];
            let origins_of = |input: &String| -> BTreeSet<usize> {
                let layer = self.draft.index.producer_idx(input).filter(|producer| self.layers.contains(producer));
                layer.into_iter().chain(origins.get(input.as_str()).into_iter().flatten().copied()).collect()
            };
            let of_inputs: Vec<BTreeSet<usize>> = node.input.iter().map(origins_of).collect();
            let of_node: BTreeSet<usize> = of_inputs.iter().flatten().copied().collect();
            let n_sources = of_inputs.iter().filter(|it| !it.is_empty()).count();
            layers.extend(&of_node);
            let joins = node.op_type() == "Concat" && node::int(node, "axis", 1) != 0 && n_sources > 1;
            let found = match () {
                _ if self.draft.is_mean_of_bins(node) => Some("takes the mean of distributions"),
                _ if node::is_suppression(node) => Some("suppresses boxes"),
                _ if joins && of_node.len() > 1 => Some("joins the outputs of several layers"),
                _ if joins && computes_parts => Some("joins parts of one layer's output"),
                _ => None,
            };
            sign = sign.or(found.map(|reason| (node_idx, reason)));
            origins.extend(node.output.iter().map(|name| (name.as_str(), of_node.clone())));
        }
        let (sign, reason) = sign?;
        let begin = self.begin_of(&nodes);
        Some(DetectorTail { layers: layers.into_iter().collect(), nodes, begin, sign, reason })
    }

    /// Returns the float tensors of other nodes that `nodes` read, directly or through integers such as shapes.
    fn begin_of(&self, nodes: &[usize]) -> Vec<String> {
        let Draft { graph, index, value_info, .. } = self.draft;
        let (mut begin, mut seen) = (Vec::new(), BTreeSet::new());
        for &node_idx in nodes {
            let mut pending: Vec<&String> = graph.node[node_idx].input.iter().rev().collect();
            while let Some(name) = pending.pop() {
                let producer = index.producer_idx(name).filter(|producer| !nodes.contains(producer));
                let Some(producer) = producer.filter(|_| seen.insert(name)) else { continue };
                match value_info.is_float(name) {
                    true => begin.push(name.clone()),
                    false => pending.extend(graph.node[producer].input.iter().rev()),
                }
            }
        }
        begin
    }
}
