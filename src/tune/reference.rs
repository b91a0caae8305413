//! What a walk keeps of the float network, so that another one over the same samples needs none of its own.
//!
//! Where the other network has channels in other units, all that is kept follows: exactly where these are powers of
//! two times the first's, to float rounding elsewhere. What bias correction makes of a plan on these samples is kept with it.

use super::bias::Sum;
use super::variant::Variant;
use crate::engine::Value;
use crate::metrics::QuantizationError;
use crate::onnx::graph::Edge;
use crate::onnx::proto::GraphProto;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use std::collections::BTreeMap;

/// Of the float network, over the samples of a walk.
#[derive(Clone, Default)]
pub struct Reference {
    /// Sums of the channels of a node's first output, per sample, by the node's position.
    sums: BTreeMap<usize, Vec<Vec<Sum>>>,
    /// The tensors by which outputs are judged, a value per sample.
    judged: BTreeMap<String, Vec<Value>>,
    /// What bias correction by all these samples made of a plan.
    corrected: Option<Corrected>,
}

/// What bias correction made of a plan.
#[derive(Clone)]
pub(super) struct Corrected {
    /// The plan; where biases have grids, with new ones.
    pub plan: QuantPlan,
    /// The new biases.
    pub biases: BTreeMap<Edge, Vec<f32>>,
    /// How far the network is from the float one with them, on the same samples.
    pub errors: Vec<QuantizationError>,
}

impl Reference {
    pub(super) fn keep_sums(&mut self, node_idx: usize, sums: Vec<Vec<Sum>>) {
        self.sums.insert(node_idx, sums);
    }

    pub(super) fn keep_judged(&mut self, tensor: &str, values: &[Value]) {
        self.judged.insert(tensor.to_string(), values.to_vec());
    }

    /// With the plan of `variant` and its biases, where these are `corrected` by all samples of the walk.
    #[must_use]
    pub(super) fn with_corrected(self, variant: Variant, corrected: bool) -> Reference {
        let Variant { plan, biases, errors, .. } = variant;
        Reference { corrected: corrected.then_some(Corrected { plan, biases, errors }), ..self }
    }

    /// The plan and the biases that bias correction by all these samples leads to, where a walk tried that.
    pub(super) fn corrected(&self) -> Option<&Corrected> {
        self.corrected.as_ref()
    }

    /// The sums of the node over the first `n` samples.
    pub(super) fn sums(&self, node_idx: usize, n: usize) -> Option<Vec<Vec<Sum>>> {
        let sums = self.sums.get(&node_idx)?;
        Some(sums[..n.min(sums.len())].to_vec())
    }

    pub(super) fn judged(&self, tensor: &str) -> &[Value] {
        self.judged.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// The same of the network `graph` with tensors in other `units`, but for corrected biases; `None` where it does
    /// not follow.
    pub fn converted(
        &self,
        graph: &GraphProto,
        units: &BTreeMap<String, ChannelScaling>,
    ) -> Option<Reference> {
        if self.judged.keys().any(|tensor| units.contains_key(tensor)) {
            return None;
        }
        let mut converted = Reference { corrected: None, ..self.clone() };
        for (&node_idx, sums) in &mut converted.sums {
            let output = graph.node.get(node_idx).and_then(|node| node.output.first());
            let Some(units) = output.and_then(|name| units.get(name)) else { continue };
            for sums in sums {
                if sums.len() != units.n_entries() {
                    return None;
                }
                let channels = sums.iter_mut().enumerate();
                channels.for_each(|(o, sum)| sum.sum *= f64::from(units.of(o)));
            }
        }
        Some(converted)
    }
}
