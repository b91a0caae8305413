//! What the float network and every quantized one share: the graph, its constants, its nodes one by one.

use super::channels::ActivationBounds;
use super::node::{activation_behind, activation_bounds, runtime_inputs};
use super::single_node::{NamedValue, SingleNode};
use crate::engine::Value;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// What runs a Relu or Clip of float32. They differ where a value is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clips {
    /// This crate, without the copy of the input that the engine makes.
    InPlace,
    /// The engine, as every other node.
    ByEngine,
}

/// A prepared float model, whose nodes are run one by one.
pub struct Network<'a> {
    model: &'a ModelProto,
    /// Its graph.
    pub graph: &'a GraphProto,
    /// Who makes and reads what.
    pub index: GraphIndex<'a>,
    /// Initializers, and what follows from them and from shapes.
    constants: BTreeMap<String, TensorProto>,
    clips: Clips,
}

impl<'a> Network<'a> {
    /// Of `model`.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn new(model: &'a ModelProto, clips: Clips) -> Result<Network<'a>> {
        let graph = model.graph.as_ref().context("model has no graph")?;
        let initializers = graph.initializer.iter();
        let constants = initializers.map(|t| (t.name().to_string(), t.clone())).collect();
        Ok(Network { model, graph, index: GraphIndex::new(graph), constants, clips })
    }

    /// Whether `name` is a constant by now.
    pub fn is_constant(&self, name: &str) -> bool {
        self.constants.contains_key(name)
    }

    /// The inputs of a node that are no constants, without repetition; `exists` tells which tensors there are.
    ///
    /// # Errors
    /// If the node cannot be run by itself, or reads a tensor that does not exist.
    pub(super) fn runtime_inputs<'n>(
        &self,
        node: &'n NodeProto,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Vec<&'n str>> {
        runtime_inputs(node, &self.constants, exists)
    }

    /// Whether the outputs of a node with these inputs at run time are constants. Shapes are fixed: what follows from
    /// them alone is a constant of the nodes behind.
    pub(super) fn makes_constants(node: &NodeProto, runtime: &[&str]) -> bool {
        runtime.is_empty() || matches!(node.op_type(), "Shape" | "Size")
    }

    /// Makes constants of the outputs of a node.
    ///
    /// # Errors
    /// If a value has a type that no initializer has.
    pub(super) fn add_constants(&mut self, node: &NodeProto, outputs: Vec<Value>) -> Result<()> {
        let names = node.output.iter().filter(|name| !name.is_empty());
        for (name, value) in names.zip(outputs) {
            self.constants.insert(name.clone(), value.to_proto(name)?);
        }
        Ok(())
    }

    /// The node as a model of its own, for inputs like those given; those `replaced` take the places of the
    /// constants of their names.
    ///
    /// # Errors
    /// If the engine does not take the node.
    pub fn single_node(&self, node: &NodeProto, inputs: &[NamedValue], replaced: &[TensorProto]) -> Result<SingleNode> {
        if let (Clips::InPlace, Some(bounds), [input]) = (self.clips, activation_bounds(node, &self.index), inputs)
            && input.value.f32s().is_some()
        {
            return Ok(SingleNode::clip(bounds));
        }
        let mut constants: Vec<TensorProto> = Vec::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            let Some(constant) = self.constants.get(name) else { continue };
            if constants.iter().all(|other| other.name() != name) {
                let replaced = replaced.iter().find(|tensor| tensor.name() == name);
                constants.push(replaced.unwrap_or(constant).clone());
            }
        }
        SingleNode::new(self.model, node, constants, inputs)
    }

    /// The Relu or Clip that alone reads the node's output, and its bounds.
    pub fn activation_behind(&self, node: &NodeProto) -> Option<(&'a NodeProto, ActivationBounds)> {
        activation_behind(node, self.graph, &self.index)
    }

    /// The bounds of the activation behind the node; [`ActivationBounds::ALL`] where there is none.
    pub fn bounds_behind(&self, node: &NodeProto) -> ActivationBounds {
        self.activation_behind(node).map_or(ActivationBounds::ALL, |(_, bounds)| bounds)
    }
}
