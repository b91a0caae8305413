//! What evaluating a plan leaves for others over the same samples.

use crate::metrics::QuantizationError;
use crate::onnx::graph::Edge;
use crate::onnx::proto::GraphProto;
use crate::plan::QuantPlan;
use crate::quant::ChannelScaling;
use crate::simulate::{Candidate, FloatReference};
use std::collections::BTreeMap;

/// What is known of a float network, and what bias correction by all the samples made of its plan.
#[derive(Clone, Default)]
pub struct Reference {
    /// The float network.
    pub(super) float: FloatReference,
    /// The plan and the biases that bias correction leads to, where that was tried.
    pub(super) corrected: Option<Corrected>,
}

/// What bias correction made of a plan.
#[derive(Clone)]
pub(super) struct Corrected {
    /// The plan; where biases have quantization parameters, with new ones.
    pub plan: QuantPlan,
    /// The new biases.
    pub biases: BTreeMap<Edge, Vec<f32>>,
    /// How far the network is from the float one with them, on the same samples.
    pub errors: Vec<QuantizationError>,
}

impl Reference {
    /// With the plan of `candidate` and its biases, where these are `corrected` by all samples of the pass.
    #[must_use]
    pub(super) fn with_corrected(self, candidate: Candidate, corrected: bool) -> Reference {
        let Candidate { plan, biases, errors, .. } = candidate;
        Reference { corrected: corrected.then_some(Corrected { plan, biases, errors }), ..self }
    }

    /// The same of the network `graph` with `scalings` of tensors, but for corrected biases; `None` where it does
    /// not follow.
    pub(super) fn converted(
        &self,
        graph: &GraphProto,
        scalings: &BTreeMap<String, ChannelScaling>,
    ) -> Option<Reference> {
        Some(Reference { float: self.float.converted(graph, scalings)?, corrected: None })
    }
}
