//! Runs a network under many plans; results that two plans share are computed once.
//!
//! A node's output depends on the node, the quantization parameters and weights before it, and the samples. A hash of
//! these is its cache key. A plan that differs in one layer costs only the nodes after that layer.

use super::keyed::{KeyedPlan, KeyedWeight, hash_of, hash_params};
use super::network::{Clips, Network};
use super::samples::Samples;
use super::single_node::{NamedValue, SingleNode};
use super::view::{PlanView, dequantized, fake_quantize};
use crate::engine::Value;
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::onnx::{node, tensor};
use crate::plan::QuantPlan;
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// One value per sample.
pub type SampleValues = Vec<Value>;

/// Samples with cached results.
#[derive(Default)]
pub struct CachedSamples {
    /// Values of the network's inputs, by name.
    inputs: BTreeMap<String, SampleValues>,
    n: usize,
    kept: HashMap<u64, SampleValues>,
    /// Limit on the bytes in the cache.
    max_bytes: usize,
}

impl CachedSamples {
    /// Samples with an empty cache of up to `max_bytes`.
    pub fn new(samples: Samples, max_bytes: usize) -> CachedSamples {
        let Samples { names, values } = samples;
        let of_input = |i: usize| values.iter().filter_map(|sample| sample.get(i).cloned()).collect();
        let inputs = names.iter().enumerate().map(|(i, name)| (name.clone(), of_input(i))).collect();
        CachedSamples { inputs, n: values.len(), kept: HashMap::new(), max_bytes }
    }
}

/// The first output of a node that has run.
pub struct OutputAt<'r> {
    /// The network.
    pub net: &'r Network<'r>,
    /// Position of the node.
    pub node_idx: usize,
    /// The node.
    pub node: &'r NodeProto,
    /// Cache key of the output: equal keys have equal values on the same samples.
    pub key: u64,
}

/// Changes outputs during a run.
pub trait OutputHook {
    /// Gets the first output of a node, one value per sample, and may shift it.
    ///
    /// # Errors
    /// If there is no memory for a copy.
    fn output(&mut self, at: &OutputAt, values: &mut SampleValues) -> Result<()>;

    /// Forgets everything about outputs with other keys.
    fn retain(&mut self, outputs: &BTreeSet<u64>);
}

/// A network that runs under one plan after another.
pub struct CachedNetwork<'a> {
    net: Network<'a>,
    /// Per node, the inputs that are not constants, each once; empty where its outputs are constants.
    runtime: Vec<Vec<&'a str>>,
    /// One value of every tensor that is not a constant, for its shape.
    examples: BTreeMap<&'a str, Value>,
    /// Prepared nodes by position and weights.
    nodes: HashMap<(usize, u64), Arc<SingleNode>>,
}

fn bytes_of(values: &SampleValues) -> usize {
    values.iter().map(|value| 4 * value.shape().iter().product::<usize>()).sum()
}

impl<'a> CachedNetwork<'a> {
    /// Prepares a float model. Shapes are those of the first of the `samples`.
    ///
    /// # Errors
    /// If a node cannot be run by itself: control flow, or an operator that the engine lacks.
    pub fn new(model: &'a ModelProto, samples: Samples) -> Result<CachedNetwork<'a>> {
        let first = samples.values.first().context("there are no samples")?;
        let net = Network::new(model, Clips::ByEngine)?;
        let graph = net.graph;
        let mut network = CachedNetwork {
            net,
            runtime: Vec::with_capacity(graph.node.len()),
            examples: BTreeMap::new(),
            nodes: HashMap::new(),
        };
        for input in &graph.input {
            if let Some(i) = samples.names.iter().position(|name| name == input.name()) {
                network.examples.extend(first.get(i).map(|value| (input.name(), value.clone())));
            }
        }
        for (node_idx, node) in graph.node.iter().enumerate() {
            network.prepare(node_idx, node)?;
        }
        Ok(network)
    }

    /// Bytes of all intermediate values of one sample.
    pub fn bytes_per_sample(&self) -> usize {
        self.examples.values().map(|value| 4 * value.shape().iter().product::<usize>()).sum()
    }

    /// Multiply-adds of a convolution or matrix product for one sample; 0 for other nodes.
    pub fn multiply_adds(&self, node_idx: usize) -> usize {
        let shape = |name: &str| match self.net.index.initializer(name) {
            Some(initializer) => tensor::shape(initializer).ok(),
            None => self.examples.get(name).map(|value| value.shape().to_vec()),
        };
        node::multiply_adds(&self.net.graph.node[node_idx], shape).unwrap_or(0)
    }

    /// Runs the node on the example values.
    fn prepare(&mut self, node_idx: usize, node: &'a NodeProto) -> Result<()> {
        let runtime = self.net.runtime_inputs(node, |name| self.examples.contains_key(name))?;
        let single = self.single_node(node_idx, node, &runtime, &[])?;
        let inputs: Vec<Value> = runtime.iter().map(|name| self.examples[*name].clone()).collect();
        let outputs: Vec<Value> = single.run(1, |_| inputs.clone())?.into_iter().flatten().collect();
        if Network::makes_constants(node, &runtime) {
            self.runtime.push(Vec::new());
            return self.net.add_constants(node, outputs);
        }
        self.examples.extend(node.output.iter().filter(|name| !name.is_empty()).map(String::as_str).zip(outputs));
        self.runtime.push(runtime);
        Ok(())
    }

    /// The node as a model of its own, with these weights in place of the constants with their names.
    fn single_node(
        &mut self,
        node_idx: usize,
        node: &NodeProto,
        runtime: &[&str],
        weights: &[KeyedWeight],
    ) -> Result<Arc<SingleNode>> {
        let id = hash_of(|h| weights.iter().for_each(|weight| weight.id.hash(h)));
        if let Some(single) = self.nodes.get(&(node_idx, id)) {
            return Ok(single.clone());
        }
        let replaced = weights.iter().map(|weight| dequantized(weight.planned)).collect::<Result<Vec<_>>>()?;
        let examples = &self.examples;
        let inputs: Vec<NamedValue> = runtime.iter().map(|name| NamedValue { name, value: &examples[*name] }).collect();
        let single = Arc::new(self.net.single_node(node, &inputs, &replaced)?);
        self.nodes.insert((node_idx, id), single.clone());
        Ok(single)
    }

    /// The outputs under `plan`, per output and sample. With `keep`, results replace those in the cache.
    ///
    /// # Errors
    /// If the plan's codes are not affine, or shapes depend on the sample.
    pub fn run(
        &mut self,
        plan: &QuantPlan,
        samples: &mut CachedSamples,
        keep: bool,
        mut hook: Option<&mut dyn OutputHook>,
    ) -> Result<Vec<SampleValues>> {
        let run = KeyedPlan::of(plan)?;
        let keys = self.keys(&run);
        let needed = self.needed(&keys, samples);
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        let graph = self.net.graph;
        for (node_idx, runtime) in self.runtime.iter().enumerate() {
            if needed[node_idx] {
                runtime.iter().for_each(|name| *uses.entry(name).or_default() += 1);
            }
        }
        graph.output.iter().for_each(|output| *uses.entry(output.name()).or_default() += 1);
        if keep {
            let known: BTreeSet<u64> = keys.values().copied().collect();
            samples.kept.retain(|key, _| known.contains(key));
            hook.iter_mut().for_each(|hook| hook.retain(&known));
        }
        let mut kept_bytes: usize = samples.kept.values().map(bytes_of).sum();
        let mut tensors = Tensors { values: BTreeMap::new(), fake_quantized: BTreeMap::new() };
        for (node_idx, node) in graph.node.iter().enumerate().filter(|(i, _)| needed[*i]) {
            let runtime = self.runtime[node_idx].clone();
            for name in &runtime {
                tensors.fetch(name, &keys, samples)?;
            }
            let weights = run.weights_of(node_idx, node);
            let single = self.single_node(node_idx, node, &runtime, &weights)?;
            let inputs = tensors.read(node_idx, node, &runtime, &run.view)?;
            let inputs: Vec<&[Value]> = inputs.iter().map(Vec::as_slice).collect();
            let outputs = single.run_all(&inputs, samples.n)?;
            let names = node.output.iter().filter(|name| !name.is_empty());
            for (position, name) in names.enumerate() {
                let mut values: SampleValues =
                    outputs.iter().filter_map(|values| values.get(position).cloned()).collect();
                let key = keys.get(name.as_str()).copied();
                if let (0, Some(hook), Some(key)) = (position, &mut hook, key) {
                    hook.output(&OutputAt { net: &self.net, node_idx, node, key }, &mut values)?;
                }
                let shape = self.examples.get(name.as_str()).map(Value::shape);
                ensure!(
                    values.iter().all(|value| Some(value.shape()) == shape),
                    "tensor `{name}`: its shape depends on the sample"
                );
                let bytes = bytes_of(&values);
                if let (true, Some(key)) = (keep && kept_bytes + bytes <= samples.max_bytes, key) {
                    kept_bytes += bytes;
                    samples.kept.insert(key, values.clone());
                }
                if uses.contains_key(name.as_str()) {
                    tensors.values.insert(name, values);
                }
            }
            for name in runtime {
                tensors.used(name, &mut uses);
            }
        }
        let mut outputs = Vec::with_capacity(graph.output.len());
        for output in &graph.output {
            let name = output.name();
            if self.net.is_constant(name) {
                outputs.push(Vec::new());
                continue;
            }
            tensors.fetch(name, &keys, samples)?;
            let values = tensors.values.get(name).cloned().unwrap_or_default();
            outputs.push(match run.view.output_params(name) {
                Some(params) => fake_quantize(values, params)?,
                None => values,
            });
        }
        Ok(outputs)
    }

    /// The cache key of each tensor that is not a constant.
    fn keys(&self, run: &KeyedPlan) -> BTreeMap<&'a str, u64> {
        let inputs = self.net.graph.input.iter().map(|input| input.name());
        let mut keys: BTreeMap<&str, u64> = inputs.map(|name| (name, hash_of(|h| name.hash(h)))).collect();
        for (node_idx, node) in self.net.graph.node.iter().enumerate() {
            if self.runtime[node_idx].is_empty() {
                continue;
            }
            let key = hash_of(|h| {
                node_idx.hash(h);
                for (input, name) in node.input.iter().enumerate() {
                    let edge = (node_idx, input);
                    (input, keys.get(name.as_str())).hash(h);
                    run.weight_id(edge).hash(h);
                    if let Some(params) = run.view.params_at(name, edge) {
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

    /// Whether each node must run to compute the outputs.
    fn needed(&self, keys: &BTreeMap<&str, u64>, samples: &CachedSamples) -> Vec<bool> {
        let mut needed = vec![false; self.net.graph.node.len()];
        let mut pending: Vec<&str> = self.net.graph.output.iter().map(|output| output.name()).collect();
        while let Some(name) = pending.pop() {
            let kept = keys.get(name).is_some_and(|key| samples.kept.contains_key(key));
            if let (false, Some(node_idx)) = (kept, self.net.index.producer_idx(name))
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

/// The tensors of a run.
struct Tensors<'a> {
    values: BTreeMap<&'a str, SampleValues>,
    /// The fake-quantized values, for the uses that read the tensor quantized.
    fake_quantized: BTreeMap<&'a str, SampleValues>,
}

impl<'a> Tensors<'a> {
    /// Makes a tensor available: it was computed, is cached, or is an input.
    fn fetch(&mut self, name: &'a str, keys: &BTreeMap<&str, u64>, samples: &CachedSamples) -> Result<()> {
        if self.values.contains_key(name) {
            return Ok(());
        }
        let values = keys.get(name).and_then(|key| samples.kept.get(key)).or_else(|| samples.inputs.get(name));
        let values = values.with_context(|| format!("tensor `{name}` does not exist"))?;
        self.values.insert(name, values.clone());
        Ok(())
    }

    /// The input values of a node, fake-quantized where its use is.
    fn read(
        &mut self,
        node_idx: usize,
        node: &NodeProto,
        runtime: &[&'a str],
        view: &PlanView,
    ) -> Result<Vec<SampleValues>> {
        let mut inputs = Vec::with_capacity(runtime.len());
        for &name in runtime {
            let position = node.input.iter().position(|input| input == name).unwrap_or_default();
            let values = &self.values[name];
            inputs.push(match view.params_at(name, (node_idx, position)) {
                None => values.clone(),
                Some(params) => {
                    if !self.fake_quantized.contains_key(name) {
                        let fake_quantized = fake_quantize(values.clone(), params)?;
                        self.fake_quantized.insert(name, fake_quantized);
                    }
                    self.fake_quantized[name].clone()
                }
            });
        }
        Ok(inputs)
    }

    fn used(&mut self, name: &str, uses: &mut BTreeMap<&str, usize>) {
        if let Some(left) = uses.get_mut(name) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.values.remove(name);
                self.fake_quantized.remove(name);
            }
        }
    }
}
