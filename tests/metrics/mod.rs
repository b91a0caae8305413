//! Similarity of outputs to those of the float model; NaN and infinite values never give a good figure.

mod figures;
mod gain;
mod gates;
mod layout;
mod non_finite;
mod overlap;
mod prepared;

use mqq::metrics::{
    EvaluatedOutput, FloatOutput, METRICS, Measurement, Metric, OutputPair, PreparedMetrics, SamplePair, SampleSums,
};
use std::sync::Arc;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// The metrics that have a figure for each output.
fn of_outputs() -> Vec<Metric> {
    METRICS.iter().copied().filter(|metric| metric.task.is_none()).collect()
}

/// Values of the float network and of the quantized one.
type Pair<'a> = (&'a [f32], &'a [f32]);

/// One output of both networks, sample by sample.
struct Compared<'a> {
    about: EvaluatedOutput,
    batch: usize,
    shape: &'a [usize],
    samples: Vec<Pair<'a>>,
}

impl<'a> Compared<'a> {
    fn float(&self) -> FloatOutput<'_> {
        let samples = self.samples.iter().map(|(float, _)| *float).collect();
        FloatOutput { about: &self.about, batch: self.batch, shape: self.shape, samples, shapes: Vec::new() }
    }

    fn pair(&self, sample_idx: usize) -> Option<OutputPair<'a>> {
        let (float, quantized) = *self.samples.get(sample_idx)?;
        Some(OutputPair { shape: self.shape, float, quantized })
    }
}

fn about(name: &str) -> EvaluatedOutput {
    EvaluatedOutput {
        name: name.to_string(),
        tensor: name.to_string(),
        centered_axis: None,
        is_float: true,
        is_scores: None,
        is_selected: false,
        channel_axis: None,
    }
}

/// An output of floats of a network with a batch of 1.
fn compared<'a>(name: &str, shape: &'a [usize], samples: &[Pair<'a>]) -> Compared<'a> {
    Compared { about: about(name), batch: 1, shape, samples: samples.to_vec() }
}

/// The output that a Softmax makes.
fn scores<'a>(shape: &'a [usize], samples: &[Pair<'a>]) -> Compared<'a> {
    Compared { about: EvaluatedOutput { is_scores: Some(true), ..about("y") }, ..compared("y", shape, samples) }
}

fn prepare(metrics: &[Metric], outputs: &[Compared]) -> Arc<PreparedMetrics> {
    let float: Vec<FloatOutput> = outputs.iter().map(Compared::float).collect();
    Arc::new(PreparedMetrics::new(metrics, &float, None))
}

/// The sums of every sample.
fn sums(prepared: &PreparedMetrics, outputs: &[Compared], labels: Option<&[usize]>) -> Vec<SampleSums> {
    let n = outputs.iter().map(|output| output.samples.len()).max().unwrap_or(0);
    let of_sample = |i: usize| {
        let pairs: Vec<Option<OutputPair>> = outputs.iter().map(|output| output.pair(i)).collect();
        prepared.sums(&SamplePair { outputs: &pairs, labels, truths: None })
    };
    (0..n).map(of_sample).collect()
}

/// All samples, every one with these labels.
fn labelled(metrics: &[Metric], outputs: &[Compared], labels: Option<&[usize]>) -> Measurement {
    let prepared = prepare(metrics, outputs);
    let sums = sums(&prepared, outputs, labels);
    Measurement::new(prepared, sums)
}

fn measured(metrics: &[Metric], outputs: &[Compared]) -> Measurement {
    labelled(metrics, outputs, None)
}

/// The figure of the first output.
fn first(metric: Metric, outputs: &[Compared]) -> Option<f64> {
    Some(measured(&[metric], outputs).figures(metric).remove(0)?.value)
}

/// The figure of one output.
fn figure(metric: Metric, shape: &[usize], samples: &[Pair]) -> f64 {
    first(metric, &[compared("y", shape, samples)]).unwrap()
}

fn db(ratio: f64) -> f64 {
    10.0 * ratio.log10()
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
}
