//! A plan by tensor and use, and its fake quantization.

use crate::engine::Value;
use crate::onnx::graph::{Edge, GraphIndex};
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::onnx::tensor;
use crate::plan::{PlannedWeight, QuantPlan};
use crate::quant::{Codes, QuantParams};
use anyhow::{Result, ensure};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A plan's quantizers by tensor and use.
pub struct PlanView {
    activations: BTreeMap<String, Activation>,
    /// Indices of the plan's weights, by use.
    weights: BTreeMap<Edge, usize>,
}

struct Activation {
    params: QuantParams,
    /// The uses that read it fake-quantized.
    edges: BTreeSet<Edge>,
    /// Whether it is a fake-quantized output of the network.
    network_output: bool,
}

impl PlanView {
    /// Indexes `plan`.
    ///
    /// # Errors
    /// If the plan's codes are not integers times a scale.
    pub fn of(plan: &QuantPlan) -> Result<PlanView> {
        let params = plan.activations.iter().map(|planned| &planned.params);
        let of_weights = plan.weights.iter().flat_map(|planned| &planned.params);
        let is_affine = |params: &QuantParams| params.codes == Codes::Affine;
        ensure!(
            params.chain(of_weights).all(is_affine),
            "the plan has codes that are not affine, expected affine codes for a simulation"
        );
        let activations = plan.activations.iter().map(|planned| {
            let quantizer = &planned.quantizer;
            let activation = Activation {
                params: planned.params,
                edges: quantizer.edges.iter().copied().collect(),
                network_output: quantizer.network_output,
            };
            (quantizer.tensor.clone(), activation)
        });
        let weights = plan
            .weights
            .iter()
            .enumerate()
            .flat_map(|(weight_idx, planned)| planned.quantizer.edges.iter().map(move |edge| (*edge, weight_idx)));
        Ok(PlanView { activations: activations.collect(), weights: weights.collect() })
    }

    /// Returns the parameters of a tensor, even if not all of its uses are quantized.
    pub fn params(&self, tensor: &str) -> Option<&QuantParams> {
        Some(&self.activations.get(tensor)?.params)
    }

    /// Returns the parameters of a tensor for one use; `None` where the use is float.
    pub fn params_at(&self, tensor: &str, edge: Edge) -> Option<&QuantParams> {
        let activation = self.activations.get(tensor)?;
        activation.edges.contains(&edge).then_some(&activation.params)
    }

    /// Returns the parameters of a tensor as an output of the network; `None` where the output is float.
    pub fn output_params(&self, tensor: &str) -> Option<&QuantParams> {
        let activation = self.activations.get(tensor)?;
        activation.network_output.then_some(&activation.params)
    }

    /// Replaces the parameters of a quantized tensor.
    pub(super) fn set_params(&mut self, tensor: &str, params: QuantParams) {
        if let Some(activation) = self.activations.get_mut(tensor) {
            activation.params = params;
        }
    }

    /// Returns the uses that read the tensor fake-quantized.
    pub fn edges(&self, tensor: &str) -> Option<&BTreeSet<Edge>> {
        Some(&self.activations.get(tensor)?.edges)
    }

    /// Whether every use of a tensor reads it fake-quantized, so that its float values are not needed.
    pub fn is_always_quantized(&self, tensor: &str, index: &GraphIndex) -> bool {
        let is_read = |edges: &BTreeSet<Edge>| index.consumers(tensor).iter().all(|edge| edges.contains(edge));
        !index.is_output(tensor) && self.edges(tensor).is_some_and(is_read)
    }

    /// Returns the index of the weight at an input of a node.
    pub fn weight_at(&self, edge: Edge) -> Option<usize> {
        self.weights.get(&edge).copied()
    }

    /// Returns the index of the first weight that the node reads.
    pub fn weight_of(&self, node_idx: usize, node: &NodeProto) -> Option<usize> {
        (0..node.input.len()).find_map(|input| self.weight_at((node_idx, input)))
    }

    /// Whether an input of a node is quantized.
    pub fn is_quantized(&self, edge: Edge) -> bool {
        self.weights.contains_key(&edge) || self.activations.values().any(|activation| activation.edges.contains(&edge))
    }
}

/// Returns the dequantized weight, as the target reads it.
///
/// # Errors
/// If the number of integers does not match the shape.
pub fn dequantized(planned: &PlannedWeight) -> Result<TensorProto> {
    tensor::from_f32(&planned.quantizer.tensor, &planned.shape, &planned.dequantized())
}

/// Fake-quantizes `values`, in place where a value is not shared.
///
/// # Errors
/// If there is no memory for a copy of a value that is shared.
pub fn fake_quantize(values: Vec<Value>, params: &QuantParams) -> Result<Vec<Value>> {
    let fake_quantize = params.fake_quantizer();
    values.into_par_iter().map(|value| value.into_mapped_f32(fake_quantize)).collect()
}
