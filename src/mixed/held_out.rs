//! Held-out samples and the float network's outputs for them.

use super::bias::BiasCorrection;
use crate::engine::Value;
use crate::heads::TaskHead;
use crate::metrics::{EvaluatedOutput, Measurement, Metric, of_task};
use crate::onnx::proto::ModelProto;
use crate::plan::QuantPlan;
use crate::simulate::{CachedNetwork, CachedSamples, EvaluatedFloat, OutputOptions, Samples};
use anyhow::Result;

/// Samples that run at a time.
const CHUNK: usize = 16;

/// The samples that evaluate plans, with the float outputs.
pub struct HeldOut {
    names: Vec<String>,
    /// Input values of the first sample.
    first: Vec<Value>,
    chunks: Vec<CachedSamples>,
    float: EvaluatedFloat,
    /// Number of samples.
    pub n: usize,
}

/// Metrics and outputs of an evaluation.
#[derive(Clone, Copy)]
pub struct EvaluatedBy<'a> {
    /// The metrics.
    pub metrics: &'a [Metric],
    /// The outputs.
    pub outputs: &'a [EvaluatedOutput],
    /// The user's options for the evaluation of outputs.
    pub options: OutputOptions<'a>,
}

impl HeldOut {
    /// Runs the float `network` on the samples, at least one. Fails if the network cannot be run on them.
    pub fn new(network: &mut CachedNetwork, samples: Samples, by: EvaluatedBy) -> Result<HeldOut> {
        let mut chunks = Vec::new();
        let mut float: Vec<Vec<Value>> = vec![Vec::new(); by.outputs.len()];
        for values in samples.values.chunks(CHUNK) {
            let mut chunk = CachedSamples::new(Samples { values, ..samples }, 0);
            let outputs = network.run(&QuantPlan::default(), &mut chunk, false, None)?;
            float.iter_mut().zip(outputs).for_each(|(all, values)| all.extend(values));
            chunks.push(chunk);
        }
        let first = samples.values.first().cloned().unwrap_or_default();
        let head = by.options.head(by.outputs, &float, samples.layout().batch, network.is_partial())?;
        let of_task = of_task(head.as_ref()).filter(|metric| !by.metrics.contains(metric));
        let metrics: Vec<Metric> = by.metrics.iter().copied().chain(of_task).collect();
        let float = EvaluatedFloat::new(&metrics, by.outputs.to_vec(), &float, samples.layout(), head.as_ref())?;
        Ok(HeldOut { names: samples.names.to_vec(), first, chunks, float, n: samples.len() })
    }

    /// Returns the network's head, where it is known.
    pub fn head(&self) -> Option<&TaskHead> {
        self.float.prepared().head()
    }

    /// Measures a plan for `model`, whose biases may differ from those of the float network. Fails if a node of `model`
    /// cannot be run by itself; the message names it.
    pub fn measure(&mut self, model: &ModelProto, plan: &QuantPlan) -> Result<Measurement> {
        let first = std::slice::from_ref(&self.first);
        let mut network = CachedNetwork::new(model, Samples { names: &self.names, values: first }, None)?;
        self.measure_in(&mut network, plan, &mut BiasCorrection::default())
    }

    /// Measures a plan in the network of the search, with the learned bias corrections.
    pub(super) fn measure_in(
        &mut self,
        network: &mut CachedNetwork,
        plan: &QuantPlan,
        biases: &mut BiasCorrection,
    ) -> Result<Measurement> {
        let mut sums = Vec::with_capacity(self.n);
        for chunk in &mut self.chunks {
            let outputs = network.run(plan, chunk, false, Some(biases))?;
            let start = sums.len();
            let samples = start..self.n.min(start + CHUNK);
            sums.extend(self.float.sums(samples, |output_idx, sample| outputs[output_idx].get(sample - start))?);
        }
        Ok(Measurement::new(self.float.prepared().clone(), sums))
    }
}
