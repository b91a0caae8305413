//! Output channels of layers, their sums behind the activation, and what to add so that these are those of the float
//! network.
//!
//! Source: empirical bias correction, Nagel et al., 2019 (arXiv 1906.04721), section 4.2, here one layer
//! after another, each seeing its quantized predecessors.

use crate::engine::Value;
use crate::onnx::proto::NodeProto;

/// The bounds of the activation behind a layer, a Relu or Clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivationBounds {
    /// The smallest value that comes out.
    pub low: f32,
    /// Largest.
    pub high: f32,
}

impl ActivationBounds {
    /// No activation: everything passes.
    pub const ALL: ActivationBounds = ActivationBounds { low: f32::NEG_INFINITY, high: f32::INFINITY };

    /// What comes out for `x`.
    pub fn apply(self, x: f32) -> f32 {
        x.max(self.low).min(self.high)
    }
}

/// Values of one channel in one sample, behind the activation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ChannelSum {
    /// Their sum.
    pub sum: f64,
    /// How many of them are as they were in front of it.
    pub n_passed: f64,
}

impl ChannelSum {
    fn add(&mut self, other: ChannelSum) {
        self.sum += other.sum;
        self.n_passed += other.n_passed;
    }

    /// What is above `other`, for as many values as count in one of them.
    fn less(self, other: ChannelSum) -> ChannelSum {
        ChannelSum { sum: self.sum - other.sum, n_passed: self.n_passed.max(other.n_passed) }
    }
}

/// What to add to each output channel, so that the means of the quantized outputs are those of the float
/// ones, over all samples; both are given per sample and channel.
///
/// Only what comes through the activation counts: an error that a Relu swallows in both networks is
/// none, and a mean that it makes up would move the values that matter. A channel whose error differs from sample
/// to sample is moved less: by the share of the squared mean that is above the variance of the mean.
pub fn correction(float: &[Vec<ChannelSum>], quantized: &[Vec<ChannelSum>]) -> Vec<f64> {
    let n_out = float.first().map_or(0, Vec::len);
    let n_samples = float.len() as f64;
    let of_channel = |o: usize| {
        let total = difference(float, quantized, o);
        let n = total.n_passed;
        let mean = total.sum / n;
        let square = |(a, b): (&Vec<ChannelSum>, &Vec<ChannelSum>)| {
            let of_sample = a[o].less(b[o]);
            (of_sample.sum - mean * of_sample.n_passed).powi(2)
        };
        let spread: f64 = float.iter().zip(quantized).map(square).sum();
        let variance = spread / (n * n) * n_samples / (n_samples - 1.0);
        let trusted = if mean == 0.0 { 0.0 } else { 1.0 - variance / (mean * mean) };
        // One sample has no variance.
        if n_samples > 1.0 { mean * trusted.max(0.0) } else { mean }
    };
    (0..n_out).map(of_channel).collect()
}

/// What the float outputs of channel `o` have above the quantized ones, over all samples; of at least one value.
pub fn difference(float: &[Vec<ChannelSum>], quantized: &[Vec<ChannelSum>], o: usize) -> ChannelSum {
    let mut total = ChannelSum::default();
    for (a, b) in float.iter().zip(quantized) {
        total.add(a[o].less(b[o]));
    }
    ChannelSum { n_passed: total.n_passed.max(1.0), ..total }
}

/// Where the output channels of a node lie: on axis 1 of a convolution, else on the last.
#[derive(Debug, Clone, Copy)]
pub struct OutChannels {
    /// Number of channels.
    pub n_out: usize,
    /// Whether values of a channel lie together.
    pub planes: bool,
}

impl OutChannels {
    /// Those of a node with outputs like `y`; `None` where there are none.
    pub fn of(node: &NodeProto, y: &Value) -> Option<OutChannels> {
        let planes = matches!(node.op_type(), "Conv" | "ConvTranspose");
        let n_out = if planes { y.shape().get(1) } else { y.shape().last() };
        n_out.filter(|n| **n > 0).map(|&n_out| OutChannels { n_out, planes })
    }

    /// What comes through the activation behind, per channel.
    pub fn sums(&self, value: &Value, bounds: ActivationBounds) -> Vec<ChannelSum> {
        let mut sums = vec![ChannelSum::default(); self.n_out];
        let Some(values) = value.f32s() else { return sums };
        for (run, part) in values.chunks(self.inner(value)).enumerate() {
            sums[run % self.n_out].add(sum(part, bounds));
        }
        sums
    }

    /// Adds `by` to the channels of `value`.
    ///
    /// # Errors
    /// If there is no memory for a copy of a value that is shared.
    pub fn shift(&self, value: &mut Value, by: &[f32]) -> anyhow::Result<()> {
        let inner = self.inner(value);
        value.update_f32(|values| {
            for (run, part) in values.chunks_mut(inner).enumerate() {
                let by = by[run % self.n_out];
                part.iter_mut().for_each(|value| *value += by);
            }
        })
    }

    /// How much moving the channels by `by` changes behind the activation: sum of the squares over some values of
    /// every channel.
    pub fn change(&self, value: &Value, bounds: ActivationBounds, by: &[f32]) -> f64 {
        /// Values of a run that are looked at, about.
        const N: usize = 64;
        let Some(values) = value.f32s() else { return 0.0 };
        let inner = self.inner(value);
        let of_run = |(run, part): (usize, &[f32])| -> f64 {
            let by = by[run % self.n_out];
            let change = |&y: &f32| f64::from(bounds.apply(y + by) - bounds.apply(y)).powi(2);
            part.iter().step_by(inner.div_ceil(N)).map(change).sum()
        };
        values.chunks(inner).enumerate().map(of_run).sum()
    }

    /// Values of one channel that lie together.
    pub fn inner(&self, value: &Value) -> usize {
        if self.planes { value.shape()[2..].iter().product::<usize>().max(1) } else { 1 }
    }
}

/// The sum of a run of values, in eight parts so that it does not wait for every addition.
fn sum(values: &[f32], bounds: ActivationBounds) -> ChannelSum {
    const N: usize = 8;
    let (mut sums, mut n_passed) = ([0f64; N], [0u32; N]);
    let mut add = |part: &[f32]| {
        for ((sum, n), &x) in sums.iter_mut().zip(&mut n_passed).zip(part) {
            let out = bounds.apply(x);
            *sum += f64::from(out);
            *n += u32::from(out == x);
        }
    };
    let (parts, rest) = values.as_chunks::<N>();
    parts.iter().for_each(|part| add(part));
    add(rest);
    ChannelSum { sum: sums.iter().sum(), n_passed: n_passed.iter().map(|&n| f64::from(n)).sum() }
}
