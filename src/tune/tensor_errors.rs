//! The error of each tensor in the quantized network, all errors in front of it included.

use super::setup::{PlannedModel, Setup};
use crate::metrics::{sqnr_db, value_and_error};
use crate::simulate::{Candidate, ForwardPass, LayerHook, Network, Samples, TensorAt};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Held-out samples that the errors are measured on.
const N_SAMPLES: usize = 4;

/// Errors of the tensors, in the order of the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorErrors {
    /// Number of held-out samples.
    pub n_samples: usize,
    /// One per float tensor.
    pub tensors: Vec<TensorError>,
}

/// The error of a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorError {
    /// ONNX name in the prepared model.
    pub tensor: String,
    /// SQNR before the tensor is quantized itself, in dB; 200 without error, -200 where a value is NaN or infinite.
    pub sqnr_db: f64,
}

impl TensorErrors {
    /// Measures the errors in `planned` on some of the `held_out` samples, positions in the order by content.
    ///
    /// # Errors
    /// If a sample cannot be loaded, or a node cannot be run by itself.
    pub fn measure(
        setup: Setup,
        planned: &PlannedModel,
        held_out: Option<Range<usize>>,
    ) -> Result<Option<TensorErrors>> {
        let (Some(samples), Some(held_out)) = (setup.samples, held_out) else { return Ok(None) };
        let of_samples = held_out.start..held_out.end.min(held_out.start + N_SAMPLES);
        let (names, values) = (samples.names(), samples.values(of_samples)?);
        let mut tensors = Vec::new();
        let candidate = Candidate::new(planned.plan.clone(), 0)?;
        ForwardPass::new(&planned.model, 0)?
            .sharing(setup.prepared)
            .reporting(setup.progress, "error of each tensor")
            .with(candidate, ErrorObserver { tensors: &mut tensors })
            .run(Samples { names: &names, values: &values })?;
        Ok(Some(TensorErrors { n_samples: values.len(), tensors }))
    }
}

/// Compares the tensors of a pass.
struct ErrorObserver<'a> {
    tensors: &'a mut Vec<TensorError>,
}

impl LayerHook for ErrorObserver<'_> {
    fn tensor(&mut self, _net: &Network, at: &TensorAt, _candidate: &mut Candidate) -> Result<()> {
        let (mut signal, mut noise, mut n) = (0.0, 0.0, 0);
        for (float, quantized) in at.float.iter().zip(at.quantized) {
            let (Some(float), Some(quantized)) = (float.f32s(), quantized.f32s()) else { return Ok(()) };
            for (&float, &quantized) in float.iter().zip(quantized) {
                let (value, error) = value_and_error(float, quantized);
                signal += value * value;
                noise += error * error;
            }
            n += float.len();
        }
        if n > 0 {
            self.tensors.push(TensorError { tensor: at.name.to_string(), sqnr_db: sqnr_db(signal, noise) });
        }
        Ok(())
    }
}
