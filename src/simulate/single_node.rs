//! One node of the graph as a model of its own, run on every sample.

use super::channels::ActivationBounds;
use crate::engine::{Engine, Parsed, Session, Value};
use crate::onnx::inputs::Shapes;
use crate::onnx::node::node_name;
use crate::onnx::proto::{
    Dimension, ModelProto, NodeProto, TensorProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};
use anyhow::{Context, Result};
use rayon::prelude::*;
use std::sync::Arc;

/// An input's name with a value.
#[derive(Clone, Copy)]
pub struct NamedValue<'v> {
    /// The name.
    pub name: &'v str,
    /// A value of the shape and type to expect.
    pub value: &'v Value,
}

/// A node prepared for each group of samples with equal shapes.
pub struct SingleNode(Vec<Option<Arc<NodeRunner>>>);

/// A node prepared for inputs of one shape, or with open dimensions.
pub enum NodeRunner {
    /// A node that the engine runs.
    Engine(Engine),
    /// A float32 Relu or Clip, whose input the engine would copy.
    Clip(ActivationBounds),
}

/// The number of the symbol of each dimension of each input of a node; `None` where the dimension is fixed.
pub type OpenDims = Vec<Vec<Option<usize>>>;

/// A model of one node.
pub struct OneNodeModel(pub(super) ModelProto);

impl OneNodeModel {
    /// Returns the model of one `node` of `model` with its `constants`, for inputs like the given values. Each name is
    /// given once, in the order in which [`SingleNode::run`] takes the inputs.
    pub fn new(
        model: &ModelProto,
        node: &NodeProto,
        constants: Vec<TensorProto>,
        inputs: &[NamedValue],
    ) -> OneNodeModel {
        let inputs = inputs.iter().map(|input| value_info(input.name, input.value)).collect();
        OneNodeModel(model.of_node(node, constants, inputs))
    }

    /// Returns the bytes of the constants, four for each value.
    pub(super) fn bytes_of_constants(&self) -> usize {
        let constants = self.0.graph.iter().flat_map(|graph| &graph.initializer);
        let bytes = |dims: &[i64]| dims.iter().fold(4usize, |n, &dim| n.saturating_mul(dim.max(0) as usize));
        constants.fold(0, |sum, constant| sum.saturating_add(bytes(&constant.dims)))
    }
}

impl NodeRunner {
    /// Prepares a node. `open` has the number of the symbol of each dimension of each input; it is empty where all
    /// dimensions are fixed.
    ///
    /// # Errors
    /// If the engine does not take the node; the message names it.
    pub fn of(OneNodeModel(model): &OneNodeModel, open: &[Vec<Option<usize>>]) -> Result<NodeRunner> {
        let engine = Parsed::new(model, &Shapes::new()).and_then(|mut parsed| {
            parsed.open_dims(open)?;
            parsed.build(&[])
        });
        let name = || model.graph.iter().flat_map(|graph| &graph.node).map(node_name).next().unwrap_or_default();
        let with_node = |error: anyhow::Error| match error.to_string().starts_with("node `") {
            true => error,
            false => error.context(format!("node `{}`", name())),
        };
        Ok(NodeRunner::Engine(engine.map_err(with_node)?))
    }
}

impl SingleNode {
    /// Wraps a node prepared for each group of samples; `None` for a group that it will not run on.
    pub fn of_groups(runners: Vec<Option<Arc<NodeRunner>>>) -> SingleNode {
        SingleNode(runners)
    }

    /// Runs the node as [`SingleNode::run`] does, on the values of each input per sample. Values without another owner
    /// may be changed in place.
    ///
    /// # Errors
    /// If the node fails on a sample.
    pub fn run_all(&self, inputs: Vec<Vec<Value>>, groups: &[usize]) -> Result<Vec<Vec<Value>>> {
        let mut inputs: Vec<std::vec::IntoIter<Value>> = inputs.into_iter().map(Vec::into_iter).collect();
        let samples = groups.iter().map(|&group| (group, inputs.iter_mut().filter_map(Iterator::next).collect()));
        let samples: Vec<(usize, Vec<Value>)> = samples.collect();
        samples.into_par_iter().map_init(|| (0, None), |session, (group, of)| self.one(session, group, of)).collect()
    }

    /// Runs the node on all samples. `groups` has the group of each sample, and `inputs` returns its inputs. Returns
    /// the named outputs per sample.
    ///
    /// # Errors
    /// If the node fails on a sample.
    pub fn run(&self, groups: &[usize], inputs: impl Fn(usize) -> Vec<Value> + Sync) -> Result<Vec<Vec<Value>>> {
        let run =
            |session: &mut (usize, Option<Session>), sample: usize| self.one(session, groups[sample], inputs(sample));
        (0..groups.len()).into_par_iter().map_init(|| (0, None), run).collect()
    }

    /// Runs a sample of a group. `known` is the group of the thread's session.
    fn one(
        &self,
        (known, session): &mut (usize, Option<Session>),
        group: usize,
        inputs: Vec<Value>,
    ) -> Result<Vec<Value>> {
        let runner = self.0.get(group).and_then(Option::as_deref);
        match runner.context("internal error: a node that was not prepared for a sample's shapes")? {
            NodeRunner::Clip(bounds) => inputs.into_iter().map(|x| x.into_mapped_f32(|x| bounds.apply(x))).collect(),
            NodeRunner::Engine(engine) => {
                if session.is_none() || *known != group {
                    (*known, *session) = (group, Some(engine.session()?));
                }
                session.as_mut().context("internal error: no session")?.run_values(inputs)
            }
        }
    }
}

/// Returns the open dimensions of a node's inputs, where `examples` has the inputs of several groups of samples. A
/// dimension that differs between groups has a number; dimensions that are equal in each group have equal numbers.
/// Returns `None` where the ranks of an input differ.
pub fn open_dims(examples: &[&[NamedValue]]) -> Option<OpenDims> {
    let (mut known, mut open) = (Vec::<Vec<usize>>::new(), Vec::new());
    for (input_idx, input) in examples.first()?.iter().enumerate() {
        let shapes: Vec<&[usize]> = examples.iter().map(|inputs| inputs[input_idx].value.shape()).collect();
        let rank = input.value.shape().len();
        if shapes.iter().any(|shape| shape.len() != rank) {
            return None;
        }
        let of_axis = |axis: usize| {
            let sizes: Vec<usize> = shapes.iter().map(|shape| shape[axis]).collect();
            let differs = sizes.iter().any(|n| *n != sizes[0]);
            differs.then(|| {
                known.iter().position(|other| *other == sizes).unwrap_or_else(|| {
                    known.push(sizes);
                    known.len() - 1
                })
            })
        };
        open.push((0..rank).map(of_axis).collect());
    }
    Some(open)
}

fn value_info(name: &str, value: &Value) -> ValueInfoProto {
    let dim = |&dim: &usize| Dimension { dim_value: Some(dim as i64), ..Default::default() };
    let shape = TensorShapeProto { dim: value.shape().iter().map(dim).collect() };
    let tensor = TensorType { elem_type: value.data_type(), shape: Some(shape) };
    let r#type = TypeProto { tensor_type: Some(tensor), ..Default::default() };
    ValueInfoProto { name: Some(name.into()), r#type: Some(r#type), ..Default::default() }
}
