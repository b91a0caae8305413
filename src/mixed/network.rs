//! The network under many plans: what two plans have in common is computed once.
//!
//! Nodes are run one by one over all samples, as tuning does. What a node makes follows from the node, the
//! grids and weights before it, and the samples; a hash of these names it, and what is kept under the name
//! is not computed again. A plan that differs in one layer so costs the nodes behind that layer alone.

use super::shifts::{Mode, Shifts};
use crate::engine::Value;
use crate::onnx::graph::Edge;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::plan::{PlannedActivation, PlannedWeight, QuantPlan};
use crate::quant::{Codes, QuantParams};
use crate::simulate::Samples;
use crate::tune::{SingleNode, dequantized, fake_quantize, passed, runtime_inputs, takes_bias};
use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A value per sample.
pub type Lane = Vec<Value>;

/// Some samples, and what is known of their run.
#[derive(Default)]
pub struct CachedSamples {
    /// Values of the network's inputs, by name.
    inputs: BTreeMap<String, Lane>,
    n: usize,
    kept: HashMap<u64, Lane>,
    /// Bytes that may be kept.
    max_bytes: usize,
}

impl CachedSamples {
    /// Up to `max_bytes` of intermediate values are kept.
    pub fn new(samples: Samples, max_bytes: usize) -> CachedSamples {
        let Samples { names, values } = samples;
        let lane = |i: usize| values.iter().filter_map(|sample| sample.get(i).cloned()).collect();
        let inputs = names.iter().enumerate().map(|(i, name)| (name.clone(), lane(i))).collect();
        CachedSamples { inputs, n: values.len(), kept: HashMap::new(), max_bytes }
    }

    /// Values of the inputs `names` of the first sample.
    pub fn first(&self, names: &[String]) -> Option<Vec<Value>> {
        names.iter().map(|name| self.inputs.get(name)?.first().cloned()).collect()
    }
}

/// A model whose nodes can be run one by one.
pub struct Network<'a> {
    model: &'a ModelProto,
    graph: &'a GraphProto,
    index: GraphIndex<'a>,
    /// Per node, the inputs that are no constants, without repetition; none where its outputs are constants.
    runtime: Vec<Vec<&'a str>>,
    /// Initializers, and what follows from them and from shapes.
    constants: BTreeMap<String, TensorProto>,
    /// One value of every other tensor, for its shape.
    examples: BTreeMap<&'a str, Value>,
    /// Nodes ready to run, by position and weights.
    steps: HashMap<(usize, u64), Arc<SingleNode>>,
    /// Corrected biases, where the plans will get some.
    pub shifts: Option<Shifts>,
}

/// A plan by the tensors and uses that it is about.
struct View<'p> {
    grids: BTreeMap<&'p str, (&'p PlannedActivation, BTreeSet<Edge>)>,
    weights: BTreeMap<Edge, (&'p PlannedWeight, u64)>,
}

impl<'p> View<'p> {
    fn of(plan: &'p QuantPlan) -> View<'p> {
        let grids = plan.activations.iter().map(|planned| {
            let edges = planned.quantizer.edges.iter().copied().collect();
            (planned.quantizer.tensor.as_str(), (planned, edges))
        });
        let weights = plan.weights.iter().flat_map(|planned| {
            let id = hash_of(|h| {
                planned.quantizer.qtype.hash(h);
                planned.params.iter().for_each(|params| hash_params(params, h));
            });
            planned.quantizer.edges.iter().map(move |edge| (*edge, (planned, id)))
        });
        View { grids: grids.collect(), weights: weights.collect() }
    }

    /// The grid that the use reads the tensor on.
    fn grid(&self, tensor: &str, edge: Edge) -> Option<&'p QuantParams> {
        let (planned, edges) = self.grids.get(tensor)?;
        edges.contains(&edge).then_some(&planned.params)
    }

    /// The grid that the network gives the tensor out on.
    fn output_grid(&self, tensor: &str) -> Option<&'p QuantParams> {
        let (planned, _) = self.grids.get(tensor)?;
        planned.quantizer.network_output.then_some(&planned.params)
    }

    /// Weights of the node, by the input's name.
    fn weights_of(
        &self,
        node_idx: usize,
        node: &'p NodeProto,
    ) -> Vec<(&'p str, &'p PlannedWeight, u64)> {
        let inputs = node.input.iter().enumerate();
        let planned = inputs.filter_map(|(input, name)| {
            let (weight, id) = self.weights.get(&(node_idx, input))?;
            Some((name.as_str(), *weight, *id))
        });
        planned.collect()
    }
}

fn hash_of(write: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    write(&mut hasher);
    hasher.finish()
}

fn hash_params(params: &QuantParams, hasher: &mut DefaultHasher) {
    (params.scale.to_bits(), params.zero_point, params.q_min, params.q_max).hash(hasher);
}

fn bytes_of(lane: &Lane) -> usize {
    lane.iter().map(|value| 4 * value.shape().iter().product::<usize>()).sum()
}

impl<'a> Network<'a> {
    /// `model` is a prepared float model; shapes are those of the first of the `samples`.
    ///
    /// # Errors
    /// If a node cannot be run by itself: control flow, or an operator that the engine lacks.
    pub fn new(model: &'a ModelProto, samples: Samples) -> Result<Network<'a>> {
        let (names, sample) =
            (samples.names, samples.values.first().context("there are no samples")?);
        let graph = model.graph.as_ref().context("model has no graph")?;
        let initializers = graph.initializer.iter();
        let mut network = Network {
            model,
            graph,
            index: GraphIndex::new(graph),
            runtime: Vec::with_capacity(graph.node.len()),
            constants: initializers.map(|t| (t.name().to_string(), t.clone())).collect(),
            examples: BTreeMap::new(),
            steps: HashMap::new(),
            shifts: None,
        };
        for input in &graph.input {
            if let Some(i) = names.iter().position(|name| name == input.name()) {
                network.examples.extend(sample.get(i).map(|value| (input.name(), value.clone())));
            }
        }
        for (node_idx, node) in graph.node.iter().enumerate() {
            network.prepare(node_idx, node)?;
        }
        Ok(network)
    }

    /// Bytes that the intermediate values of one sample take.
    pub fn bytes_per_sample(&self) -> usize {
        self.examples.values().map(|value| 4 * value.shape().iter().product::<usize>()).sum()
    }

    /// What happens to biases from now on.
    pub fn set(&mut self, mode: Mode) {
        self.shifts.iter_mut().for_each(|shifts| shifts.set(mode));
    }

    /// Runs the node on the one sample.
    fn prepare(&mut self, node_idx: usize, node: &'a NodeProto) -> Result<()> {
        let exists = |name: &str| self.examples.contains_key(name);
        let runtime = runtime_inputs(node, &self.constants, exists)?;
        // Shapes are fixed: what follows from them alone is a constant of the nodes behind.
        let constant = runtime.is_empty() || matches!(node.op_type(), "Shape" | "Size");
        let step = self.step(node_idx, node, &runtime, &[])?;
        let inputs: Vec<Value> = runtime.iter().map(|name| self.examples[*name].clone()).collect();
        let outputs = step.run(1, |_| inputs.clone())?;
        let names = node.output.iter().filter(|name| !name.is_empty());
        for (name, value) in names.zip(outputs.into_iter().flatten()) {
            match constant {
                true => drop(self.constants.insert(name.clone(), value.to_proto(name)?)),
                false => drop(self.examples.insert(name, value)),
            }
        }
        self.runtime.push(if constant { Vec::new() } else { runtime });
        Ok(())
    }

    /// The node as a model of its own, with these weights in place of the constants of their names.
    fn step(
        &mut self,
        node_idx: usize,
        node: &NodeProto,
        runtime: &[&str],
        weights: &[(&str, &PlannedWeight, u64)],
    ) -> Result<Arc<SingleNode>> {
        let key =
            (node_idx, hash_of(|h| weights.iter().for_each(|(name, _, id)| (name, id).hash(h))));
        if let Some(step) = self.steps.get(&key) {
            return Ok(step.clone());
        }
        let mut constants: Vec<TensorProto> = Vec::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            let Some(constant) = self.constants.get(name) else { continue };
            if constants.iter().any(|other| other.name() == name) {
                continue;
            }
            let weight = weights.iter().find(|(of, ..)| of == name);
            constants.push(match weight {
                Some((_, weight, _)) => dequantized(weight)?,
                None => constant.clone(),
            });
        }
        let inputs: Vec<(&str, &Value)> =
            runtime.iter().map(|name| (*name, &self.examples[*name])).collect();
        let step = Arc::new(SingleNode::new(self.model, node, constants, &inputs)?);
        self.steps.insert(key, step.clone());
        Ok(step)
    }

    /// The outputs under `plan`, per output and sample. With `keep`, what was computed is kept for the
    /// plans that follow, in place of what was.
    ///
    /// # Errors
    /// If the plan's codes are not affine, or shapes depend on the sample.
    pub fn run(
        &mut self,
        plan: &QuantPlan,
        samples: &mut CachedSamples,
        keep: bool,
    ) -> Result<Vec<Lane>> {
        let affine = |params: &QuantParams| params.codes == Codes::Affine;
        let activations = plan.activations.iter().map(|planned| &planned.params);
        let weights = plan.weights.iter().flat_map(|planned| &planned.params);
        ensure!(activations.chain(weights).all(affine), "its codes are not affine");
        let view = View::of(plan);
        let keys = self.keys(&view);
        let needed = self.needed(&keys, samples);
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        let graph = self.graph;
        for (node_idx, runtime) in self.runtime.iter().enumerate() {
            if needed[node_idx] {
                runtime.iter().for_each(|name| *uses.entry(name).or_default() += 1);
            }
        }
        graph.output.iter().for_each(|output| *uses.entry(output.name()).or_default() += 1);
        if keep {
            let known: BTreeSet<u64> = keys.values().copied().collect();
            samples.kept.retain(|key, _| known.contains(key));
            self.shifts.iter_mut().for_each(|shifts| shifts.retain(&known));
        }
        let mut kept_bytes: usize = samples.kept.values().map(bytes_of).sum();
        let mut lanes = Lanes { lanes: BTreeMap::new(), on_grid: BTreeMap::new() };
        for (node_idx, node) in graph.node.iter().enumerate().filter(|(i, _)| needed[*i]) {
            let runtime = self.runtime[node_idx].clone();
            for name in &runtime {
                lanes.fetch(name, &keys, samples)?;
            }
            let weights = view.weights_of(node_idx, node);
            let step = self.step(node_idx, node, &runtime, &weights)?;
            let inputs = lanes.read(node_idx, node, &runtime, &view)?;
            let outputs = step.run(samples.n, |sample| {
                inputs.iter().map(|lane| lane[sample].clone()).collect()
            })?;
            let names = node.output.iter().filter(|name| !name.is_empty());
            for (position, name) in names.enumerate() {
                let mut lane: Lane =
                    outputs.iter().filter_map(|values| values.get(position).cloned()).collect();
                if let (0, Some(shifts), Some(key)) =
                    (position, &mut self.shifts, keys.get(name.as_str()))
                    && takes_bias(node, &self.index)
                {
                    let passed = passed(node, graph, &self.index);
                    shifts.apply((node_idx, node, passed), *key, &mut lane)?;
                }
                let shape = self.examples.get(name.as_str()).map(Value::shape);
                ensure!(
                    lane.iter().all(|value| Some(value.shape()) == shape),
                    "tensor `{name}`: its shape depends on the sample"
                );
                let bytes = bytes_of(&lane);
                if let (true, Some(key)) =
                    (keep && kept_bytes + bytes <= samples.max_bytes, keys.get(name.as_str()))
                {
                    kept_bytes += bytes;
                    samples.kept.insert(*key, lane.clone());
                }
                if uses.contains_key(name.as_str()) {
                    lanes.lanes.insert(name, lane);
                }
            }
            for name in runtime {
                lanes.used(name, &mut uses);
            }
        }
        let mut outputs = Vec::with_capacity(graph.output.len());
        for output in &graph.output {
            let name = output.name();
            if self.constants.contains_key(name) {
                outputs.push(Vec::new());
                continue;
            }
            lanes.fetch(name, &keys, samples)?;
            let lane = lanes.lanes.get(name).cloned().unwrap_or_default();
            outputs.push(match view.output_grid(name) {
                Some(params) => on_grid(&lane, params)?,
                None => lane,
            });
        }
        Ok(outputs)
    }

    /// What names each tensor that is no constant.
    fn keys(&self, view: &View<'_>) -> BTreeMap<&'a str, u64> {
        let inputs = self.graph.input.iter().map(|input| input.name());
        let mut keys: BTreeMap<&str, u64> =
            inputs.map(|name| (name, hash_of(|h| name.hash(h)))).collect();
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            if self.runtime[node_idx].is_empty() {
                continue;
            }
            let key = hash_of(|h| {
                node_idx.hash(h);
                for (input, name) in node.input.iter().enumerate() {
                    let edge = (node_idx, input);
                    (input, keys.get(name.as_str())).hash(h);
                    view.weights.get(&edge).map(|(_, id)| id).hash(h);
                    if let Some(params) = view.grid(name, edge) {
                        hash_params(params, h);
                    }
                }
            });
            for (position, name) in node.output.iter().enumerate() {
                keys.insert(name, hash_of(|h| (key, position).hash(h)));
            }
        }
        keys
    }

    /// The nodes that must be run for the outputs.
    fn needed(&self, keys: &BTreeMap<&str, u64>, samples: &CachedSamples) -> Vec<bool> {
        let mut needed = vec![false; self.graph.node.len()];
        let mut pending: Vec<&str> = self.graph.output.iter().map(|output| output.name()).collect();
        while let Some(name) = pending.pop() {
            let kept = keys.get(name).is_some_and(|key| samples.kept.contains_key(key));
            if let (false, Some(node_idx)) = (kept, self.index.producer_idx(name))
                && !needed[node_idx]
                && !self.runtime[node_idx].is_empty()
            {
                needed[node_idx] = true;
                pending.extend(&self.runtime[node_idx]);
            }
        }
        needed
    }
}

/// The tensors of a run in progress.
struct Lanes<'a> {
    lanes: BTreeMap<&'a str, Lane>,
    /// The same on their grids, for the uses that read them so.
    on_grid: BTreeMap<&'a str, Lane>,
}

impl<'a> Lanes<'a> {
    /// Makes sure that a tensor is there, which was made, kept, or is an input.
    fn fetch(
        &mut self,
        name: &'a str,
        keys: &BTreeMap<&str, u64>,
        samples: &CachedSamples,
    ) -> Result<()> {
        if self.lanes.contains_key(name) {
            return Ok(());
        }
        let kept = keys.get(name).and_then(|key| samples.kept.get(key));
        let lane = kept.or_else(|| samples.inputs.get(name));
        let lane = lane.with_context(|| format!("tensor `{name}` does not exist"))?;
        self.lanes.insert(name, lane.clone());
        Ok(())
    }

    /// What the node reads of its inputs.
    fn read(
        &mut self,
        node_idx: usize,
        node: &NodeProto,
        runtime: &[&'a str],
        view: &View,
    ) -> Result<Vec<Lane>> {
        let mut inputs = Vec::with_capacity(runtime.len());
        for &name in runtime {
            let position = node.input.iter().position(|input| input == name).unwrap_or_default();
            let lane = &self.lanes[name];
            inputs.push(match view.grid(name, (node_idx, position)) {
                None => lane.clone(),
                Some(params) => {
                    if !self.on_grid.contains_key(name) {
                        self.on_grid.insert(name, on_grid(lane, params)?);
                    }
                    self.on_grid[name].clone()
                }
            });
        }
        Ok(inputs)
    }

    fn used(&mut self, name: &str, uses: &mut BTreeMap<&str, usize>) {
        if let Some(left) = uses.get_mut(name) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.lanes.remove(name);
                self.on_grid.remove(name);
            }
        }
    }
}

fn on_grid(lane: &Lane, params: &QuantParams) -> Result<Lane> {
    lane.par_iter().map(|value| fake_quantize(value.clone(), params)).collect()
}
