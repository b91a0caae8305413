//! What a forward pass keeps of the float network, so that another one over the same samples needs none of its own.
//!
//! Where the other network has channels in other units, what is kept of the float network follows: exactly where these are powers of
//! two times the first's, to float rounding elsewhere.

use super::channels::ChannelSum;
use super::evaluated::EvaluatedFloat;
use crate::metrics::Measurement;
use crate::onnx::graph::Edge;
use crate::onnx::proto::GraphProto;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of the float network, over the samples of a pass.
#[derive(Clone, Default)]
pub struct FloatReference {
    /// Sums of the channels of a node's first output, per sample, by the node's position.
    sums: BTreeMap<usize, Vec<Vec<ChannelSum>>>,
    /// The tensors by which outputs are evaluated.
    pub(super) evaluated: Option<Arc<EvaluatedFloat>>,
    /// The candidate's plan, as it was measured.
    pub measured: Option<MeasuredPlan>,
}

/// A plan that was measured by all samples of a pass.
#[derive(Clone)]
pub struct MeasuredPlan {
    /// Its figures.
    pub measured: Measurement,
    /// What bias correction by these samples made of it; absent where it was measured as it is.
    pub corrected: Option<Corrected>,
}

/// What bias correction made of a plan.
#[derive(Clone)]
pub struct Corrected {
    /// The plan; where biases have quantization parameters, with new ones.
    pub plan: QuantPlan,
    /// The new biases.
    pub biases: BTreeMap<Edge, Vec<f32>>,
}

impl FloatReference {
    pub(super) fn keep_sums(&mut self, node_idx: usize, sums: Vec<Vec<ChannelSum>>) {
        self.sums.insert(node_idx, sums);
    }

    /// The sums of the node over the first `n` samples.
    pub(super) fn sums(&self, node_idx: usize, n: usize) -> Option<Vec<Vec<ChannelSum>>> {
        let sums = self.sums.get(&node_idx)?;
        Some(sums[..n.min(sums.len())].to_vec())
    }

    /// The same, without a plan whose biases were corrected.
    #[must_use]
    pub fn without_corrected(self) -> FloatReference {
        let measured = self.measured.filter(|measured| measured.corrected.is_none());
        FloatReference { measured, ..self }
    }

    /// The same of the network `to`, which is `from` with `scalings` of tensors and perhaps nodes inserted, but for corrected
    /// biases; `None` where it does not follow.
    pub fn converted(
        &self,
        [from, to]: [&GraphProto; 2],
        scalings: &BTreeMap<String, ChannelScaling>,
    ) -> Option<FloatReference> {
        let positions: BTreeMap<&String, usize> =
            to.node.iter().enumerate().filter_map(|(i, node)| Some((node.output.first()?, i))).collect();
        let is_scaled = |tensor: &str| scalings.contains_key(tensor);
        if self.evaluated.as_ref().is_some_and(|evaluated| evaluated.reads(is_scaled)) {
            return None;
        }
        let mut converted = FloatReference { sums: BTreeMap::new(), evaluated: self.evaluated.clone(), measured: None };
        for (&node_idx, sums) in &self.sums {
            let output = from.node.get(node_idx)?.output.first()?;
            let sums = converted.sums.entry(*positions.get(output)?).or_insert_with(|| sums.clone());
            let Some(scaling) = scalings.get(output) else { continue };
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
