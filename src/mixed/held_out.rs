//! Held-out samples, and the float network's outputs for them.

use super::bias::{BiasCorrection, as_hook};
use crate::engine::Value;
use crate::metrics::OutputErrors;
use crate::onnx::proto::ModelProto;
use crate::plan::QuantPlan;
use crate::simulate::{CachedNetwork, CachedSamples, SampleValues, Samples};
use anyhow::{Result, ensure};

/// Samples that are run at a time.
const CHUNK: usize = 16;

/// What plans are evaluated by.
pub struct HeldOut {
    names: Vec<String>,
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
    /// By these samples.
    ///
    /// # Errors
    /// If a node of `model` cannot be run by itself; the message names it.
    pub fn new(model: &ModelProto, samples: Samples) -> Result<HeldOut> {
        ensure!(!samples.is_empty(), "there are no samples to evaluate by");
        let mut network = CachedNetwork::new(model, samples)?;
        let mut chunks = Vec::new();
        for values in samples.values.chunks(CHUNK) {
            let mut samples = CachedSamples::new(Samples { values, ..samples }, 0);
            let float = network.run(&QuantPlan::default(), &mut samples, false, None)?;
            chunks.push(Chunk { samples, float });
        }
        Ok(HeldOut { names: samples.names.to_vec(), chunks, n: samples.len() })
    }

    /// The errors of a plan for `model`, which may have other biases than the model that this was made of.
    ///
    /// # Errors
    /// As [`HeldOut::new`].
    pub fn errors(&mut self, model: &ModelProto, plan: &QuantPlan) -> Result<OutputErrors> {
        let first = self.chunks.first().and_then(|chunk| chunk.samples.first(&self.names));
        let first = Samples { names: &self.names, values: &[first.unwrap_or_default()] };
        let mut network = CachedNetwork::new(model, first)?;
        self.errors_in(&mut network, plan, &mut None)
    }

    /// The errors of a plan for a network that is ready, with biases corrected as was learned.
    pub(super) fn errors_in(
        &mut self,
        network: &mut CachedNetwork,
        plan: &QuantPlan,
        biases: &mut Option<BiasCorrection>,
    ) -> Result<OutputErrors> {
        let n_outputs = self.chunks.first().map_or(0, |chunk| chunk.float.len());
        let mut errors = OutputErrors::new(n_outputs);
        for Chunk { samples, float } in &mut self.chunks {
            let outputs = network.run(plan, samples, false, as_hook(biases))?;
            add_outputs(&mut errors, float, &outputs);
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
