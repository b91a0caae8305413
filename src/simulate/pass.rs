//! The float network and quantized ones side by side, node by node, over all samples at once.
//!
//! Each node runs on every sample before the next node, so that a hook can change a layer when its quantized input is
//! known and its output is not. The float network runs once for all quantized networks, or not at all where another
//! pass kept its values. A tensor is freed after its last use: memory holds the live tensors of every network for all
//! samples.

use super::branch::Branch;
use super::candidate::Candidate;
use super::evaluated::EvaluatedFloat;
use super::hook::{LayerHook, NoHook, TensorAt};
use super::network::{ClipImpl, Network};
use super::node::NodeAt;
use super::output_options::OutputOptions;
use super::prepared_nodes::PreparedNodes;
use super::reference::FloatReference;
use super::samples::{Samples, ShapeGroups};
use super::simulated_part::simulated_graph;
use crate::engine::Value;
use crate::metrics::{EvaluatedOutput, OVERLAPS, SQNR, of_task};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::plan::QuantPlan;
use crate::progress::{Progress, Tick};
use anyhow::{Context, Result, ensure};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Called at each tensor of the float network.
type OnFloat<'a> = dyn FnMut(&Network, &str, &[Value]) -> Result<()> + 'a;

/// A forward pass over some samples.
pub struct ForwardPass<'a> {
    net: Network<'a>,
    /// The simulated part of the graph.
    simulated: Cow<'a, GraphProto>,
    /// Number of samples, from the first on, that hooks learn from.
    n_tune: usize,
    /// Index of the first sample that is evaluated.
    evaluate_from: usize,
    evaluated: Vec<EvaluatedOutput>,
    options: OutputOptions<'a>,
    /// Live tensors of the float network, one value per sample.
    float: BTreeMap<String, Vec<Value>>,
    /// Reference values of the float network, which is then not run.
    reference: Option<&'a FloatReference>,
    /// Reference values to keep for other passes.
    kept: Option<FloatReference>,
    on_float: Option<Box<OnFloat<'a>>>,
    /// Called after each node.
    tick: Option<Tick>,
    branches: Vec<Branch<'a>>,
    uses_left: BTreeMap<&'a str, usize>,
}

/// The earlier branch whose values a branch shares, if any.
type SharedWith = Option<usize>;

/// The source of a node's outputs in a branch.
struct BranchSource {
    shared: SharedWith,
    /// Whether the node's inputs in the branch are the float network's.
    reads_float: bool,
}

impl<'a> ForwardPass<'a> {
    /// Creates a pass over `model`, a prepared float model, without candidates. Hooks learn from the first `n_tune`
    /// samples; the others are held out.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn new(model: &'a ModelProto, n_tune: usize) -> Result<ForwardPass<'a>> {
        let net = Network::new(model, ClipImpl::InPlace)?;
        let simulated = simulated_graph(model)?;
        let mut uses_left: BTreeMap<&str, usize> = BTreeMap::new();
        let inputs = net.nodes().flat_map(|(_, node)| &node.input).map(String::as_str);
        inputs.chain(net.outputs.iter().copied()).for_each(|name| *uses_left.entry(name).or_default() += 1);
        let options = OutputOptions::default();
        let evaluated = EvaluatedOutput::with_scores(&simulated, options.axes);
        // Evaluated tensors are kept until the pass has ended.
        for output in &evaluated {
            if let Some(left) = uses_left.get_mut(output.tensor.as_str()) {
                *left += 1;
            }
        }
        let (float, reference, kept, on_float, tick, branches) = Default::default();
        Ok(ForwardPass {
            net,
            simulated,
            n_tune,
            evaluate_from: n_tune,
            evaluated,
            options,
            float,
            reference,
            kept,
            on_float,
            tick,
            branches,
            uses_left,
        })
    }

    /// Adds a candidate. All candidates must have the weights of the first, in the same order.
    #[must_use]
    pub fn with(mut self, candidate: Candidate, hook: impl LayerHook + 'a) -> ForwardPass<'a> {
        self.branches.push(Branch { candidate, hook: Box::new(hook) });
        self
    }

    /// Sets the user's options for the evaluation of outputs.
    #[must_use]
    pub fn evaluated_with(mut self, options: OutputOptions<'a>) -> ForwardPass<'a> {
        self.evaluated = EvaluatedOutput::with_scores(&self.simulated, options.axes);
        self.options = options;
        self
    }

    /// Shares prepared nodes with other passes.
    #[must_use]
    pub fn sharing(mut self, prepared: &'a PreparedNodes) -> ForwardPass<'a> {
        self.net.prepared = Some(prepared);
        self
    }

    /// Evaluates on all samples, including those that hooks learn from.
    #[must_use]
    pub fn evaluated_on_all_samples(mut self) -> ForwardPass<'a> {
        self.evaluate_from = 0;
        self
    }

    /// Takes channel sums and evaluated tensors from `reference`, kept by another pass over the same samples, and does
    /// not run the float network.
    #[must_use]
    pub fn with_reference(mut self, reference: Option<&'a FloatReference>) -> ForwardPass<'a> {
        self.reference = reference;
        self
    }

    /// Calls `on_float` for every tensor of the float network, with its values per sample. Its errors end the pass.
    #[must_use]
    pub fn on_float_tensor(
        mut self,
        on_float: impl FnMut(&Network, &str, &[Value]) -> Result<()> + 'a,
    ) -> ForwardPass<'a> {
        self.on_float = Some(Box::new(on_float));
        self
    }

    /// Reports each node as a step of a stage.
    #[must_use]
    pub fn reporting(mut self, progress: &Progress, stage: &str) -> ForwardPass<'a> {
        self.tick = Some(progress(stage, self.net.graph.node.len()));
        self
    }

    /// Runs the graph and returns the candidates with their results.
    ///
    /// # Errors
    /// If a node cannot be run by itself: control flow, or shapes that depend on values.
    pub fn run(mut self, samples: Samples) -> Result<Vec<Candidate>> {
        self.pass(samples)?;
        Ok(self.branches.into_iter().map(|branch| branch.candidate).collect())
    }

    /// As [`ForwardPass::run`]. Also returns reference values for other passes over these samples.
    ///
    /// # Errors
    /// As [`ForwardPass::run`].
    pub fn run_and_keep(mut self, samples: Samples) -> Result<(Vec<Candidate>, FloatReference)> {
        self.kept = Some(FloatReference::default());
        self.pass(samples)?;
        let candidates = self.branches.into_iter().map(|branch| branch.candidate);
        Ok((candidates.collect(), self.kept.unwrap_or_default()))
    }

    fn pass(&mut self, samples: Samples) -> Result<()> {
        let mut groups = ShapeGroups::default();
        let of_samples = samples.values.iter().map(|sample| groups.of(sample)).collect();
        self.net.set_groups(of_samples, groups.n_groups());
        self.branches.iter_mut().try_for_each(|branch| branch.hook.begin(&mut branch.candidate))?;
        for (position, name) in samples.names.iter().enumerate() {
            let values: Vec<Value> = samples.values.iter().map(|s| s[position].clone()).collect();
            let first: Vec<usize> = self.branches.iter().map(|b| b.candidate.first).collect();
            let made = first.iter().map(|&first| values[first..].to_vec()).collect();
            let shared: Vec<SharedWith> =
                (0..first.len()).map(|k| first[..k].iter().position(|f| *f == first[k])).collect();
            let float = if self.reference.is_some() { Vec::new() } else { values };
            self.store(name, float, made, &shared)?;
        }
        for (node_idx, node) in self.net.nodes() {
            self.node(node_idx, node)?;
            for name in &node.input {
                self.used(name);
            }
            self.tick.iter().for_each(|tick| tick());
        }
        self.evaluate(samples)?;
        for branch in &mut self.branches {
            self.net.outputs.iter().for_each(|output| branch.candidate.finish(output));
        }
        Ok(())
    }

    /// Compares the candidates with the float network.
    fn evaluate(&mut self, samples: Samples) -> Result<()> {
        if self.branches.is_empty() {
            return Ok(());
        }
        let evaluated = self.reference.and_then(|reference| reference.evaluated.clone());
        let float = match evaluated {
            Some(evaluated) => evaluated,
            None => {
                let values = |output: &EvaluatedOutput| {
                    let float = self.float.get(&output.tensor).cloned();
                    float.or_else(|| self.net.constant_values(&output.tensor)).unwrap_or_default()
                };
                let values: Vec<Vec<Value>> = self.evaluated.iter().map(values).collect();
                let (outputs, layout) = (self.evaluated.clone(), samples.layout());
                let head = self.options.head(&outputs, &values, layout.batch, self.net.is_partial())?;
                let mut metrics = [&OVERLAPS[..], &[SQNR]].concat();
                metrics.extend(of_task(head.as_ref()));
                Arc::new(EvaluatedFloat::new(&metrics, outputs, &values, layout, head.as_ref())?)
            }
        };
        let evaluate_from = self.evaluate_from;
        let net = &self.net;
        self.branches.iter_mut().try_for_each(|branch| branch.candidate.evaluate(net, &float, evaluate_from))?;
        if let Some(kept) = &mut self.kept {
            kept.evaluated = Some(float);
        }
        Ok(())
    }

    /// Returns the tensor's value for a sample in any of the networks, for its shape and type.
    fn value(&self, name: &str, sample: usize) -> Option<&Value> {
        let float = self.float.get(name)?.get(sample);
        float.or_else(|| self.branches.iter().find_map(|branch| branch.candidate.value(name, sample)))
    }

    fn used(&mut self, name: &str) {
        if let Some(left) = self.uses_left.get_mut(name) {
            *left -= 1;
            if *left == 0 {
                self.float.remove(name);
                self.branches.iter_mut().for_each(|branch| branch.candidate.free(name));
            }
        }
    }

    /// Stores a tensor of the float network and of every candidate. `shared` names, for each candidate, the earlier
    /// candidate with the same values.
    fn store(&mut self, name: &str, float: Vec<Value>, made: Vec<Vec<Value>>, shared: &[SharedWith]) -> Result<()> {
        if self.uses_left.get(name).is_none_or(|left| *left == 0) {
            return Ok(());
        }
        let same = self.net.have_shapes_of_inputs(&float, 0);
        ensure!(
            same,
            "tensor `{name}`: shape depends on the values of the sample, expected equal shapes for equal input shapes"
        );
        if let Some(on_float) = &mut self.on_float {
            on_float(&self.net, name, &float)?;
        }
        for (k, (values, shared)) in made.into_iter().zip(shared).enumerate() {
            let (earlier, rest) = self.branches.split_at_mut(k);
            let start = Instant::now();
            let shared = shared.map(|shared| &earlier[shared].candidate);
            let Branch { candidate, hook } = &mut rest[0];
            let at = TensorAt { name, float: &float, quantized: &values, n_tune: self.n_tune };
            hook.tensor(&self.net, &at, candidate)?;
            if hook.runs_on_float_inputs() {
                candidate.store(&self.net, name, float[candidate.first..].to_vec(), None)?;
            } else {
                candidate.store(&self.net, name, values, shared)?;
            }
            candidate.seconds += start.elapsed().as_secs_f64();
        }
        self.float.insert(name.to_string(), float);
        Ok(())
    }

    /// Runs a node with constant outputs, for each group of samples.
    fn constants(&mut self, node: &NodeProto, runtime: &[&str]) -> Result<()> {
        let examples = self.net.examples(runtime, |name, sample| self.value(name, sample));
        let is_of_initializers = self.net.is_of_initializers(node, runtime);
        let single = self.net.single_node(node, &examples, &[])?;
        let mut made = Vec::new();
        for (group, inputs) in examples.iter().enumerate() {
            let Some(inputs) = inputs.as_ref().filter(|_| self.net.has_constants(node, group)) else { continue };
            let inputs: Vec<Value> = inputs.iter().map(|input| input.value.clone()).collect();
            let outputs = single.run(&[group], |_| inputs.clone())?.into_iter().flatten().collect();
            made.push((Some(group).filter(|_| !is_of_initializers), outputs));
            if is_of_initializers {
                break;
            }
        }
        made.into_iter().try_for_each(|(group, outputs)| self.net.add_constants(node, group, outputs))
    }

    /// Returns the tensors of `runtime` that are read for the last time by the node.
    fn last_read<'n>(&self, node: &NodeProto, runtime: &[&'n str]) -> Vec<&'n str> {
        let n_reads = |name: &str| node.input.iter().filter(|input| *input == name).count();
        runtime.iter().copied().filter(|name| self.uses_left.get(name) == Some(&n_reads(name))).collect()
    }

    /// Returns the values of the tensors `runtime` in the float network. Values of `last` are moved, other values
    /// shared.
    fn take_float(&mut self, runtime: &[&str], last: &[&str]) -> Vec<Vec<Value>> {
        let take = |name: &&str| match self.float.get_mut(*name) {
            Some(values) if last.contains(name) => std::mem::take(values),
            values => values.map(|values| values.clone()).unwrap_or_default(),
        };
        runtime.iter().map(take).collect()
    }

    /// Returns the source of a node's outputs in each branch.
    fn sources(&self, at: &NodeAt) -> Vec<BranchSource> {
        let of_branch = |(k, branch): (usize, &Branch)| BranchSource {
            shared: self.branches[..k].iter().position(|other| branch.shares(other, at)),
            reads_float: self.reference.is_none() && at.single.is_some() && branch.reads_float(at, &self.float),
        };
        self.branches.iter().enumerate().map(of_branch).collect()
    }

    fn node(&mut self, node_idx: usize, node: &'a NodeProto) -> Result<()> {
        let runtime = self.net.runtime_inputs(node, |name| self.float.contains_key(name))?;
        if Network::makes_constants(node, &runtime) {
            return self.constants(node, &runtime);
        }
        let examples = self.net.examples(&runtime, |name, sample| self.value(name, sample));
        let branch = self.branches.first();
        let is_layer = branch.is_some_and(|b| b.candidate.view().weight_of(node_idx, node).is_some());
        let is_run = self.reference.is_none() || !is_layer;
        let single = is_run.then(|| self.net.single_node(node, &examples, &[])).transpose()?;
        let are_kept = is_layer && self.branches.iter().any(|branch| branch.hook.reads_inputs());
        let last = if are_kept { Vec::new() } else { self.last_read(node, &runtime) };
        let sums = self.reference.and_then(|known| known.sums(node_idx, self.n_tune));
        let at = NodeAt {
            node_idx,
            node,
            runtime: &runtime,
            last: &last,
            single: single.as_ref(),
            float_inputs: &[],
            float: &[],
            sums: sums.map_or_else(OnceCell::new, OnceCell::from),
            n_tune: self.n_tune,
        };
        let sources = self.sources(&at);
        // The network that runs owns tensors that it reads for the last time, so that they may change in place.
        for (branch, source) in self.branches.iter_mut().zip(&sources) {
            if source.shared.is_some() || (source.reads_float && !is_layer) {
                last.iter().for_each(|name| branch.candidate.free(name));
            }
        }
        let float = match (&single, self.reference) {
            (Some(single), None) => single.run_all(self.take_float(&runtime, &last), self.net.groups())?,
            _ => Vec::new(),
        };
        let inputs: Vec<&[Value]> = runtime.iter().map(|name| &self.float[*name][..]).collect();
        let at = NodeAt { float_inputs: &inputs, float: &float, ..at };
        let mut made: Vec<Vec<Vec<Value>>> = Vec::with_capacity(self.branches.len());
        for (k, source) in sources.iter().enumerate() {
            let (earlier, rest) = self.branches.split_at_mut(k);
            let branch = &mut rest[0];
            let start = Instant::now();
            made.push(match source.shared {
                Some(same) => {
                    branch.candidate.share_biases(&earlier[same].candidate, node_idx);
                    made[same].clone()
                }
                None => branch.node(&self.net, &at, source.reads_float)?,
            });
            branch.candidate.seconds += start.elapsed().as_secs_f64();
        }
        let shared: Vec<SharedWith> = sources.into_iter().map(|source| source.shared).collect();
        if let (Some(kept), Some(sums)) = (&mut self.kept, at.sums.into_inner()) {
            kept.keep_sums(node_idx, sums);
        }
        let names: Vec<&String> = node.output.iter().filter(|name| !name.is_empty()).collect();
        let float = by_output(float, names.len());
        let made = made.into_iter().map(|made| by_output(made, names.len()));
        let mut made: Vec<std::vec::IntoIter<Vec<Value>>> = made.map(Vec::into_iter).collect();
        for (name, float) in names.into_iter().zip(float) {
            let made = made.iter_mut().map(|made| made.next().unwrap_or_default()).collect();
            self.store(name, float, made, &shared)?;
        }
        Ok(())
    }
}

/// Transposes values from per sample and output to per output and sample.
fn by_output(values: Vec<Vec<Value>>, n_outputs: usize) -> Vec<Vec<Value>> {
    let mut outputs: Vec<Vec<Value>> = Vec::new();
    outputs.resize_with(n_outputs, || Vec::with_capacity(values.len()));
    for sample in values {
        outputs.iter_mut().zip(sample).for_each(|(output, value)| output.push(value));
    }
    outputs
}

/// Runs `plan` on the float `model` without writing it: values are fake-quantized in float32, whatever the bits. Biases
/// stay float, except those with their own quantization parameters.
///
/// # Errors
/// If a node cannot be run by itself; the message names it.
pub fn simulate(model: &ModelProto, plan: &QuantPlan, samples: Samples) -> Result<Candidate> {
    let candidate = Candidate::new(plan.clone(), 0)?;
    let mut candidates = ForwardPass::new(model, 0)?.with(candidate, NoHook).run(samples)?;
    candidates.pop().context("internal error: a pass without a candidate")
}
