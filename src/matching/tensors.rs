//! Pairs the tensors of a float model with their counterparts in a quantized model.

use super::roots::{IntegerGrid, TensorRoots};
use crate::onnx::node::{attribute, int, node_name};
use crate::onnx::proto::{ModelProto, NodeProto};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The way in which a pair was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchKind {
    /// By the tensor's name, followed through QuantizeLinear and DequantizeLinear.
    Name,
    /// By the same operator on the same tensors, or by the same position among the inputs or outputs of the graph.
    Structure,
}

/// A tensor of the float model and its counterpart.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorMatch {
    /// Name in the float model.
    pub tensor: String,
    /// The counterpart in the quantized model: the value in front of its QuantizeLinear.
    pub root: String,
    /// The value that the next layers of the quantized model read.
    pub read: String,
    /// The way in which the pair was found.
    pub kind: MatchKind,
    /// Name of the first node of the float model behind the previous pair; `None` for an input of the graph.
    pub layer: Option<String>,
    /// Operators of the float model from the layer to the tensor.
    pub operators: Vec<String>,
    /// The integer grid of the counterpart, if it has one constant scale.
    pub grid: Option<IntegerGrid>,
    /// The axis of the channels, if the operators determine it.
    pub channel_axis: Option<ChannelsAt>,
}

/// The axis of a tensor's channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelsAt {
    /// Along the second axis.
    Second,
    /// Along the last axis.
    Last,
}

/// The pairs of tensors of two models.
#[derive(Debug, Clone, PartialEq)]
pub struct Matching {
    /// The pairs, in the order of the float model.
    pub tensors: Vec<TensorMatch>,
    /// Tensors of the float model without a counterpart.
    pub unmatched: Vec<String>,
}

/// Matches the tensors of two models; `None` if one has no graph.
pub fn matching(float: &ModelProto, quantized: &ModelProto) -> Option<Matching> {
    let (float, quantized) = (TensorRoots::new(float)?, TensorRoots::new(quantized)?);
    let mut pairs = TensorPairs::new(&float, &quantized);
    pairs.by_name();
    pairs.by_position();
    pairs.by_structure();
    Some(pairs.finish())
}

struct TensorPairs<'a, 'b> {
    float: &'b TensorRoots<'a>,
    quantized: &'b TensorRoots<'a>,
    /// The root in the quantized model, by the root in the float model.
    of: BTreeMap<&'a str, (&'a str, MatchKind)>,
    /// Roots of the quantized model that have a counterpart.
    taken: BTreeSet<&'a str>,
    /// Positions of the nodes of the float model that a quantized model may lack, by their input and by their output.
    removable: BTreeMap<&'a str, Vec<usize>>,
    /// Those of these nodes with a tensor whose pair is new or gone.
    changed: BTreeSet<usize>,
}

impl<'a, 'b> TensorPairs<'a, 'b> {
    fn new(float: &'b TensorRoots<'a>, quantized: &'b TensorRoots<'a>) -> TensorPairs<'a, 'b> {
        let mut removable: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (node_idx, node) in float.nodes().iter().enumerate() {
            let (Some(input), Some(output)) = (removable_input(float, node), node.output.first()) else { continue };
            for tensor in [float.root(input), output.as_str()] {
                removable.entry(tensor).or_default().push(node_idx);
            }
        }
        let (of, taken, changed) = Default::default();
        TensorPairs { float, quantized, of, taken, removable, changed }
    }

    fn insert(&mut self, tensor: &'a str, root: &'a str, kind: MatchKind) {
        if !self.of.contains_key(tensor) && self.taken.insert(root) {
            self.set(tensor, Some((root, kind)));
        }
    }

    /// Sets or drops the counterpart of a tensor.
    fn set(&mut self, tensor: &'a str, counterpart: Option<(&'a str, MatchKind)>) {
        match counterpart {
            Some(counterpart) => self.of.insert(tensor, counterpart),
            None => self.of.remove(tensor),
        };
        self.changed.extend(self.removable.get(tensor).into_iter().flatten());
    }

    /// Returns the inputs of the graph and results of nodes that are roots.
    fn tensors(of: &TensorRoots<'a>) -> Vec<&'a str> {
        let inputs = of.qdq.graph.input.iter().map(|input| input.name());
        let results = of.nodes().iter().flat_map(|node| node.output.iter().map(String::as_str));
        inputs.chain(results).filter(|name| of.is_activation(name) && of.root(name) == *name).collect()
    }

    fn by_name(&mut self) {
        for tensor in TensorPairs::tensors(self.float) {
            if self.quantized.is_activation(tensor) {
                // Names of both graphs have the same lifetime, so that the float model's name serves for both.
                self.insert(tensor, self.quantized.root(tensor), MatchKind::Name);
            }
        }
        self.move_past_removed_readers();
    }

    /// Pairs the inputs and the outputs of the graphs by position, if both graphs have equally many.
    fn by_position(&mut self) {
        let ends = |of: &TensorRoots<'a>, is_input: bool| -> Vec<&'a str> {
            let graph = of.qdq.graph;
            let values = if is_input { &graph.input } else { &graph.output };
            let names = values.iter().map(|value| value.name()).filter(|name| of.is_activation(name));
            names.map(|name| of.root(name)).collect()
        };
        for is_input in [true, false] {
            let (float, quantized) = (ends(self.float, is_input), ends(self.quantized, is_input));
            if float.len() == quantized.len() {
                let pairs = float.into_iter().zip(quantized);
                pairs.for_each(|(tensor, root)| self.insert(tensor, root, MatchKind::Structure));
            }
        }
    }

    /// Pairs the results of the same operator on the same tensors, in the order of the float model.
    fn by_structure(&mut self) {
        for node in self.float.nodes() {
            let Some(output) = node.output.first().filter(|output| !self.of.contains_key(output.as_str())) else {
                continue;
            };
            if !self.float.is_activation(output) || self.float.root(output) != output {
                continue;
            }
            let Some(found) = self.counterpart(node) else { continue };
            for (tensor, value) in node.output.iter().zip(&found.output).filter(|(name, _)| !name.is_empty()) {
                self.insert(tensor, self.quantized.root(value), MatchKind::Structure);
            }
            self.move_past_removed_readers();
        }
    }

    /// Returns the only node of the quantized model that computes the same from the same tensors.
    fn counterpart(&self, node: &'a NodeProto) -> Option<&'a NodeProto> {
        let first = node.input.iter().find(|input| self.float.is_activation(input))?;
        let (root, _) = self.of.get(self.float.root(first))?;
        let inputs = self.inputs(self.float, node, |root| Some(self.of.get(root)?.0))?;
        let is_twin = |(other, _): &(&'a NodeProto, usize)| {
            let is_open = other.output.first().is_some_and(|output| !self.of.contains_key(output.as_str()));
            is_open
                && alike(node, other)
                && self.inputs(self.float, other, |root| Some(self.of.get(root)?.0)) == Some(inputs.clone())
        };
        let is_candidate = |(other, _): &(&'a NodeProto, usize)| {
            let is_free = other.output.first().is_some_and(|value| !self.taken.contains(self.quantized.root(value)));
            is_free && alike(node, other) && self.inputs(self.quantized, other, Some) == Some(inputs.clone())
        };
        let twins = distinct(self.float.readers(self.float.root(first)).into_iter().filter(is_twin));
        let found = distinct(self.quantized.readers(root).into_iter().filter(is_candidate));
        match (&twins[..], &found[..]) {
            ([_], [only]) => Some(only),
            _ => {
                // Of several nodes, the only one whose first constant has the same shape.
                let shapes = |of: &TensorRoots<'a>, node: &NodeProto| -> Vec<Option<Vec<usize>>> {
                    let constants = node.input.iter().filter(|input| !of.is_activation(input));
                    constants.take(1).map(|input| of.qdq.shape(of.root(input))).collect()
                };
                let wanted = shapes(self.float, node);
                let n_twins = twins.iter().filter(|twin| shapes(self.float, twin) == wanted).count();
                let mut fitting = found.iter().filter(|other| shapes(self.quantized, other) == wanted);
                let only = fitting.next().filter(|_| n_twins == 1 && !wanted.is_empty());
                only.filter(|_| fitting.next().is_none()).copied()
            }
        }
    }

    /// Returns the counterparts of the inputs that are not constant, with the input indices; `None` if an input has
    /// none.
    fn inputs(
        &self,
        of: &TensorRoots<'a>,
        node: &'a NodeProto,
        counterpart: impl Fn(&'a str) -> Option<&'a str>,
    ) -> Option<Vec<(usize, &'a str)>> {
        let activations = node.input.iter().enumerate().filter(|(_, input)| of.is_activation(input));
        activations.map(|(i, input)| Some((i, counterpart(of.root(input))?))).collect()
    }

    /// Moves the counterpart of a tensor to the result of the tensor's only reader, if the quantized model has no node
    /// for this reader. Such a reader was folded into the layer in front, or the range of the integers replaces it. If
    /// the reader is a Transpose, the axes differ, and the counterpart is dropped.
    fn move_past_removed_readers(&mut self) {
        let mut next = 0;
        while let Some(node_idx) = self.changed.range(next..).next().copied() {
            self.changed.remove(&node_idx);
            next = node_idx + 1;
            let node = &self.float.nodes()[node_idx];
            let (Some(input), Some(output)) = (removable_input(self.float, node), node.output.first()) else {
                continue;
            };
            let input = self.float.root(input);
            let Some(&(root, kind)) = self.of.get(input) else { continue };
            let is_known = self.of.contains_key(output.as_str());
            let readers = self.float.readers(input);
            let is_only = readers.len() == 1 && !self.float.is_output(input);
            // A Transpose of the quantized model may produce other values, as other nodes may be folded into the layer
            // in front.
            let makes_the_same = |other: &NodeProto| {
                let made = other.output.first().map(|made| self.quantized.root(made.as_str()));
                other.op_type() != "Transpose" || self.of.get(output.as_str()).map(|(root, _)| *root) == made
            };
            let is_alike = |other: &NodeProto| other.op_type() == node.op_type() && makes_the_same(other);
            let is_there = self.quantized.readers(root).iter().any(|(reader, _)| is_alike(reader));
            let is_transpose = node.op_type() == "Transpose";
            if !is_only || is_there || (kind == MatchKind::Name && (is_known || is_transpose)) {
                continue;
            }
            self.set(input, None);
            if !is_known && !is_transpose {
                self.set(output, Some((root, kind)));
            }
        }
    }

    fn finish(self) -> Matching {
        let mut matching = Matching { tensors: Vec::new(), unmatched: Vec::new() };
        let mut channels = KnownChannels::default();
        for tensor in TensorPairs::tensors(self.float) {
            channels.add(self.float, tensor);
            let Some(&(root, kind)) = self.of.get(tensor) else {
                matching.unmatched.push(tensor.to_string());
                continue;
            };
            let nodes = self.layer(tensor);
            matching.tensors.push(TensorMatch {
                tensor: tensor.to_string(),
                root: root.to_string(),
                read: self.quantized.read(root).to_string(),
                kind,
                layer: nodes.first().map(|node| node_name(node).to_string()),
                operators: nodes.iter().map(|node| node.op_type().to_string()).collect(),
                grid: self.quantized.grid(root),
                channel_axis: channels.of.get(tensor).copied(),
            });
        }
        matching
    }

    /// Returns the nodes of the float model between the previous pair and a tensor, along first inputs.
    fn layer(&self, tensor: &'a str) -> Vec<&'a NodeProto> {
        let mut nodes = Vec::new();
        let mut at = tensor;
        while let Some(node) = self.float.qdq.index.producer(at).filter(|_| nodes.len() < 16) {
            nodes.push(node);
            let Some(input) = node.input.iter().find(|input| self.float.is_activation(input)) else { break };
            at = self.float.root(input);
            if self.of.contains_key(at) {
                break;
            }
        }
        nodes.reverse();
        nodes
    }
}

/// Returns the only activation that a node reads, if a quantized model may lack the node.
fn removable_input<'a>(float: &TensorRoots, node: &'a NodeProto) -> Option<&'a str> {
    let may_lack = matches!(
        node.op_type(),
        "BatchNormalization" | "Relu" | "Clip" | "Cast" | "Add" | "Sub" | "Mul" | "Div" | "Transpose"
    );
    let mut activations = node.input.iter().filter(|input| float.is_activation(input));
    let input = activations.next().filter(|_| may_lack)?;
    activations.next().is_none().then_some(input.as_str())
}

/// Whether two nodes compute the same, except for their constants.
fn alike(one: &NodeProto, other: &NodeProto) -> bool {
    let values = |node, name: &str| attribute(node, name).map(|it| (it.i, it.ints.clone(), it.f, it.s.clone()));
    let same = |name: &str| values(one, name) == values(other, name);
    // Some exporters write defaults, others leave them out.
    let same_ones = |name: &str| {
        let ints = |node| attribute(node, name).map(|it| it.ints.clone()).filter(|ints| ints.iter().any(|i| *i != 1));
        ints(one) == ints(other)
    };
    let same_where_given = |name: &str| same(name) || [one, other].iter().any(|node| attribute(node, name).is_none());
    one.op_type() == other.op_type()
        && ["axis", "perm", "mode", "axes", "to"].into_iter().all(same)
        && ["strides", "dilations"].into_iter().all(same_ones)
        && int(one, "group", 1) == int(other, "group", 1)
        && same_where_given("kernel_shape")
}

/// Returns each node once.
fn distinct<'a>(readers: impl Iterator<Item = (&'a NodeProto, usize)>) -> Vec<&'a NodeProto> {
    let mut nodes: Vec<&NodeProto> = Vec::new();
    for (node, _) in readers {
        if !nodes.iter().any(|known| std::ptr::eq(*known, node)) {
            nodes.push(node);
        }
    }
    nodes
}

/// The channel axis of each tensor, as far as the operators determine it.
#[derive(Default)]
struct KnownChannels<'a> {
    of: BTreeMap<&'a str, ChannelsAt>,
}

impl<'a> KnownChannels<'a> {
    fn add(&mut self, float: &TensorRoots<'a>, tensor: &'a str) {
        let Some(node) = float.qdq.index.producer(tensor) else { return };
        let found = match node.op_type() {
            "Conv" | "ConvTranspose" | "BatchNormalization" | "InstanceNormalization" => Some(ChannelsAt::Second),
            "MatMul" | "Gemm" | "LayerNormalization" => Some(ChannelsAt::Last),
            "Transpose" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "DepthToSpace" | "SpaceToDepth" => None,
            _ => node.input.iter().find_map(|input| self.of.get(float.root(input))).copied(),
        };
        if let Some(found) = found {
            self.of.insert(tensor, found);
        }
    }
}
