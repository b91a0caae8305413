//! Held-out samples and the float network's outputs for them.

use super::bias::BiasCorrection;
use crate::engine::Value;
use crate::heads::{HeadRequest, OutputView, TaskHead};
use crate::metrics::{EvaluatedOutput, Measurement, Metric};
use crate::onnx::proto::ModelProto;
use crate::plan::QuantPlan;
use crate::simulate::{CachedNetwork, CachedSamples, EvaluatedFloat, Samples};
use anyhow::Result;

/// Samples that run at a time.
const CHUNK: usize = 16;
/// Samples that tell the network's head, at most.
const MAX_RECOGNIZED: usize = 4;

/// Samples that evaluate plans, with the float outputs.
pub struct HeldOut {
    names: Vec<String>,
    /// Values of the first sample.
    first: Vec<Value>,
    chunks: Vec<CachedSamples>,
    float: EvaluatedFloat,
    /// The network's head, for a metric of a task.
    pub head: Option<TaskHead>,
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
    /// The network's head, for a metric of a task.
    pub head: &'a HeadRequest,
    /// Height and width of the input's images.
    pub input: Option<[usize; 2]>,
}

impl EvaluatedBy<'_> {
    /// The head of the network with these float outputs, per output and sample; `None` for metrics of outputs.
    fn head(&self, float: &[Vec<Value>], batch: usize) -> Result<Option<TaskHead>> {
        if self.head.task.is_none() {
            return Ok(None);
        }
        let view = |(output, values): (&'_ EvaluatedOutput, &'_ Vec<Value>), sample: usize| {
            let value = values.get(sample)?;
            Some((output.name.clone(), value.shape().to_vec(), value.to_f32s().ok()?))
        };
        let n = float.first().map_or(0, Vec::len).min(MAX_RECOGNIZED);
        let samples: Vec<Vec<_>> =
            (0..n).map(|i| self.outputs.iter().zip(float).filter_map(|of| view(of, i)).collect()).collect();
        let views = samples.iter().map(|outputs: &Vec<(String, Vec<usize>, _)>| {
            outputs.iter().map(|(name, shape, values)| OutputView::of_image(name, shape, values, (batch, 0))).collect()
        });
        self.head.resolve(&views.collect::<Vec<_>>(), self.input)
    }
}

impl HeldOut {
    /// Runs the float `network` on the samples, at least one.
    ///
    /// # Errors
    /// If the network cannot be run on them.
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
        let head = by.head(&float, samples.batch())?;
        let float = EvaluatedFloat::new(by.metrics, by.outputs.to_vec(), &float, samples.batch(), head.as_ref())?;
        Ok(HeldOut { names: samples.names.to_vec(), first, chunks, float, head, n: samples.len() })
    }

    /// Measures a plan for `model`, whose biases may differ from those of the float network.
    ///
    /// # Errors
    /// If a node of `model` cannot be run by itself; the message names it.
    pub fn measure(&mut self, model: &ModelProto, plan: &QuantPlan) -> Result<Measurement> {
        let first = std::slice::from_ref(&self.first);
        let mut network = CachedNetwork::new(model, Samples { names: &self.names, values: first })?;
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
