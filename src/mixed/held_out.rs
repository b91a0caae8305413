//! Held-out samples, and the float network's outputs for them.

use super::bias::BiasCorrection;
use crate::engine::Value;
use crate::metrics::OutputErrors;
use crate::onnx::proto::ModelProto;
use crate::plan::QuantPlan;
use crate::simulate::{CachedNetwork, CachedSamples, SampleValues, Samples};
use anyhow::Result;

/// Samples that are run at a time.
const CHUNK: usize = 16;

/// What plans are evaluated by.
pub struct HeldOut {
    names: Vec<String>,
    /// Values of the first sample.
    first: Vec<Value>,
    chunks: Vec<Chunk>,
    /// Samples.
    pub n: usize,
}

struct Chunk {
    samples: CachedSamples,
    /// Outputs of the float network, per output.
    float: Vec<SampleValues>,
}

impl HeldOut {
    /// By these samples, at least one.
    ///
    /// # Errors
    /// If the float `network` cannot be run on them.
    pub fn new(network: &mut CachedNetwork, samples: Samples) -> Result<HeldOut> {
        let mut chunks = Vec::new();
        for values in samples.values.chunks(CHUNK) {
            let mut samples = CachedSamples::new(Samples { values, ..samples }, 0);
            let float = network.run(&QuantPlan::default(), &mut samples, false, None)?;
            chunks.push(Chunk { samples, float });
        }
        let first = samples.values.first().cloned().unwrap_or_default();
        Ok(HeldOut { names: samples.names.to_vec(), first, chunks, n: samples.len() })
    }

    /// The errors of a plan for `model`, which may have other biases than the model that this was made of.
    ///
    /// # Errors
    /// If a node of `model` cannot be run by itself; the message names it.
    pub fn errors(&mut self, model: &ModelProto, plan: &QuantPlan) -> Result<OutputErrors> {
        let first = std::slice::from_ref(&self.first);
        let mut network = CachedNetwork::new(model, Samples { names: &self.names, values: first })?;
        self.errors_in(&mut network, plan, &mut BiasCorrection::default())
    }

    /// The errors of a plan for a network that is ready, with biases corrected as was learned.
    pub(super) fn errors_in(
        &mut self,
        network: &mut CachedNetwork,
        plan: &QuantPlan,
        biases: &mut BiasCorrection,
    ) -> Result<OutputErrors> {
        let n_outputs = self.chunks.first().map_or(0, |chunk| chunk.float.len());
        let mut errors = OutputErrors::new(n_outputs);
        for Chunk { samples, float } in &mut self.chunks {
            add_outputs(&mut errors, float, &network.run(plan, samples, false, Some(biases))?);
        }
        Ok(errors)
    }
}

/// Adds samples: the outputs of the float network and of another, per output and sample.
pub(super) fn add_outputs(errors: &mut OutputErrors, float: &[Vec<Value>], other: &[Vec<Value>]) {
    for (output_idx, (float, other)) in float.iter().zip(other).enumerate() {
        for (a, b) in float.iter().zip(other) {
            if let (Some(float), Some(other)) = (a.f32s(), b.f32s()) {
                errors.add(output_idx, a.shape(), float, other);
            }
        }
    }
}
