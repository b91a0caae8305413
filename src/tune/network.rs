//! What the float network and every quantized one of a walk share: the graph and its constants.

use super::bias::Passed;
use super::bias_grid::BiasGrids;
use super::step::Step;
use crate::engine::Value;
use crate::onnx::graph::Edge;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::plan::QuantPlan;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;

/// A prepared model, for a walk.
pub(super) struct Network<'a> {
    model: &'a ModelProto,
    pub graph: &'a GraphProto,
    pub index: GraphIndex<'a>,
    /// Initializers, and what follows from them and from shapes.
    pub constants: BTreeMap<String, TensorProto>,
    weights: BTreeMap<Edge, usize>,
    /// The first so many samples are learned from; the others are held back.
    pub n_tune: usize,
    /// Samples from here on judge.
    pub judges: usize,
    /// Where biases are laid on grids of their own; without, new ones stay float.
    pub bias_grids: Option<&'a BiasGrids<'a>>,
}

impl<'a> Network<'a> {
    /// Every plan of the walk has the weights of `plan`, in its order.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn new(model: &'a ModelProto, plan: &QuantPlan, n_tune: usize) -> Result<Network<'a>> {
        let graph = model.graph.as_ref().context("model has no graph")?;
        let weights = plan.weights.iter().enumerate();
        let weights = weights
            .flat_map(|(i, planned)| planned.quantizer.edges.iter().map(move |edge| (*edge, i)));
        let weights = weights.collect();
        let initializers = graph.initializer.iter();
        let constants = initializers.map(|t| (t.name().to_string(), t.clone())).collect();
        Ok(Network {
            model,
            graph,
            index: GraphIndex::new(graph),
            constants,
            weights,
            n_tune,
            judges: n_tune,
            bias_grids: None,
        })
    }

    /// Whether `name` is a constant by now.
    pub fn is_constant(&self, name: &str) -> bool {
        self.constants.contains_key(name)
    }

    /// The node as a model of its own, for inputs like those given; those `replaced` take the places of the
    /// constants of their names.
    ///
    /// # Errors
    /// If the engine does not take the node.
    pub fn step(
        &self,
        node: &NodeProto,
        inputs: &[(&str, &Value)],
        replaced: &[TensorProto],
    ) -> Result<Step> {
        if let (Some(passed), [(_, value)]) = (bounds(node, &self.index), inputs)
            && value.f32s().is_some()
        {
            return Ok(Step::clip(passed));
        }
        let mut constants: Vec<TensorProto> = Vec::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            let Some(constant) = self.constants.get(name) else { continue };
            if constants.iter().all(|other| other.name() != name) {
                let replaced = replaced.iter().find(|tensor| tensor.name() == name);
                constants.push(replaced.unwrap_or(constant).clone());
            }
        }
        Step::new(self.model, node, constants, inputs)
    }

    /// The planned weight that the node reads, if it is the only one.
    pub fn weights_of(&self, node_idx: usize, node: &NodeProto) -> Option<usize> {
        (0..node.input.len()).find_map(|input| self.weight_at((node_idx, input)))
    }

    /// The planned weight at an input of a node.
    pub fn weight_at(&self, edge: Edge) -> Option<usize> {
        self.weights.get(&edge).copied()
    }

    /// What the function behind the node lets through.
    pub fn passed(&self, node: &NodeProto) -> Passed {
        passed(node, self.graph, &self.index)
    }
}

/// The inputs of a node that are no constants, without repetition; `exists` tells which tensors there are.
///
/// # Errors
/// If the node cannot be run by itself, or reads a tensor that does not exist.
pub fn runtime_inputs<'n>(
    node: &'n NodeProto,
    constants: &BTreeMap<String, TensorProto>,
    exists: impl Fn(&str) -> bool,
) -> Result<Vec<&'n str>> {
    let nested = node.attribute.iter().any(|attr| attr.g.is_some() || !attr.graphs.is_empty());
    if nested {
        bail!("node `{}`: {} holds a graph of its own", node_name(node), node.op_type());
    }
    let mut runtime: Vec<&str> = Vec::new();
    for name in node.input.iter().filter(|name| !name.is_empty()) {
        if !constants.contains_key(name) && !runtime.contains(&name.as_str()) {
            ensure!(exists(name), "node `{}`: tensor `{name}` does not exist", node_name(node));
            runtime.push(name);
        }
    }
    Ok(runtime)
}

/// What the only reader of the node's output lets through: everything, unless it is a Relu or Clip.
pub fn passed(node: &NodeProto, graph: &GraphProto, index: &GraphIndex) -> Passed {
    activation(node, graph, index).map_or(Passed::ALL, |(_, passed)| passed)
}

/// The Relu or Clip that alone reads the node's output, and what it lets through.
pub fn activation<'a>(
    node: &NodeProto,
    graph: &'a GraphProto,
    index: &GraphIndex,
) -> Option<(&'a NodeProto, Passed)> {
    let output = node.output.first().filter(|name| !index.is_output(name))?;
    let &[(reader, 0)] = index.consumers(output) else { return None };
    let reader = &graph.node[reader];
    Some((reader, bounds(reader, index)?))
}

/// What a Relu or Clip lets through.
fn bounds(node: &NodeProto, index: &GraphIndex) -> Option<Passed> {
    let (low, high) = index.clip_bounds(node)?;
    let (low, high) = (low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY));
    Some(Passed { low, high })
}
