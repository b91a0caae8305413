//! A quantized network of a forward pass: a plan, its values during the pass, and its results.

use super::evaluated::EvaluatedFloat;
use super::network::Network;
use super::node::NodeAt;
use super::quantized_bias::QuantizedBias;
use super::view::{PlanView, dequantized, fake_quantize};
use crate::engine::Value;
use crate::metrics::Measurement;
use crate::onnx::graph::Edge;
use crate::onnx::tensor;
use crate::plan::{PlannedBias, QuantPlan, RangeCandidate};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// A quantized network and its results.
pub struct Candidate {
    /// The plan. Hooks may change weights that have not run, and ranges by [`Candidate::set_range`].
    pub plan: QuantPlan,
    /// Index of the first sample that the candidate runs on.
    pub first: usize,
    /// Figures on the samples of the evaluation; `None` before the pass has ended.
    pub measured: Option<Measurement>,
    /// The outputs of the graph, per output and sample.
    pub outputs: Vec<Vec<Value>>,
    /// New biases by node and input, one value per output channel.
    pub biases: BTreeMap<Edge, Vec<f32>>,
    /// The new bias of the node that runs, where it has its own quantization parameters. One hook sets it, and later
    /// hooks may compensate for its rounding.
    pub new_bias: Option<QuantizedBias>,
    /// Seconds spent on the candidate, without the float network.
    pub seconds: f64,
    view: PlanView,
    tensors: BTreeMap<String, CandidateTensor>,
}

/// A tensor of a candidate, one value per sample.
struct CandidateTensor {
    /// The float values; empty where every use reads the fake-quantized values.
    values: Vec<Value>,
    /// The fake-quantized values, where the tensor is quantized.
    fake_quantized: Option<Vec<Value>>,
}

/// The bias that a layer runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BiasOf {
    /// The float model's bias.
    Model,
    /// The plan's bias, where it has its own quantization parameters; else the float model's.
    Plan,
}

impl Candidate {
    /// Returns the candidate for `plan`, for samples from index `first` on.
    ///
    /// # Errors
    /// If the plan's codes are not integers times a scale.
    pub fn new(plan: QuantPlan, first: usize) -> Result<Candidate> {
        Ok(Candidate {
            view: PlanView::of(&plan)?,
            plan,
            first,
            measured: None,
            outputs: Vec::new(),
            biases: BTreeMap::new(),
            new_bias: None,
            seconds: 0.0,
            tensors: BTreeMap::new(),
        })
    }

    /// Returns the plan's quantizers by tensor and use.
    pub fn view(&self) -> &PlanView {
        &self.view
    }

    /// Sets the range of a group of activations; the pass must not have reached the group yet.
    pub fn set_range(&mut self, group: usize, chosen: &RangeCandidate) {
        for planned in self.plan.activations.iter_mut().filter(|p| p.quantizer.group == group) {
            if planned.params == chosen.params {
                continue;
            }
            let RangeCandidate { observer, range, params } = *chosen;
            (planned.observer, planned.range, planned.params) = (observer, range, params);
            self.view.set_params(&planned.quantizer.tensor, params);
        }
    }

    /// Returns the tensor's value for a sample, fake-quantized where the float value is not kept.
    pub(super) fn value(&self, name: &str, sample: usize) -> Option<&Value> {
        let (tensor, position) = (self.tensors.get(name)?, sample.checked_sub(self.first)?);
        tensor.values.get(position).or_else(|| tensor.fake_quantized.as_ref()?.get(position))
    }

    /// Returns the values of `name` that the node reads.
    pub fn read(&self, at: &NodeAt, name: &str) -> &[Value] {
        let tensor = &self.tensors[name];
        let position = at.node.input.iter().position(|input| input == name);
        let quantized = |position| self.view.params_at(name, (at.node_idx, position)).is_some();
        let fake_quantized = tensor.fake_quantized.as_deref();
        fake_quantized.filter(|_| position.is_some_and(quantized)).unwrap_or(&tensor.values)
    }

    /// Returns the values of the node's inputs that are not constants.
    pub(super) fn inputs(&self, at: &NodeAt) -> Vec<Vec<Value>> {
        at.runtime.iter().map(|name| self.read(at, name).to_vec()).collect()
    }

    /// Runs a layer with its quantized weight, and frees the tensors that no later node reads.
    ///
    /// # Errors
    /// If the layer cannot be run by itself.
    pub fn run_layer(&mut self, net: &Network, at: &NodeAt, bias: BiasOf) -> Result<Vec<Vec<Value>>> {
        let weight_idx = self.view.weight_of(at.node_idx, at.node);
        let weight_idx = weight_idx.context("internal error: a layer without a weight")?;
        let mut constants = vec![dequantized(&self.plan.weights[weight_idx])?];
        if bias == BiasOf::Plan {
            let stored =
                |bias: &PlannedBias| tensor::from_f32(&bias.quantizer.tensor, &bias.shape, &bias.dequantized());
            constants.extend(self.quantized_bias(at.node_idx).map(stored).transpose()?);
        }
        let inputs = self.inputs(at);
        at.last.iter().for_each(|name| self.free(name));
        let examples = net.examples(at.runtime, |name, sample| {
            let position = at.runtime.iter().position(|input| *input == name)?;
            inputs[position].get(sample.checked_sub(self.first)?)
        });
        let single = net.single_node(at.node, &examples, &constants)?;
        single.run_all(inputs, &net.groups()[self.first..])
    }

    /// Returns the node's planned bias, where it has its own quantization parameters.
    pub fn quantized_bias(&self, node_idx: usize) -> Option<&PlannedBias> {
        self.plan.biases.iter().filter(|bias| bias.qtype.is_some()).find(|bias| bias.quantizer.edge.0 == node_idx)
    }

    /// Copies the new biases of a node whose result comes from `other`.
    pub(super) fn share_biases(&mut self, other: &Candidate, node_idx: usize) {
        let edges = (node_idx, 0)..(node_idx + 1, 0);
        self.biases.extend(other.biases.range(edges).map(|(edge, values)| (*edge, values.clone())));
    }

    /// Stores a tensor. `shared` is a candidate with the same `values`.
    pub(super) fn store(
        &mut self,
        net: &Network,
        name: &str,
        values: Vec<Value>,
        shared: Option<&Candidate>,
    ) -> Result<()> {
        let Some(params) = self.view.params(name) else {
            self.tensors.insert(name.to_string(), CandidateTensor { values, fake_quantized: None });
            return Ok(());
        };
        let shared = shared.filter(|shared| shared.view.params(name) == Some(params));
        // A clone shares its values, so that fake quantization has to copy them.
        let kept = if self.view.is_always_quantized(name, &net.index) { Vec::new() } else { values.clone() };
        let fake_quantized = match shared.and_then(|shared| shared.tensors.get(name)?.fake_quantized.clone()) {
            Some(found) => found,
            None => fake_quantize(values, params)?,
        };
        self.tensors.insert(name.to_string(), CandidateTensor { values: kept, fake_quantized: Some(fake_quantized) });
        Ok(())
    }

    /// Frees a tensor.
    pub(super) fn free(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// Returns the values of a tensor for its evaluation: fake-quantized where the network output is quantized or no
    /// float values are kept.
    fn seen(&self, name: &str) -> Option<&[Value]> {
        let tensor = self.tensors.get(name)?;
        let quantized = tensor.values.is_empty() || self.view.output_params(name).is_some();
        let fake_quantized = tensor.fake_quantized.as_deref();
        Some(fake_quantized.filter(|_| quantized).unwrap_or(&tensor.values))
    }

    /// Compares the candidate with the float network `net` over the samples from index `evaluate_from`.
    pub(super) fn evaluate(&mut self, net: &Network, float: &EvaluatedFloat, evaluate_from: usize) -> Result<()> {
        let tensors = float.outputs().iter().map(|output| self.seen(&output.tensor));
        let tensors: Vec<&[Value]> = tensors.map(Option::unwrap_or_default).collect();
        let are_constant: Vec<bool> = float.outputs().iter().map(|output| net.is_constant(&output.tensor)).collect();
        let samples = evaluate_from.max(self.first)..float.n_samples();
        let sums = float.sums(samples, |output_idx, sample| {
            let found = tensors[output_idx].get(sample - self.first);
            found.or_else(|| float.value(output_idx, sample).filter(|_| are_constant[output_idx]))
        })?;
        self.measured = Some(Measurement::new(float.prepared().clone(), sums));
        Ok(())
    }

    /// Stores an output of the graph.
    pub(super) fn finish(&mut self, output: &str) {
        if let Some(values) = self.seen(output).map(<[Value]>::to_vec) {
            self.outputs.push(values);
        }
    }
}
