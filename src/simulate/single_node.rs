//! One node of the graph as a model of its own, run on every sample.

use super::channels::ActivationBounds;
use crate::diag::copy_of;
use crate::engine::{Engine, Parsed, Session, Value};
use crate::onnx::inputs::Shapes;
use crate::onnx::node::node_name;
use crate::onnx::proto::{
    Dimension, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};
use anyhow::{Context, Result};
use rayon::prelude::*;

/// An input's name with a value.
#[derive(Clone, Copy)]
pub struct NamedValue<'v> {
    /// The name.
    pub name: &'v str,
    /// A value of the shape and type to expect.
    pub value: &'v Value,
}

/// A prepared node.
pub struct SingleNode(NodeRunner);

enum NodeRunner {
    /// A node that the engine runs.
    Engine(Engine),
    /// A float32 Relu or Clip, whose input the engine would copy.
    Clip(ActivationBounds),
}

impl SingleNode {
    /// A Relu or Clip with these bounds.
    pub fn clip(bounds: ActivationBounds) -> SingleNode {
        SingleNode(NodeRunner::Clip(bounds))
    }

    /// Prepares `node` of `model` with its `constants`, for inputs like the given ones: each name once, in the order in
    /// which [`SingleNode::run`] takes them.
    ///
    /// # Errors
    /// If the engine does not take the node; the message names it.
    pub fn new(
        model: &ModelProto,
        node: &NodeProto,
        constants: Vec<TensorProto>,
        inputs: &[NamedValue],
    ) -> Result<SingleNode> {
        let outputs = node.output.iter().filter(|name| !name.is_empty());
        let graph = GraphProto {
            name: Some("step".into()),
            node: vec![node.clone()],
            initializer: constants,
            input: inputs.iter().map(|input| value_info(input.name, input.value)).collect(),
            output: outputs.map(|name| ValueInfoProto { name: Some(name.clone()), ..Default::default() }).collect(),
            ..Default::default()
        };
        let model = ModelProto {
            ir_version: model.ir_version,
            opset_import: model.opset_import.clone(),
            graph: Some(graph),
            ..Default::default()
        };
        let engine = Parsed::new(&model, &Shapes::new()).and_then(|parsed| parsed.build(&[]));
        Ok(SingleNode(NodeRunner::Engine(engine.with_context(|| format!("node `{}`", node_name(node)))?)))
    }

    /// As [`SingleNode::run`], for inputs given per sample.
    ///
    /// # Errors
    /// If the node fails on a sample.
    pub fn run_all(&self, inputs: &[&[Value]], n_samples: usize) -> Result<Vec<Vec<Value>>> {
        self.run(n_samples, |sample| inputs.iter().map(|values| values[sample].clone()).collect())
    }

    /// The named outputs, for each of `n_samples` samples.
    ///
    /// # Errors
    /// If the node fails on a sample.
    pub fn run(&self, n_samples: usize, inputs: impl Fn(usize) -> Vec<Value> + Sync) -> Result<Vec<Vec<Value>>> {
        let samples = (0..n_samples).into_par_iter();
        let engine = match &self.0 {
            NodeRunner::Engine(engine) => engine,
            NodeRunner::Clip(bounds) => {
                let clip = |value: &Value| value.map_f32(|x| bounds.apply(x));
                return samples.map(|i| inputs(i).iter().map(clip).collect()).collect();
            }
        };
        let run = |session: &mut Result<Session>, sample: usize| match session {
            Ok(session) => session.run_values(&inputs(sample)),
            Err(error) => Err(copy_of(error)),
        };
        samples.map_init(|| engine.session(), run).collect()
    }
}

fn value_info(name: &str, value: &Value) -> ValueInfoProto {
    let dim = |&dim: &usize| Dimension { dim_value: Some(dim as i64), ..Default::default() };
    let shape = TensorShapeProto { dim: value.shape().iter().map(dim).collect() };
    let tensor = TensorType { elem_type: value.data_type(), shape: Some(shape) };
    let r#type = TypeProto { tensor_type: Some(tensor), ..Default::default() };
    ValueInfoProto { name: Some(name.into()), r#type: Some(r#type), ..Default::default() }
}
