//! The parts that the float network and every quantized one share: the graph, its constants, its nodes one by one.

use super::channels::ActivationBounds;
use super::prepared_nodes::PreparedNodes;
use super::simulated_part::SimulatedPart;
use super::single_node::{NamedValue, NodeRunner, OneNodeModel, SingleNode, open_dims};
use crate::engine::Value;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor;
use anyhow::{Result, bail, ensure};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Operators that the engine runs as fast with open dimensions. A node is then prepared once for samples of all shapes.
const OPEN_DIM_OPS: &[&str] = &[
    "Add", "Cast", "Clip", "Div", "Erf", "Exp", "Gather", "Gelu", "Gemm", "Identity", "LayerNormalization", "MatMul",
    "Mul", "Neg", "Pow", "ReduceMean", "Relu", "Reshape", "Sigmoid", "Softmax", "Sqrt", "Squeeze", "Sub", "Tanh",
    "Transpose", "Unsqueeze", "Where",
];

/// The implementation of float32 Relu and Clip. The two differ for NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipImpl {
    /// mqq's own, in place.
    InPlace,
    /// The engine's, as for every other node. It copies the input.
    ByEngine,
}

/// A prepared float model, whose nodes are run one by one.
pub struct Network<'a> {
    model: &'a ModelProto,
    /// Its graph.
    pub graph: &'a GraphProto,
    /// Names of the outputs that are simulated.
    pub outputs: Vec<&'a str>,
    /// Positions of nodes that are not simulated.
    pub(super) skipped_nodes: BTreeSet<usize>,
    /// Producers and readers of tensors.
    pub index: GraphIndex<'a>,
    /// Initializers, and tensors computed from them alone.
    constants: BTreeMap<String, TensorProto>,
    /// Tensors computed from shapes, for each group of samples with equal shapes.
    shape_constants: Vec<BTreeMap<String, TensorProto>>,
    /// The group of each sample.
    groups: Vec<usize>,
    clip_impl: ClipImpl,
    /// Prepared nodes that other networks share.
    pub(super) prepared: Option<&'a PreparedNodes>,
}

/// A value of each input of a node, for each group of samples; `None` for a group without samples.
pub type GroupExamples<'v> = Vec<Option<Vec<NamedValue<'v>>>>;

impl<'a> Network<'a> {
    /// Indexes the graph of `model` and its initializers.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn new(model: &'a ModelProto, clip_impl: ClipImpl) -> Result<Network<'a>> {
        let graph = model.graph()?;
        let SimulatedPart { skipped_nodes, outputs } = SimulatedPart::of(model)?;
        let constants = graph.initializer.iter().map(|t| (t.name().to_string(), t.clone())).collect();
        let (index, shape_constants, groups) = (GraphIndex::new(graph), Vec::new(), Vec::new());
        Ok(Network {
            model,
            graph,
            outputs,
            skipped_nodes,
            index,
            constants,
            shape_constants,
            groups,
            clip_impl,
            prepared: None,
        })
    }

    /// Whether some nodes are not simulated.
    pub(super) fn is_partial(&self) -> bool {
        !self.skipped_nodes.is_empty()
    }

    /// Returns the nodes that are simulated, with their positions.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (usize, &'a NodeProto)> + use<'a> {
        let skipped_nodes = self.skipped_nodes.clone();
        self.graph.node.iter().enumerate().filter(move |(node_idx, _)| !skipped_nodes.contains(node_idx))
    }

    /// Returns the group of each sample: samples of one group have equal shapes.
    pub fn groups(&self) -> &[usize] {
        &self.groups
    }

    /// Sets the group of each sample.
    pub(super) fn set_groups(&mut self, groups: Vec<usize>, n_groups: usize) {
        self.groups = groups;
        self.shape_constants.resize_with(n_groups.max(self.shape_constants.len()), BTreeMap::new);
    }

    /// Returns examples of the tensors `names`: for each group, the values of its first sample for which `value`
    /// returns all of them.
    pub fn examples<'v>(
        &self,
        names: &[&'v str],
        value: impl Fn(&str, usize) -> Option<&'v Value>,
    ) -> GroupExamples<'v> {
        let mut examples: GroupExamples = vec![None; self.shape_constants.len()];
        for (sample, &group) in self.groups.iter().enumerate() {
            if examples[group].is_none() {
                let named = |name: &&'v str| Some(NamedValue { name, value: value(name, sample)? });
                examples[group] = names.iter().map(named).collect();
            }
        }
        examples
    }

    /// Whether all values of a group have one shape. `values` begin with sample `first`.
    pub(super) fn have_shapes_of_inputs(&self, values: &[Value], first: usize) -> bool {
        let mut seen: Vec<Option<&[usize]>> = vec![None; self.shape_constants.len()];
        let mut grouped = values.iter().zip(&self.groups[first..]);
        grouped.all(|(value, &group)| *seen[group].get_or_insert(value.shape()) == value.shape())
    }

    /// Whether the tensor `name` is known to be constant so far.
    pub fn is_constant(&self, name: &str) -> bool {
        self.constants.contains_key(name) || self.shape_constants.iter().any(|known| known.contains_key(name))
    }

    /// Returns a constant, for samples of a group.
    fn constant(&self, name: &str, group: usize) -> Option<&TensorProto> {
        self.shape_constants.get(group).and_then(|known| known.get(name)).or_else(|| self.constants.get(name))
    }

    /// Returns the values of a constant float tensor, one per sample; `None` for other tensors.
    pub(super) fn constant_values(&self, name: &str) -> Option<Vec<Value>> {
        let of_group = |group: usize| {
            let constant = self.constant(name, group)?;
            Value::from_f32(&tensor::shape(constant).ok()?, tensor::f32_values(constant).ok()?).ok()
        };
        let mut by_group: BTreeMap<usize, Value> = BTreeMap::new();
        for &group in &self.groups {
            if let Entry::Vacant(entry) = by_group.entry(group) {
                entry.insert(of_group(group)?);
            }
        }
        Some(self.groups.iter().map(|group| by_group[group].clone()).collect())
    }

    /// Returns the inputs of a node that are not constants, each once. `exists` tells whether a tensor exists. Fails if
    /// the node cannot be run by itself, or reads a tensor that does not exist.
    pub(super) fn runtime_inputs<'n>(
        &self,
        node: &'n NodeProto,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Vec<&'n str>> {
        let nested = node.attribute.iter().any(|attr| attr.g.is_some() || !attr.graphs.is_empty());
        if nested {
            bail!("node `{}` ({}): has a nested graph, which cannot be simulated", node_name(node), node.op_type());
        }
        let mut runtime: Vec<&str> = Vec::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            if !self.is_constant(name) && !runtime.contains(&name.as_str()) {
                ensure!(exists(name), "node `{}`: tensor `{name}` does not exist", node_name(node));
                runtime.push(name);
            }
        }
        Ok(runtime)
    }

    /// Whether a node with these inputs at run time has constant outputs. Shapes are fixed in a group of samples, so
    /// that tensors computed from shapes alone are constant there.
    pub(super) fn makes_constants(node: &NodeProto, runtime: &[&str]) -> bool {
        runtime.is_empty() || matches!(node.op_type(), "Shape" | "Size")
    }

    /// Whether the constant outputs of a node are the same for all groups of samples.
    pub(super) fn is_of_initializers(&self, node: &NodeProto, runtime: &[&str]) -> bool {
        runtime.is_empty() && node.input.iter().all(|name| name.is_empty() || self.constants.contains_key(name))
    }

    /// Adds the outputs of a node to the constants of `group`, or of all groups without one. Fails if a value has a
    /// type that initializers cannot have.
    pub(super) fn add_constants(&mut self, node: &NodeProto, group: Option<usize>, outputs: Vec<Value>) -> Result<()> {
        let constants = match group {
            Some(group) => &mut self.shape_constants[group],
            None => &mut self.constants,
        };
        for (name, value) in node.output.iter().filter(|name| !name.is_empty()).zip(outputs) {
            constants.insert(name.clone(), value.to_proto(name)?);
        }
        Ok(())
    }

    /// Whether a node is the same for two groups of samples: its inputs have the shapes of the examples, and its
    /// constants are equal.
    pub(super) fn is_alike(&self, node: &NodeProto, [a, b]: [(usize, &[NamedValue]); 2]) -> bool {
        let shapes = a.1.iter().map(|input| input.value.shape()).eq(b.1.iter().map(|input| input.value.shape()));
        let shape_constant =
            |group: usize, name: &str| self.shape_constants.get(group).and_then(|known| known.get(name));
        shapes && node.input.iter().all(|name| shape_constant(a.0, name) == shape_constant(b.0, name))
    }

    /// Prepares the node as a model of its own for each group of samples, for inputs like the examples. `replaced`
    /// takes the place of constants with the same names.
    ///
    /// # Errors
    /// If the engine does not take the node.
    pub fn single_node(
        &self,
        node: &NodeProto,
        examples: &GroupExamples,
        replaced: &[TensorProto],
    ) -> Result<SingleNode> {
        let known = |(group, _): &(usize, &Vec<NamedValue>)| self.has_constants(node, *group);
        let examples: Vec<Option<&Vec<NamedValue>>> = (0..)
            .zip(examples)
            .map(|(group, inputs)| Some((group, inputs.as_ref()?)).filter(known).map(|(_, inputs)| inputs))
            .collect();
        let groups: Vec<usize> = (0..examples.len()).filter(|&group| examples[group].is_some()).collect();
        let of_groups: Vec<&[NamedValue]> = examples.iter().flatten().map(|inputs| &inputs[..]).collect();
        if let Some(runner) = self.open_runner(node, &groups, &of_groups, replaced) {
            return Ok(SingleNode::of_groups(examples.iter().map(|inputs| inputs.map(|_| runner.clone())).collect()));
        }
        let mut runners: Vec<Option<Arc<NodeRunner>>> = Vec::with_capacity(examples.len());
        for (group, inputs) in examples.iter().enumerate() {
            let Some(inputs) = inputs else {
                runners.push(None);
                continue;
            };
            let is_like = |&other: &usize| {
                examples[other].is_some_and(|others| self.is_alike(node, [(other, others), (group, inputs)]))
            };
            runners.push(match (0..group).find(is_like) {
                Some(other) => runners[other].clone(),
                None => Some(self.runner(node, group, inputs, replaced)?),
            });
        }
        Ok(SingleNode::of_groups(runners))
    }

    /// Whether the constants that a node reads are known for a group.
    pub(super) fn has_constants(&self, node: &NodeProto, group: usize) -> bool {
        node.input.iter().all(|name| !self.is_constant(name) || self.constant(name, group).is_some())
    }

    /// Prepares the node as one model with open dimensions for groups of samples, each with examples of its inputs.
    /// Returns `None` where the groups do not differ, the operator is not in [`OPEN_DIM_OPS`], the node reads tensors
    /// computed from shapes, or the engine refuses open dimensions.
    pub(super) fn open_runner(
        &self,
        node: &NodeProto,
        groups: &[usize],
        examples: &[&[NamedValue]],
        replaced: &[TensorProto],
    ) -> Option<Arc<NodeRunner>> {
        let (&[first, ref others @ ..], &[inputs, ref other_inputs @ ..]) = (groups, examples) else { return None };
        let reads_shapes =
            node.input.iter().any(|name| self.shape_constants.iter().any(|known| known.contains_key(name)));
        let mut others = others.iter().zip(other_inputs);
        let differ = others.any(|(&group, others)| !self.is_alike(node, [(first, inputs), (group, others)]));
        if !OPEN_DIM_OPS.contains(&node.op_type()) || reads_shapes || !differ {
            return None;
        }
        self.prepare(node, self.constants_of(node, first, replaced), inputs, &open_dims(examples)?).ok()
    }

    /// Returns the constants that a node reads, for a group of samples.
    fn constants_of(&self, node: &NodeProto, group: usize, replaced: &[TensorProto]) -> Vec<TensorProto> {
        let mut constants: Vec<TensorProto> = Vec::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            let Some(constant) = self.constant(name, group) else { continue };
            if constants.iter().all(|other| other.name() != name) {
                constants.push(replaced.iter().find(|tensor| tensor.name() == name).unwrap_or(constant).clone());
            }
        }
        constants
    }

    /// Prepares the node as a model of its own for one group of samples. Fails if the engine does not take the node.
    pub(super) fn runner(
        &self,
        node: &NodeProto,
        group: usize,
        inputs: &[NamedValue],
        replaced: &[TensorProto],
    ) -> Result<Arc<NodeRunner>> {
        if let (ClipImpl::InPlace, Some(bounds), [input]) = (self.clip_impl, self.activation_bounds(node), inputs)
            && input.value.f32s().is_some()
        {
            return Ok(Arc::new(NodeRunner::Clip(bounds)));
        }
        self.prepare(node, self.constants_of(node, group, replaced), inputs, &[])
    }

    /// Prepares a node as [`NodeRunner::of`] does, unless another network did.
    fn prepare(
        &self,
        node: &NodeProto,
        constants: Vec<TensorProto>,
        inputs: &[NamedValue],
        open: &[Vec<Option<usize>>],
    ) -> Result<Arc<NodeRunner>> {
        let model = OneNodeModel::new(self.model, node, constants, inputs);
        match self.prepared {
            Some(prepared) => prepared.get(&model, open),
            None => NodeRunner::of(&model, open).map(Arc::new),
        }
    }

    /// Returns the Relu or Clip that is the only reader of the node's output, and its bounds.
    pub fn activation_behind(&self, node: &NodeProto) -> Option<(&'a NodeProto, ActivationBounds)> {
        let (reader, 0) = self.index.only_value_reader(node.output.first()?)? else { return None };
        let reader = &self.graph.node[reader];
        Some((reader, self.activation_bounds(reader)?))
    }

    /// Returns the bounds of a Relu or Clip.
    fn activation_bounds(&self, node: &NodeProto) -> Option<ActivationBounds> {
        let (low, high) = self.index.clip_bounds(node)?;
        let (low, high) = (low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY));
        Some(ActivationBounds { low, high })
    }

    /// Returns the bounds of the activation function after the node; [`ActivationBounds::ALL`] without one.
    pub fn bounds_behind(&self, node: &NodeProto) -> ActivationBounds {
        self.activation_behind(node).map_or(ActivationBounds::ALL, |(_, bounds)| bounds)
    }
}
