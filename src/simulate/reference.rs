//! What a forward pass keeps of the float network, so that another one over the same samples needs none of its own.
//!
//! Where the other network has channels in other units, what is kept of the float network follows: exactly where these are powers of
//! two times the first's, to float rounding elsewhere.

use super::channels::ChannelSum;
use crate::engine::Value;
use crate::metrics::QuantizationError;
use crate::onnx::graph::Edge;
use crate::onnx::proto::GraphProto;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use std::collections::BTreeMap;

/// Of the float network, over the samples of a pass.
#[derive(Clone, Default)]
pub struct FloatReference {
    /// Sums of the channels of a node's first output, per sample, by the node's position.
    sums: BTreeMap<usize, Vec<Vec<ChannelSum>>>,
    /// The tensors by which outputs are evaluated, a value per sample.
    evaluated: BTreeMap<String, Vec<Value>>,
    /// What bias correction by all samples of the pass made of the candidate's plan, where that was tried.
    pub corrected: Option<Corrected>,
    /// The indices that each TopK makes, by its position, per sample.
    chosen: BTreeMap<usize, Vec<Value>>,
}

/// What bias correction made of a plan.
#[derive(Clone)]
pub struct Corrected {
    /// The plan; where biases have quantization parameters, with new ones.
    pub plan: QuantPlan,
    /// The new biases.
    pub biases: BTreeMap<Edge, Vec<f32>>,
    /// How far the network is from the float one with them, on the same samples.
    pub errors: Vec<QuantizationError>,
}

impl FloatReference {
    pub(super) fn keep_sums(&mut self, node_idx: usize, sums: Vec<Vec<ChannelSum>>) {
        self.sums.insert(node_idx, sums);
    }

    /// Keeps which positions a TopK chose, per sample.
    pub(super) fn keep_chosen(&mut self, node_idx: usize, indices: Vec<Value>) {
        self.chosen.insert(node_idx, indices);
    }

    pub(super) fn chosen(&self, node_idx: usize) -> &[Value] {
        self.chosen.get(&node_idx).map_or(&[], Vec::as_slice)
    }

    pub(super) fn keep_evaluated(&mut self, tensor: &str, values: &[Value]) {
        self.evaluated.insert(tensor.to_string(), values.to_vec());
    }

    /// The sums of the node over the first `n` samples.
    pub(super) fn sums(&self, node_idx: usize, n: usize) -> Option<Vec<Vec<ChannelSum>>> {
        let sums = self.sums.get(&node_idx)?;
        Some(sums[..n.min(sums.len())].to_vec())
    }

    pub(super) fn evaluated(&self, tensor: &str) -> &[Value] {
        self.evaluated.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// The same of the network `graph` with `scalings` of tensors, but for corrected biases; `None` where it does not
    /// follow.
    pub fn converted(&self, graph: &GraphProto, scalings: &BTreeMap<String, ChannelScaling>) -> Option<FloatReference> {
        if self.evaluated.keys().any(|tensor| scalings.contains_key(tensor)) {
            return None;
        }
        let mut converted = FloatReference { corrected: None, ..self.clone() };
        for (&node_idx, sums) in &mut converted.sums {
            let output = graph.node.get(node_idx).and_then(|node| node.output.first());
            let Some(scaling) = output.and_then(|name| scalings.get(name)) else { continue };
            for sums in sums {
                if sums.len() != scaling.n_entries() {
                    return None;
                }
                sums.iter_mut().enumerate().for_each(|(o, sum)| sum.sum *= f64::from(scaling.of(o)));
            }
        }
        Some(converted)
    }
}
