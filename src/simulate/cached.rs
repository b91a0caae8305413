//! Runs a network under many plans; results that two plans share are computed once.
//!
//! A node's output depends on the node, the quantization parameters and weights before it, and the samples. A hash of
//! these is its cache key. A plan that differs in one layer costs only the nodes after that layer.

use super::keyed::{KeyedPlan, KeyedWeight, hash_of, hash_params};
use super::network::{ClipImpl, Network};
use super::prepared_nodes::PreparedNodes;
use super::samples::{Samples, ShapeGroups};
use super::single_node::{NamedValue, NodeRunner, SingleNode};
use super::view::{PlanView, dequantized, fake_quantize};
use crate::engine::Value;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::onnx::{node, tensor};
use crate::plan::QuantPlan;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// Maximum bytes of a model's constants for prepared nodes to be kept: each has a copy of its constants.
const MAX_CONSTANTS: usize = 256 << 20;

/// The group of a node that is prepared for all groups so far.
const OF_ALL: usize = usize::MAX;

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

    /// Forgets all data on outputs whose keys are not in `outputs`.
    fn retain(&mut self, outputs: &BTreeSet<u64>);
}

/// A network that runs under one plan after another.
pub struct CachedNetwork<'a> {
    net: Network<'a>,
    /// Per node, the inputs that are not constants, each once; empty where its outputs are constants.
    runtime: Vec<Vec<&'a str>>,
    /// The groups of samples with equal shapes that were met so far.
    groups: ShapeGroups,
    /// For each group, one value of every tensor that is not a constant, for its shape.
    examples: Vec<BTreeMap<&'a str, Value>>,
    /// For each group and node, the first group whose prepared node also fits this group.
    first_like: Vec<Vec<usize>>,
    /// Prepared nodes by position, hash of the weights, and first group that they fit.
    nodes: HashMap<(usize, u64, usize), Arc<NodeRunner>>,
    /// Whether the constants are so large that each node is prepared again for each run.
    is_large: bool,
    /// The tensors that the cache may keep; `None` for all.
    starts: Option<BTreeSet<&'a str>>,
}

fn bytes_of(values: &SampleValues) -> usize {
    values.iter().map(|value| 4 * value.shape().iter().product::<usize>()).sum()
}

impl<'a> CachedNetwork<'a> {
    /// Prepares a float model for samples with the shapes of the first of `samples`. Other shapes are prepared when
    /// samples have them. `prepared` keeps nodes for other networks.
    ///
    /// # Errors
    /// If a node cannot be run by itself: control flow, or an operator that the engine lacks.
    pub fn new(
        model: &'a ModelProto,
        samples: Samples,
        prepared: Option<&'a PreparedNodes>,
    ) -> Result<CachedNetwork<'a>> {
        let first = samples.values.first().context("there are no samples")?;
        let mut net = Network::new(model, ClipImpl::ByEngine)?;
        net.prepared = prepared;
        let n_bytes: usize =
            net.graph.initializer.iter().filter_map(|tensor| tensor.raw_data.as_ref()).map(Bytes::len).sum();
        let is_large = n_bytes > MAX_CONSTANTS;
        let (runtime, groups, examples, first_like, nodes, starts) = Default::default();
        let mut network = CachedNetwork { net, runtime, groups, examples, first_like, nodes, is_large, starts };
        let first: BTreeMap<&str, &Value> = samples.names.iter().map(String::as_str).zip(first).collect();
        network.group_of(&first);
        network.prepare(0)?;
        Ok(network)
    }

    /// Limits the cache to tensors at which runs start again whose plans quantize a part of `plan`. A node without
    /// quantizers that reads a single tensor, or tensors that follow from a single one, runs again only where that one
    /// has changed.
    pub fn keep_starts(&mut self, plan: &QuantPlan) {
        let of_activations = plan.activations.iter().flat_map(|planned| &planned.quantizer.edges);
        let of_weights = plan.weights.iter().flat_map(|planned| &planned.quantizer.edges);
        let quantized: BTreeSet<usize> = of_activations.chain(of_weights).map(|edge| edge.0).collect();
        let mut starts: BTreeSet<&str> = self.net.outputs.iter().copied().collect();
        // The tensor from which each tensor follows.
        let mut sources: BTreeMap<&str, &str> = BTreeMap::new();
        for (node_idx, (node, runtime)) in self.net.graph.node.iter().zip(&self.runtime).enumerate() {
            let read: BTreeSet<&str> = runtime.iter().map(|name| sources.get(name).copied().unwrap_or(name)).collect();
            let source = read.first().filter(|_| read.len() == 1 && !quantized.contains(&node_idx));
            if source.is_none() {
                starts.extend(runtime);
            }
            let outputs = node.output.iter().map(String::as_str);
            let first = node.output.first().map_or("", String::as_str);
            sources.extend(outputs.map(|name| (name, source.copied().unwrap_or(first))));
        }
        self.starts = Some(starts);
    }

    /// Returns the group of a sample, given its inputs by name. A new group is not prepared yet.
    fn group_of(&mut self, inputs: &BTreeMap<&str, &Value>) -> usize {
        let group = self.groups.of(inputs.values().copied());
        if group == self.examples.len() {
            let names = self.net.graph.input.iter().map(|input| input.name());
            self.examples.push(names.filter_map(|name| Some((name, (*inputs.get(name)?).clone()))).collect());
            self.first_like.push(Vec::with_capacity(self.net.graph.node.len()));
        }
        group
    }

    /// Returns the group of each sample, and prepares new groups.
    fn groups_of(&mut self, samples: &CachedSamples) -> Result<Vec<usize>> {
        let n_before = self.examples.len();
        let of_sample = |sample: usize| {
            let inputs = samples.inputs.iter();
            self.group_of(&inputs.filter_map(|(name, values)| Some((name.as_str(), values.get(sample)?))).collect())
        };
        let groups = (0..samples.n).map(of_sample).collect();
        if n_before < self.examples.len() {
            self.prepare(n_before)?;
        }
        Ok(groups)
    }

    /// Prepares the groups from `first` on.
    fn prepare(&mut self, first: usize) -> Result<()> {
        self.net.set_groups(Vec::new(), self.examples.len());
        self.nodes.retain(|(_, _, of), _| *of != OF_ALL);
        let graph = self.net.graph;
        for (node_idx, node) in graph.node.iter().enumerate() {
            if self.net.skipped_nodes.contains(&node_idx) {
                self.first_like
                    .iter_mut()
                    .enumerate()
                    .skip(first)
                    .for_each(|(group, first_like)| first_like.push(group));
                self.runtime.extend((first == 0).then(Vec::new));
            } else {
                self.prepare_node(node_idx, node, first)?;
            }
        }
        Ok(())
    }

    /// Whether some nodes are not simulated.
    pub fn is_partial(&self) -> bool {
        self.net.is_partial()
    }

    /// Returns the bytes of all intermediate values of the largest sample so far.
    pub fn bytes_per_sample(&self) -> usize {
        let bytes = |value: &Value| 4 * value.shape().iter().product::<usize>();
        self.examples.iter().map(|examples| examples.values().map(bytes).sum()).max().unwrap_or(0)
    }

    /// Multiply-adds of a convolution or matrix product for one sample; 0 for other nodes.
    pub fn multiply_adds(&self, node_idx: usize) -> usize {
        let shape = |name: &str| match self.net.index.initializer(name) {
            Some(initializer) => tensor::shape(initializer).ok(),
            None => self.examples.first()?.get(name).map(|value| value.shape().to_vec()),
        };
        node::multiply_adds(&self.net.graph.node[node_idx], shape).unwrap_or(0)
    }

    /// Runs the node on the example values of the groups from `first` on.
    fn prepare_node(&mut self, node_idx: usize, node: &'a NodeProto, first: usize) -> Result<()> {
        let runtime = self.net.runtime_inputs(node, |name| self.examples[first].contains_key(name))?;
        for group in first..self.examples.len() {
            let inputs = |group: usize| self.inputs_of(group, &runtime);
            let is_like = |other: &usize| self.net.is_alike(node, [(*other, &inputs(*other)), (group, &inputs(group))]);
            let first_like = (0..group).find(is_like).unwrap_or(group);
            self.first_like[group].push(first_like);
        }
        let is_constant = Network::makes_constants(node, &runtime);
        let is_of_initializers = self.net.is_of_initializers(node, &runtime);
        if first == 0 {
            self.runtime.push(if is_constant { Vec::new() } else { runtime.clone() });
        } else if is_of_initializers {
            return Ok(());
        }
        let groups: Vec<usize> = (first..self.examples.len()).collect();
        let single = self.single_node((node_idx, node), &runtime, &[], &groups.iter().copied().collect())?;
        let example = |at: usize, name: &&str| self.examples[groups[at]][*name].clone();
        let made = single.run(&groups, |at| runtime.iter().map(|name| example(at, name)).collect())?;
        self.forget_large();
        for (group, outputs) in groups.into_iter().zip(made) {
            if is_constant {
                self.net.add_constants(node, Some(group).filter(|_| !is_of_initializers), outputs)?;
            } else {
                let names = node.output.iter().filter(|name| !name.is_empty()).map(String::as_str);
                self.examples[group].extend(names.zip(outputs));
            }
        }
        Ok(())
    }

    /// Forgets the prepared nodes of a network with large constants, which would be in memory for each plan.
    fn forget_large(&mut self) {
        if self.is_large {
            self.nodes.clear();
        }
    }

    /// Returns examples of a node's inputs for a group.
    fn inputs_of<'v>(&'v self, group: usize, runtime: &[&'v str]) -> Vec<NamedValue<'v>> {
        let named = |name: &&'v str| Some(NamedValue { name, value: self.examples[group].get(*name)? });
        runtime.iter().filter_map(named).collect()
    }

    /// Prepares the node as a model of its own for these groups. `weights` replace the constants with their names.
    fn single_node(
        &mut self,
        (node_idx, node): (usize, &NodeProto),
        runtime: &[&str],
        weights: &[KeyedWeight],
        groups: &BTreeSet<usize>,
    ) -> Result<SingleNode> {
        let id = hash_of(|h| weights.iter().for_each(|weight| weight.id.hash(h)));
        let of_all = (node_idx, id, OF_ALL);
        let key = |group: usize| (node_idx, id, self.first_like[group][node_idx]);
        let is_known = |group: &usize| self.nodes.contains_key(&of_all) || self.nodes.contains_key(&key(*group));
        if !groups.iter().all(is_known) {
            let replaced = weights.iter().map(|weight| dequantized(weight.planned)).collect::<Result<Vec<_>>>()?;
            let all: Vec<usize> = (0..self.examples.len()).collect();
            let examples: Vec<Vec<NamedValue>> = all.iter().map(|&group| self.inputs_of(group, runtime)).collect();
            let inputs: Vec<&[NamedValue]> = examples.iter().map(|inputs| &inputs[..]).collect();
            let mut made: BTreeMap<usize, Arc<NodeRunner>> = BTreeMap::new();
            match self.net.open_runner(node, &all, &inputs, &replaced) {
                Some(runner) => _ = made.insert(OF_ALL, runner),
                None => {
                    for &group in groups {
                        let first_like = self.first_like[group][node_idx];
                        if !self.nodes.contains_key(&key(group)) && !made.contains_key(&first_like) {
                            made.insert(first_like, self.net.runner(node, group, inputs[group], &replaced)?);
                        }
                    }
                }
            }
            let made = made.into_iter().map(|(of, runner)| ((node_idx, id, of), runner));
            self.nodes.extend(made);
        }
        let runner = |group: usize| {
            let known = self
                .nodes
                .get(&of_all)
                .or_else(|| self.nodes.get(&(node_idx, id, *self.first_like[group].get(node_idx)?)));
            known.filter(|_| groups.contains(&group)).cloned()
        };
        Ok(SingleNode::of_groups((0..self.examples.len()).map(runner).collect()))
    }

    /// Runs the network under `plan`. Returns the outputs, per output and sample. With `keep`, the cache then has the
    /// results of this run, up to its limit, and no others.
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
        let groups = self.groups_of(samples)?;
        let known_groups: BTreeSet<usize> = groups.iter().copied().collect();
        self.net.set_groups(groups, self.examples.len());
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
        self.net.outputs.iter().for_each(|output| *uses.entry(output).or_default() += 1);
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
            let single = self.single_node((node_idx, node), &runtime, &weights, &known_groups)?;
            let inputs = tensors.read((node_idx, node), &runtime, &run.view, &self.net.index)?;
            // This node owns tensors that no later node reads.
            runtime.iter().for_each(|name| tensors.used(name, &mut uses));
            let outputs = single.run_all(inputs, self.net.groups())?;
            self.forget_large();
            // The outputs are not shared, so that a hook changes them in place.
            let mut outputs: Vec<_> = outputs.into_iter().map(Vec::into_iter).collect();
            let names = node.output.iter().filter(|name| !name.is_empty());
            for (position, name) in names.enumerate() {
                let mut values: SampleValues = outputs.iter_mut().filter_map(Iterator::next).collect();
                let key = keys.get(name.as_str()).copied();
                if let (0, Some(hook), Some(key)) = (position, &mut hook, key) {
                    hook.output(&OutputAt { net: &self.net, node_idx, node, key }, &mut values)?;
                }
                ensure!(
                    values.iter().zip(self.net.groups()).all(|(value, &group)| {
                        self.examples[group].get(name.as_str()).map(Value::shape) == Some(value.shape())
                    }),
                    "tensor `{name}`: shape depends on the values of the sample, expected equal shapes for equal input shapes"
                );
                let bytes = bytes_of(&values);
                let is_start = self.starts.as_ref().is_none_or(|starts| starts.contains(name.as_str()));
                if let (true, Some(key)) = (keep && is_start && kept_bytes + bytes <= samples.max_bytes, key) {
                    kept_bytes += bytes;
                    samples.kept.insert(key, values.clone());
                }
                if uses.contains_key(name.as_str()) {
                    tensors.values.insert(name, values);
                }
            }
        }
        let mut outputs = Vec::with_capacity(self.net.outputs.len());
        for &name in &self.net.outputs {
            if self.net.is_constant(name) {
                outputs.push(self.net.constant_values(name).unwrap_or_default());
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

    /// Returns the cache key of each tensor that is not a constant.
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
        let mut pending: Vec<&str> = self.net.outputs.clone();
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

    /// Returns the input values of a node, fake-quantized for quantized uses.
    fn read(
        &mut self,
        (node_idx, node): (usize, &NodeProto),
        runtime: &[&'a str],
        view: &PlanView,
        index: &GraphIndex,
    ) -> Result<Vec<SampleValues>> {
        let mut inputs = Vec::with_capacity(runtime.len());
        for &name in runtime {
            let position = node.input.iter().position(|input| input == name).unwrap_or_default();
            inputs.push(match view.params_at(name, (node_idx, position)) {
                None => self.values[name].clone(),
                Some(params) => {
                    if !self.fake_quantized.contains_key(name) {
                        let values = match (view.is_always_quantized(name, index), self.values.get_mut(name)) {
                            (true, Some(values)) => std::mem::take(values),
                            _ => self.values[name].clone(),
                        };
                        self.fake_quantized.insert(name, fake_quantize(values, params)?);
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
