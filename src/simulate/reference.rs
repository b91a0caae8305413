//! Reference values of the float network, so that another pass over the same samples need not run the network.
//!
//! Where the other network has scaled channels, the values are scaled, too: exactly for powers of two, up to float
//! rounding for other scales.

use super::channels::ChannelSum;
use super::evaluated::EvaluatedFloat;
use crate::metrics::Measurement;
use crate::onnx::graph::Edge;
use crate::onnx::proto::GraphProto;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reference values of the float network over the samples of a pass.
#[derive(Clone, Default)]
pub struct FloatReference {
    /// Channel sums of each node's first output, per sample, by the node's position.
    sums: BTreeMap<usize, Vec<Vec<ChannelSum>>>,
    /// The tensors that outputs are evaluated by.
    pub(super) evaluated: Option<Arc<EvaluatedFloat>>,
    /// The candidate's plan and figures.
    pub measured: Option<MeasuredPlan>,
}

/// A plan that was measured on all samples of a pass.
#[derive(Clone)]
pub struct MeasuredPlan {
    /// Its figures.
    pub measured: Measurement,
    /// The plan after bias correction on these samples; `None` where it was measured without.
    pub corrected: Option<Corrected>,
}

/// A plan after bias correction.
#[derive(Clone)]
pub struct Corrected {
    /// The plan, with new integers for biases that have their own quantization parameters.
    pub plan: QuantPlan,
    /// The new biases.
    pub biases: BTreeMap<Edge, Vec<f32>>,
}

impl FloatReference {
    pub(super) fn keep_sums(&mut self, node_idx: usize, sums: Vec<Vec<ChannelSum>>) {
        self.sums.insert(node_idx, sums);
    }

    /// Returns the channel sums of the node over the first `n` samples.
    pub(super) fn sums(&self, node_idx: usize, n: usize) -> Option<Vec<Vec<ChannelSum>>> {
        let sums = self.sums.get(&node_idx)?;
        Some(sums[..n.min(sums.len())].to_vec())
    }

    /// Returns the values without a measured plan whose biases were corrected.
    #[must_use]
    pub fn without_corrected(self) -> FloatReference {
        let measured = self.measured.filter(|measured| measured.corrected.is_none());
        FloatReference { measured, ..self }
    }

    /// Returns the reference values of the network `to`, which is `from` with `scalings` of tensors and perhaps
    /// inserted nodes. The measured plan is dropped. Returns `None` where an evaluated tensor is scaled, or a node is
    /// missing.
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
