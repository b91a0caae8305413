//! One quantized network of a forward pass: a plan, and the values that it makes on the way.

use super::evaluated::EvaluatedFloat;
use super::network::Network;
use super::node::NodeAt;
use super::quantized_bias::QuantizedBias;
use super::single_node::NamedValue;
use super::view::{PlanView, dequantized, fake_quantize};
use crate::engine::Value;
use crate::metrics::Measurement;
use crate::onnx::graph::Edge;
use crate::onnx::tensor;
use crate::plan::{PlannedBias, QuantPlan, RangeCandidate};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// A quantized network, and what was found on its way.
pub struct Candidate {
    /// Its plan; hooks may change weights that were not run, and ranges by [`Candidate::set_range`].
    pub plan: QuantPlan,
    /// The first sample that it sees.
    pub first: usize,
    /// Its figures over the samples that evaluate; none before the pass has ended.
    pub measured: Option<Measurement>,
    /// The outputs of the graph, per output and sample.
    pub outputs: Vec<Vec<Value>>,
    /// New biases, a value per output channel: at which node, and which of its inputs.
    pub biases: BTreeMap<Edge, Vec<f32>>,
    /// The new bias of the node that runs, where it has quantization parameters of its own: one hook gives it, and hooks
    /// behind it may make up for what these leave.
    pub new_bias: Option<QuantizedBias>,
    /// Time spent on it, without the float network.
    pub seconds: f64,
    view: PlanView,
    tensors: BTreeMap<String, CandidateTensor>,
}

/// One tensor, a value per sample.
struct CandidateTensor {
    /// Empty where every use reads the fake-quantized values.
    values: Vec<Value>,
    /// The values fake-quantized, where the tensor is quantized.
    fake_quantized: Option<Vec<Value>>,
}

/// Which bias a layer is run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BiasOf {
    /// The float model's.
    Model,
    /// The plan's, where it has quantization parameters of its own; else the float model's.
    Plan,
}

impl Candidate {
    /// The network of `plan`, for the samples from `first` on.
    ///
    /// # Errors
    /// If the plan has codes that are no integers times a scale.
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

    /// Where its plan quantizes.
    pub fn view(&self) -> &PlanView {
        &self.view
    }

    /// Gives a group of activations another range; no tensor of it may have met its values.
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

    /// A tensor's value for some sample.
    pub(super) fn example(&self, name: &str) -> Option<&Value> {
        let tensor = self.tensors.get(name)?;
        tensor.values.first().or_else(|| tensor.fake_quantized.as_ref()?.first())
    }

    /// The values that the node's use of `name` reads.
    pub fn read(&self, at: &NodeAt, name: &str) -> &[Value] {
        let tensor = &self.tensors[name];
        let position = at.node.input.iter().position(|input| input == name);
        let quantized = |position| self.view.params_at(name, (at.node_idx, position)).is_some();
        let fake_quantized = tensor.fake_quantized.as_deref();
        fake_quantized.filter(|_| position.is_some_and(quantized)).unwrap_or(&tensor.values)
    }

    /// The values that the node reads of its inputs at run time.
    pub(super) fn inputs(&self, at: &NodeAt) -> Vec<&[Value]> {
        at.runtime.iter().map(|name| self.read(at, name)).collect()
    }

    /// Runs a layer with its quantized weight.
    ///
    /// # Errors
    /// If the layer cannot be run by itself.
    pub fn run_layer(&self, net: &Network, at: &NodeAt, bias: BiasOf) -> Result<Vec<Vec<Value>>> {
        let weight_idx = self.view.weight_of(at.node_idx, at.node);
        let weight_idx = weight_idx.context("internal error: a layer without a weight")?;
        let mut constants = vec![dequantized(&self.plan.weights[weight_idx])?];
        if bias == BiasOf::Plan {
            let stored =
                |bias: &PlannedBias| tensor::from_f32(&bias.quantizer.tensor, &bias.shape, &bias.dequantized());
            constants.extend(self.quantized_bias(at.node_idx).map(stored).transpose()?);
        }
        let inputs = self.inputs(at);
        let first: Vec<NamedValue> = at
            .runtime
            .iter()
            .zip(&inputs)
            .filter_map(|(name, values)| Some(NamedValue { name, value: values.first()? }))
            .collect();
        let single = net.single_node(at.node, &first, &constants)?;
        single.run_all(&inputs, at.n_samples - self.first)
    }

    /// The node's bias as planned, where it has quantization parameters of its own.
    pub fn quantized_bias(&self, node_idx: usize) -> Option<&PlannedBias> {
        self.plan.biases.iter().filter(|bias| bias.qtype.is_some()).find(|bias| bias.quantizer.edge.0 == node_idx)
    }

    /// Takes over the new biases of a node whose result is shared with `other`.
    pub(super) fn share_biases(&mut self, other: &Candidate, node_idx: usize) {
        let edges = (node_idx, 0)..(node_idx + 1, 0);
        self.biases.extend(other.biases.range(edges).map(|(edge, values)| (*edge, values.clone())));
    }

    /// Keeps a tensor. `shared` is a candidate that has the same `values`.
    pub(super) fn store(
        &mut self,
        net: &Network,
        name: &str,
        values: Vec<Value>,
        shared: Option<&Candidate>,
    ) -> Result<()> {
        let (Some(params), Some(edges)) = (self.view.params(name), self.view.edges(name)) else {
            self.tensors.insert(name.to_string(), CandidateTensor { values, fake_quantized: None });
            return Ok(());
        };
        let shared = shared.filter(|shared| shared.view.params(name) == Some(params));
        let all = !net.index.is_output(name) && net.index.consumers(name).iter().all(|edge| edges.contains(edge));
        // Values that are kept have two holders, and are copied.
        let kept = if all { Vec::new() } else { values.clone() };
        let fake_quantized = match shared.and_then(|shared| shared.tensors.get(name)?.fake_quantized.clone()) {
            Some(found) => found,
            None => fake_quantize(values, params)?,
        };
        self.tensors.insert(name.to_string(), CandidateTensor { values: kept, fake_quantized: Some(fake_quantized) });
        Ok(())
    }

    /// Forgets a tensor.
    pub(super) fn free(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// The values that leave the network by the name of an output, or that the nodes behind read.
    fn seen(&self, name: &str) -> Option<&[Value]> {
        let tensor = self.tensors.get(name)?;
        let quantized = tensor.values.is_empty() || self.view.output_params(name).is_some();
        let fake_quantized = tensor.fake_quantized.as_deref();
        Some(fake_quantized.filter(|_| quantized).unwrap_or(&tensor.values))
    }

    /// Compares it with the float network, over the samples from `evaluate_from` on.
    pub(super) fn evaluate(&mut self, float: &EvaluatedFloat, evaluate_from: usize) -> Result<()> {
        let tensors = float.outputs().iter().map(|output| self.seen(&output.tensor));
        let tensors: Vec<&[Value]> = tensors.map(Option::unwrap_or_default).collect();
        let samples = evaluate_from.max(self.first)..float.n_samples();
        let sums = float.sums(samples, |output_idx, sample| tensors[output_idx].get(sample - self.first))?;
        self.measured = Some(Measurement::new(float.prepared().clone(), sums));
        Ok(())
    }

    /// Keeps an output of the graph.
    pub(super) fn finish(&mut self, output: &str) {
        if let Some(values) = self.seen(output).map(<[Value]>::to_vec) {
            self.outputs.push(values);
        }
    }
}
