//! The error of each tensor in the quantized network, including the errors of all nodes in front of the tensor.

use super::setup::{PlannedModel, Setup};
use crate::engine::Value;
use crate::metrics::{energies, sqnr_db};
use crate::simulate::{Candidate, ForwardPass, LayerHook, Network, Samples, TensorAt};
use anyhow::Result;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum held-out samples that errors are measured on.
const N_SAMPLES: usize = 4;

/// Errors of the tensors, in the order of the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorErrors {
    /// Number of held-out samples.
    pub n_samples: usize,
    /// One error per float tensor.
    pub tensors: Vec<TensorError>,
}

/// The error of a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorError {
    /// ONNX name in the prepared model.
    pub tensor: String,
    /// SQNR of the tensor before its own quantization, in dB; 200 without error, -200 where a value is NaN or infinite.
    pub sqnr_db: f64,
    /// SQNR of the tensor where only its producer is quantized, that is the weights and tensors that this node reads,
    /// in dB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_sqnr_db: Option<f64>,
}

impl TensorErrors {
    /// Measures the error of each tensor of `planned` on some of the `held_out` samples, given as positions in the
    /// order by content; on the first samples where nothing was tuned. `None` without samples, without quantization,
    /// and where a node cannot be run by itself.
    ///
    /// # Errors
    /// If a sample cannot be loaded.
    pub fn measure(
        setup: Setup,
        planned: &PlannedModel,
        held_out: Option<Range<usize>>,
    ) -> Result<Option<TensorErrors>> {
        let Some(samples) = setup.samples else { return Ok(None) };
        let Range { start, end } = held_out.unwrap_or(0..setup.n_samples(samples, &planned.model, 1));
        let of_samples = start..end.min(start + N_SAMPLES);
        let is_quantized = !planned.plan.weights.is_empty() || !planned.plan.activations.is_empty();
        if of_samples.is_empty() || !is_quantized {
            return Ok(None);
        }
        let (names, values) = (samples.names(), samples.values(of_samples)?);
        let samples = Samples { names: &names, values: &values };
        // Where this pass fails, tuning failed as well and has warned. Some grids are not simulated.
        let Ok([all, added]) = errors_on(setup, planned, samples) else { return Ok(None) };
        let added: BTreeMap<String, f64> = added.into_iter().map(|error| (error.tensor, error.sqnr_db)).collect();
        let with_added = |error: TensorError| TensorError { added_sqnr_db: added.get(&error.tensor).copied(), ..error };
        Ok(Some(TensorErrors { n_samples: values.len(), tensors: all.into_iter().map(with_added).collect() }))
    }
}

/// Measures the errors of tensors in the quantized network, and the errors that each node adds alone.
fn errors_on(setup: Setup, planned: &PlannedModel, samples: Samples) -> Result<[Vec<TensorError>; 2]> {
    let (mut all, mut added) = (Vec::new(), Vec::new());
    let candidate = || Candidate::new(planned.plan.clone(), 0);
    ForwardPass::new(&planned.model, 0)?
        .sharing(setup.prepared)
        .reporting(setup.progress, "error of each tensor")
        .with(candidate()?, ErrorObserver { tensors: &mut all, is_alone: false })
        .with(candidate()?, ErrorObserver { tensors: &mut added, is_alone: true })
        .run(samples)?;
    Ok([all, added])
}

/// A hook that compares each tensor of a pass with the float network.
struct ErrorObserver<'a> {
    tensors: &'a mut Vec<TensorError>,
    /// Whether each node reads the float network's values.
    is_alone: bool,
}

impl LayerHook for ErrorObserver<'_> {
    fn runs_on_float_inputs(&self) -> bool {
        self.is_alone
    }

    fn tensor(&mut self, _net: &Network, at: &TensorAt, _candidate: &mut Candidate) -> Result<()> {
        let pairs = at.float.par_iter().zip(at.quantized);
        let of_sample = |(float, quantized): (&Value, &Value)| {
            let float = float.f32s()?;
            Some((float.len(), energies(float, quantized.f32s()?)))
        };
        let of_samples = pairs.map(of_sample);
        let Some(of_samples) = of_samples.collect::<Option<Vec<_>>>() else { return Ok(()) };
        let n: usize = of_samples.iter().map(|(n, _)| n).sum();
        let [signal, noise] = [0, 1].map(|i| of_samples.iter().map(|(_, energies)| energies[i]).sum());
        if n > 0 {
            let (tensor, sqnr_db) = (at.name.to_string(), sqnr_db(signal, noise));
            self.tensors.push(TensorError { tensor, sqnr_db, added_sqnr_db: None });
        }
        Ok(())
    }
}
