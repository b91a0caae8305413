//! The float network's values that quantized networks are compared with.

use super::samples::SampleLayout;
use crate::engine::Value;
use crate::heads::TaskHead;
use crate::metrics::{
    EvaluatedOutput, FloatOutput, Metric, OutputPair, PreparedMetrics, SamplePair, SampleSums, center_along,
};
use anyhow::Result;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// The evaluated tensors of the float network over some samples, with prepared metrics.
pub struct EvaluatedFloat {
    outputs: Vec<EvaluatedOutput>,
    /// Values per output and sample; empty for a constant of integers.
    values: Vec<Vec<Value>>,
    prepared: Arc<PreparedMetrics>,
}

/// Returns the value by which an output is evaluated: centered where the output asks for that, always float32.
fn evaluated(output: &EvaluatedOutput, value: &Value) -> Result<Value> {
    match (output.centered_axis, value.f32s()) {
        (Some(axis), Some(values)) => Value::from_f32(value.shape(), center_along(values, value.shape(), axis)),
        (_, Some(_)) => Ok(value.clone()),
        // Heads read class numbers as floats.
        (_, None) => Value::from_f32(value.shape(), value.to_f32s()?),
    }
}

fn pair<'v>(float: Option<&'v Value>, quantized: Option<&'v Value>) -> Option<OutputPair<'v>> {
    let (float, quantized) = float.zip(quantized)?;
    Some(OutputPair { shape: float.shape(), float: float.f32s()?, quantized: quantized.f32s()? })
}

impl EvaluatedFloat {
    /// Prepares metrics on the tensors' `values`, per output and sample. `head` is the network's head, for metrics of
    /// tasks.
    ///
    /// # Errors
    /// If there is no memory for a copy.
    pub fn new(
        metrics: &[Metric],
        outputs: Vec<EvaluatedOutput>,
        values: &[Vec<Value>],
        layout: SampleLayout,
        head: Option<&TaskHead>,
    ) -> Result<EvaluatedFloat> {
        let of_output = |(output, values): (&EvaluatedOutput, &Vec<Value>)| -> Result<Vec<Value>> {
            values.par_iter().map(|value| evaluated(output, value)).collect()
        };
        let values: Vec<Vec<Value>> = outputs.iter().zip(values).map(of_output).collect::<Result<_>>()?;
        let float = |(about, values)| {
            let values: &Vec<Value> = values;
            let shape = values.first().map_or(&[][..], Value::shape);
            let samples = values.iter().filter_map(Value::f32s).collect();
            let shapes = values.iter().filter(|_| layout.have_shapes).map(Value::shape).collect();
            FloatOutput { about, batch: layout.batch, shape, samples, shapes }
        };
        let float: Vec<FloatOutput> = outputs.iter().zip(&values).map(float).collect();
        let prepared = Arc::new(PreparedMetrics::new(metrics, &float, head));
        Ok(EvaluatedFloat { outputs, values, prepared })
    }

    /// Whether `contains` holds for one of the tensors.
    pub fn reads(&self, contains: impl Fn(&str) -> bool) -> bool {
        self.outputs.iter().any(|output| contains(&output.tensor))
    }

    /// Returns the prepared metrics.
    pub fn prepared(&self) -> &Arc<PreparedMetrics> {
        &self.prepared
    }

    /// Returns the outputs, each with the tensor that stands in for it in the evaluation.
    pub fn outputs(&self) -> &[EvaluatedOutput] {
        &self.outputs
    }

    /// Returns the value by which an output is evaluated for a sample; `None` for a constant of integers.
    pub(super) fn value(&self, output_idx: usize, sample: usize) -> Option<&Value> {
        self.values[output_idx].get(sample)
    }

    /// Returns the number of samples.
    pub fn n_samples(&self) -> usize {
        self.values.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns the sums of the metrics over some samples of a quantized network. `quantized` returns its tensors by
    /// output and sample index.
    ///
    /// # Errors
    /// If there is no memory for a copy.
    pub fn sums<'v>(
        &self,
        samples: Range<usize>,
        quantized: impl Fn(usize, usize) -> Option<&'v Value> + Sync,
    ) -> Result<Vec<SampleSums>> {
        let of_sample = |sample: usize| {
            let of_output = |(i, output)| quantized(i, sample).map(|value| evaluated(output, value)).transpose();
            let values: Vec<Option<Value>> = self.outputs.iter().enumerate().map(of_output).collect::<Result<_>>()?;
            let pairs = self.values.iter().zip(&values);
            let outputs: Vec<Option<OutputPair>> =
                pairs.map(|(float, quantized)| pair(float.get(sample), quantized.as_ref())).collect();
            Ok(self.prepared.sums(&SamplePair { outputs: &outputs, labels: None, truths: None }))
        };
        samples.into_par_iter().map(of_sample).collect()
    }
}
