//! The float and the quantized network side by side, node by node, over all samples at once.
//!
//! Each node runs on every sample before the next one does, so that a layer can be changed when its
//! quantized input is known and its output is not. A tensor is freed after its last use: memory holds the
//! tensors that are alive, of both networks, for all samples.

use super::correct::DOUBT;
use super::grid::fake_quantize;
use super::judge::Noise;
use super::methods::{Method, Methods};
use super::step::Step;
use crate::decide::QuantPlan;
use crate::engine::Value;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::place::{Edge, node_name};
use crate::quant::{Codes, QuantParams};
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What a walk found.
pub struct Walked {
    /// Noise of the graph's outputs over the samples that were held back, per output.
    pub held_back: Vec<Noise>,
    /// The quantized network's outputs, per output and sample.
    pub quantized: Vec<Vec<Value>>,
    /// New biases, a value per output channel: at which node, and which of its inputs.
    pub biases: BTreeMap<Edge, Vec<f32>>,
}

/// A walk in progress.
pub struct Walk<'a> {
    model: &'a ModelProto,
    pub(super) graph: &'a GraphProto,
    pub(super) index: GraphIndex<'a>,
    pub(super) plan: &'a mut QuantPlan,
    pub(super) methods: Methods,
    /// The first so many samples are learned from; the others are held back.
    pub(super) n_tune: usize,
    pub(super) grids: BTreeMap<String, (QuantParams, BTreeSet<Edge>)>,
    weights: BTreeMap<Edge, usize>,
    constants: BTreeMap<String, TensorProto>,
    lanes: BTreeMap<String, Lane>,
    uses_left: BTreeMap<&'a str, usize>,
    pub(super) biases: BTreeMap<Edge, Vec<f32>>,
    /// Weights that were changed.
    pub(super) changed: BTreeSet<usize>,
    /// Groups of activations that have met their values: no range of theirs may change any more.
    pub(super) settled: BTreeSet<usize>,
}

/// One tensor, a value per sample.
struct Lane {
    float: Vec<Value>,
    /// Empty where every use reads the values on the grid.
    quantized: Vec<Value>,
    /// The quantized network's values laid on the tensor's grid, where it has one.
    on_grid: Option<Vec<Value>>,
}

impl<'a> Walk<'a> {
    /// `model` is the prepared float model that `plan` is for.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn new(
        model: &'a ModelProto,
        plan: &'a mut QuantPlan,
        methods: Methods,
        n_tune: usize,
    ) -> Result<Walk<'a>> {
        let graph = model.graph.as_ref().context("model has no graph")?;
        let affine = |params: &QuantParams| params.codes == Codes::Affine;
        let activations = plan.activations.iter().map(|planned| &planned.params);
        let weights = plan.weights.iter().flat_map(|planned| &planned.params);
        ensure!(activations.chain(weights).all(affine), "its codes are not affine");
        let index = GraphIndex::new(graph);
        let grids = plan.activations.iter().map(|planned| {
            let edges = planned.site.edges.iter().copied().collect();
            (planned.site.tensor.clone(), (planned.params, edges))
        });
        let weights = plan.weights.iter().enumerate();
        let weights =
            weights.flat_map(|(i, planned)| planned.site.edges.iter().map(move |edge| (*edge, i)));
        let (grids, weights) = (grids.collect(), weights.collect());
        let initializers = graph.initializer.iter();
        let constants = initializers.map(|t| (t.name().to_string(), t.clone())).collect();
        let mut uses_left: BTreeMap<&str, usize> = BTreeMap::new();
        let inputs = graph.node.iter().flat_map(|node| &node.input).map(String::as_str);
        let outputs = graph.output.iter().map(|value| value.name());
        inputs.chain(outputs).for_each(|name| *uses_left.entry(name).or_default() += 1);
        Ok(Walk {
            model,
            graph,
            index,
            plan,
            methods,
            n_tune,
            grids,
            weights,
            constants,
            lanes: BTreeMap::new(),
            uses_left,
            biases: BTreeMap::new(),
            changed: BTreeSet::new(),
            settled: BTreeSet::new(),
        })
    }

    /// Walks through the graph. `samples` holds the values of the inputs `inputs` for each sample.
    ///
    /// # Errors
    /// If a node cannot be run by itself: control flow, or shapes that depend on values.
    pub fn run(mut self, inputs: &[String], samples: &[Vec<Value>]) -> Result<Walked> {
        for (position, name) in inputs.iter().enumerate() {
            let values: Vec<Value> = samples.iter().map(|s| s[position].clone()).collect();
            self.store(name, values.clone(), values)?;
        }
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            self.node(node_idx, node, samples.len())?;
            for name in &node.input {
                self.used(name);
            }
        }
        let mut held_back = Vec::new();
        let mut quantized = Vec::new();
        for output in &self.graph.output {
            let mut noise = Noise::default();
            if let Some(lane) = self.lanes.get(output.name()) {
                let planned = self.plan.activations.iter();
                let mut planned = planned.filter(|p| p.site.tensor == output.name());
                let on_grid = planned.any(|planned| planned.site.network_output);
                let values = lane.on_grid.as_ref().filter(|_| on_grid).unwrap_or(&lane.quantized);
                for (a, b) in lane.float.iter().zip(values).skip(self.n_tune) {
                    noise.add(a, b);
                }
                quantized.push(values.clone());
            }
            held_back.push(noise);
        }
        Ok(Walked { held_back, quantized, biases: self.biases })
    }

    /// Whether `name` is a constant by now.
    pub(super) fn is_constant(&self, name: &str) -> bool {
        self.constants.contains_key(name)
    }

    fn used(&mut self, name: &str) {
        if let Some(left) = self.uses_left.get_mut(name) {
            *left -= 1;
            if *left == 0 {
                self.lanes.remove(name);
            }
        }
    }

    fn store(&mut self, name: &str, float: Vec<Value>, quantized: Vec<Value>) -> Result<()> {
        if self.uses_left.get(name).is_none_or(|left| *left == 0) {
            return Ok(());
        }
        let same = float.windows(2).all(|pair| pair[0].shape() == pair[1].shape());
        ensure!(same, "tensor `{name}`: its shape depends on the sample");
        if self.methods.contains(Method::Ranges) {
            self.refine_range(name, &float, &quantized)?;
        }
        let on_grid = match self.grids.get(name) {
            None => None,
            Some((params, _)) => {
                let on_grid = quantized.par_iter().map(|value| fake_quantize(value, params));
                Some(on_grid.collect::<Result<Vec<Value>>>()?)
            }
        };
        let edges = self.grids.get(name).map(|(_, edges)| edges);
        let all_on_grid = edges.is_some_and(|edges| {
            self.index.consumers(name).iter().all(|edge| edges.contains(edge))
        });
        let quantized = match all_on_grid && !self.index.is_output(name) {
            true => Vec::new(),
            false => quantized,
        };
        self.lanes.insert(name.to_string(), Lane { float, quantized, on_grid });
        Ok(())
    }

    fn node(&mut self, node_idx: usize, node: &'a NodeProto, n_samples: usize) -> Result<()> {
        let nested = node.attribute.iter().any(|attr| attr.g.is_some() || !attr.graphs.is_empty());
        if nested {
            bail!("node `{}`: {} holds a graph of its own", node_name(node), node.op_type());
        }
        let mut runtime: Vec<&str> = Vec::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            if !self.constants.contains_key(name) && !runtime.contains(&name.as_str()) {
                ensure!(
                    self.lanes.contains_key(name),
                    "node `{}`: tensor `{name}` does not exist",
                    node_name(node)
                );
                runtime.push(name);
            }
        }
        // Shapes are fixed: what follows from them alone is a constant of the nodes behind.
        if runtime.is_empty() || matches!(node.op_type(), "Shape" | "Size") {
            return self.constant(node, &runtime);
        }
        let step = self.step(node, &runtime, None)?;
        let float = step.run(n_samples, |sample| {
            runtime.iter().map(|name| self.lanes[*name].float[sample].clone()).collect()
        })?;
        let quantized = match self.weights_of(node_idx, node) {
            Some(weight_idx) => self.layer(node_idx, node, &runtime, weight_idx, &float)?,
            None => {
                let mut quantized = self.plain(node_idx, node, &runtime, &step, &float)?;
                let outputs = (float.as_slice(), quantized.as_mut_slice());
                self.correct(node_idx, node, outputs, DOUBT)?;
                quantized
            }
        };
        let names = node.output.iter().filter(|name| !name.is_empty());
        for (position, name) in names.enumerate() {
            let of = |values: &[Vec<Value>]| -> Vec<Value> {
                values.iter().map(|outputs| outputs[position].clone()).collect()
            };
            self.store(name, of(&float), of(&quantized))?;
        }
        Ok(())
    }

    fn constant(&mut self, node: &NodeProto, runtime: &[&str]) -> Result<()> {
        let step = self.step(node, runtime, None)?;
        let inputs =
            |_| runtime.iter().filter_map(|name| Some(self.lanes[*name].float.first()?.clone()));
        let outputs = step.run(1, |sample| inputs(sample).collect())?;
        let names = node.output.iter().filter(|name| !name.is_empty());
        for (name, value) in names.zip(outputs.iter().flatten()) {
            self.constants.insert(name.clone(), value.to_proto(name)?);
        }
        Ok(())
    }

    /// The node as a model of its own, for tensors that exist already.
    pub(super) fn step(
        &self,
        node: &NodeProto,
        runtime: &[&str],
        replaced: Option<&TensorProto>,
    ) -> Result<Step> {
        let value = |name: &&'_ str| self.lanes[*name].float.first();
        let inputs: Vec<(&str, &Value)> =
            runtime.iter().filter_map(|name| Some((*name, value(name)?))).collect();
        self.step_for(node, &inputs, replaced)
    }

    /// The node as a model of its own, for inputs like those given; `replaced` takes the place of the
    /// constant of its name.
    pub(super) fn step_for(
        &self,
        node: &NodeProto,
        inputs: &[(&str, &Value)],
        replaced: Option<&TensorProto>,
    ) -> Result<Step> {
        let mut constants: Vec<TensorProto> = Vec::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            let Some(constant) = self.constants.get(name) else { continue };
            if constants.iter().all(|other| other.name() != name) {
                let replaced = replaced.filter(|tensor| tensor.name() == name);
                constants.push(replaced.unwrap_or(constant).clone());
            }
        }
        Step::new(self.model, node, constants, inputs)
    }

    /// The planned weight that the node reads, if it is the only one.
    pub(super) fn weights_of(&self, node_idx: usize, node: &NodeProto) -> Option<usize> {
        (0..node.input.len()).find_map(|input| self.weights.get(&(node_idx, input)).copied())
    }

    /// Whether the input `input_idx` of the node is quantized.
    pub(super) fn is_planned(&self, node_idx: usize, input_idx: usize) -> bool {
        let edge = (node_idx, input_idx);
        self.weights.contains_key(&edge)
            || self.grids.values().any(|(_, edges)| edges.contains(&edge))
    }

    /// The values that the node's use of `name` reads in the quantized network.
    pub(super) fn read(&self, node_idx: usize, node: &NodeProto, name: &str) -> &[Value] {
        let lane = &self.lanes[name];
        let position = node.input.iter().position(|input| input == name);
        let on_grid =
            self.grids.get(name).zip(lane.on_grid.as_deref()).and_then(|((_, edges), on_grid)| {
                edges.contains(&(node_idx, position?)).then_some(on_grid)
            });
        on_grid.unwrap_or(&lane.quantized)
    }

    fn plain(
        &self,
        node_idx: usize,
        node: &NodeProto,
        runtime: &[&str],
        step: &Step,
        float: &[Vec<Value>],
    ) -> Result<Vec<Vec<Value>>> {
        let inputs: Vec<&[Value]> =
            runtime.iter().map(|name| self.read(node_idx, node, name)).collect();
        let same = runtime.iter().zip(&inputs).all(|(name, values)| {
            self.lanes[*name].float.iter().zip(*values).all(|(a, b)| a.is(b))
        });
        if same {
            return Ok(float.to_vec());
        }
        step.run(float.len(), |sample| inputs.iter().map(|v| v[sample].clone()).collect())
    }
}
