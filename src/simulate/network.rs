//! The parts that the float network and every quantized one share: the graph, its constants, its nodes one by one.

use super::channels::ActivationBounds;
use super::single_node::{NamedValue, SingleNode};
use crate::engine::Value;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;

/// The implementation of float32 Relu and Clip. They differ for NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clips {
    /// This crate, in place.
    InPlace,
    /// The engine, as for every other node; it copies the input.
    ByEngine,
}

/// A prepared float model, whose nodes are run one by one.
pub struct Network<'a> {
    model: &'a ModelProto,
    /// Its graph.
    pub graph: &'a GraphProto,
    /// Producers and readers of tensors.
    pub index: GraphIndex<'a>,
    /// Initializers, and tensors computed from them and from shapes.
    constants: BTreeMap<String, TensorProto>,
    clips: Clips,
}

impl<'a> Network<'a> {
    /// Prepares `model`.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn new(model: &'a ModelProto, clips: Clips) -> Result<Network<'a>> {
        let graph = model.graph.as_ref().context("model has no graph")?;
        let constants = graph.initializer.iter().map(|t| (t.name().to_string(), t.clone())).collect();
        Ok(Network { model, graph, index: GraphIndex::new(graph), constants, clips })
    }

    /// Whether `name` is known to be constant by now.
    pub fn is_constant(&self, name: &str) -> bool {
        self.constants.contains_key(name)
    }

    /// The inputs of a node that are not constants, each once. `exists` tells whether a tensor exists.
    ///
    /// # Errors
    /// If the node cannot be run by itself, or reads a tensor that does not exist.
    pub(super) fn runtime_inputs<'n>(
        &self,
        node: &'n NodeProto,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Vec<&'n str>> {
        let nested = node.attribute.iter().any(|attr| attr.g.is_some() || !attr.graphs.is_empty());
        if nested {
            bail!("node `{}`: {} has a nested graph, which cannot be simulated", node_name(node), node.op_type());
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

    /// Whether a node with these inputs at run time has constant outputs. Shapes are fixed, so that tensors computed
    /// from shapes alone are constant.
    pub(super) fn makes_constants(node: &NodeProto, runtime: &[&str]) -> bool {
        runtime.is_empty() || matches!(node.op_type(), "Shape" | "Size")
    }

    /// Adds the outputs of a node to the constants.
    ///
    /// # Errors
    /// If a value has a type that initializers cannot have.
    pub(super) fn add_constants(&mut self, node: &NodeProto, outputs: Vec<Value>) -> Result<()> {
        for (name, value) in node.output.iter().filter(|name| !name.is_empty()).zip(outputs) {
            self.constants.insert(name.clone(), value.to_proto(name)?);
        }
        Ok(())
    }

    /// The node as a model of its own, for inputs like the given ones. `replaced` takes the place of constants with the
    /// same names.
    ///
    /// # Errors
    /// If the engine does not take the node.
    pub fn single_node(&self, node: &NodeProto, inputs: &[NamedValue], replaced: &[TensorProto]) -> Result<SingleNode> {
        if let (Clips::InPlace, Some(bounds), [input]) = (self.clips, self.activation_bounds(node), inputs)
            && input.value.f32s().is_some()
        {
            return Ok(SingleNode::clip(bounds));
        }
        let mut constants: Vec<TensorProto> = Vec::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            let Some(constant) = self.constants.get(name) else { continue };
            if constants.iter().all(|other| other.name() != name) {
                constants.push(replaced.iter().find(|tensor| tensor.name() == name).unwrap_or(constant).clone());
            }
        }
        SingleNode::new(self.model, node, constants, inputs)
    }

    /// The Relu or Clip that is the only reader of the node's output, and its bounds.
    pub fn activation_behind(&self, node: &NodeProto) -> Option<(&'a NodeProto, ActivationBounds)> {
        let (reader, 0) = self.index.only_value_reader(node.output.first()?)? else { return None };
        let reader = &self.graph.node[reader];
        Some((reader, self.activation_bounds(reader)?))
    }

    /// The bounds of a Relu or Clip.
    fn activation_bounds(&self, node: &NodeProto) -> Option<ActivationBounds> {
        let (low, high) = self.index.clip_bounds(node)?;
        let (low, high) = (low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY));
        Some(ActivationBounds { low, high })
    }

    /// Bounds of the activation function after the node; [`ActivationBounds::ALL`] without one.
    pub fn bounds_behind(&self, node: &NodeProto) -> ActivationBounds {
        self.activation_behind(node).map_or(ActivationBounds::ALL, |(_, bounds)| bounds)
    }
}
