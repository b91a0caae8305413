//! Output channels of layers, their sums after the activation function, and the bias corrections that make them equal
//! to the float network's.
//!
//! Source: empirical bias correction, Nagel et al., 2019 (arXiv 1906.04721), section 4.2, here layer by layer, each
//! with its quantized predecessors.

use crate::engine::{Value, ValueLoop, vectorized};
use crate::onnx::proto::NodeProto;

/// Bounds of the activation function after a layer, a Relu or Clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivationBounds {
    /// Smallest value that passes.
    pub low: f32,
    /// Largest value that passes.
    pub high: f32,
}

impl ActivationBounds {
    /// No activation function: everything passes.
    pub const ALL: ActivationBounds = ActivationBounds { low: f32::NEG_INFINITY, high: f32::INFINITY };

    /// Applies the activation function to `x`.
    pub fn apply(self, x: f32) -> f32 {
        let x = if x > self.low { x } else { self.low };
        if x < self.high { x } else { self.high }
    }
}

/// The sum and count of a channel's values in one sample, after the activation function.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ChannelSum {
    /// Sum of the values.
    pub sum: f64,
    /// Number of values that the activation function did not change.
    pub n_passed: f64,
}

impl ChannelSum {
    fn add(&mut self, other: ChannelSum) {
        self.sum += other.sum;
        self.n_passed += other.n_passed;
    }

    /// Returns the difference from `other`; the count is the larger one of both.
    fn less(self, other: ChannelSum) -> ChannelSum {
        ChannelSum { sum: self.sum - other.sum, n_passed: self.n_passed.max(other.n_passed) }
    }
}

/// Returns the bias correction per output channel that gives the quantized outputs the means of the float ones over all
/// samples. Both arguments are given per sample and channel.
///
/// Only values that pass the activation function count. An error that a Relu removes in both networks does not matter,
/// and correcting its mean would move the values that do. A channel whose error varies between samples is corrected
/// less: by the share of the squared mean that exceeds the variance of the mean.
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

/// Returns the sum of the float outputs of channel `o` minus that of the quantized ones, over all samples. The count is
/// at least 1.
pub fn difference(float: &[Vec<ChannelSum>], quantized: &[Vec<ChannelSum>], o: usize) -> ChannelSum {
    let mut total = ChannelSum::default();
    for (a, b) in float.iter().zip(quantized) {
        total.add(a[o].less(b[o]));
    }
    ChannelSum { n_passed: total.n_passed.max(1.0), ..total }
}

/// The axis of a node's output channels: axis 1 of a convolution, else the last.
#[derive(Debug, Clone, Copy)]
pub struct OutChannels {
    /// Number of channels.
    pub n_out: usize,
    /// Whether a channel's values are contiguous.
    pub planes: bool,
}

impl OutChannels {
    /// Returns the output channels of a node with outputs like `y`; `None` without any.
    pub fn of(node: &NodeProto, y: &Value) -> Option<OutChannels> {
        let planes = matches!(node.op_type(), "Conv" | "ConvTranspose");
        let n_out = if planes { y.shape().get(1) } else { y.shape().last() };
        n_out.filter(|n| **n > 0).map(|&n_out| OutChannels { n_out, planes })
    }

    /// Returns the sums after the activation function, per channel.
    pub fn sums(&self, value: &Value, bounds: ActivationBounds) -> Vec<ChannelSum> {
        let mut sums = vec![ChannelSum::default(); self.n_out];
        let Some(values) = value.f32s() else { return sums };
        let inner = self.inner(value);
        if inner == 1 {
            vectorized(RowSums { values, bounds, sums: &mut sums });
            return sums;
        }
        for sample in values.chunks(inner * self.n_out) {
            let runs = sums.iter_mut().zip(sample.chunks(inner));
            runs.for_each(|(sum, values)| sum.add(vectorized(RunSum { values, bounds })));
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
            for sample in values.chunks_mut(inner * self.n_out) {
                if inner == 1 {
                    sample.iter_mut().zip(by).for_each(|(value, by)| *value += by);
                } else {
                    let runs = sample.chunks_mut(inner).zip(by);
                    runs.for_each(|(run, by)| run.iter_mut().for_each(|value| *value += by));
                }
            }
        })
    }

    /// Returns the squared change after the activation function when the channels move by `by`: a sum over some values
    /// of every channel.
    pub fn change(&self, value: &Value, bounds: ActivationBounds, by: &[f32]) -> f64 {
        /// Approximate number of values that are read of each contiguous run.
        const N: usize = 64;
        let Some(values) = value.f32s() else { return 0.0 };
        let inner = self.inner(value);
        let of_run = |(part, &by): (&[f32], &f32)| -> f64 {
            let change = |&y: &f32| f64::from(bounds.apply(y + by) - bounds.apply(y)).powi(2);
            part.iter().step_by(inner.div_ceil(N)).map(change).sum()
        };
        values.chunks(inner).zip(by.iter().cycle()).map(of_run).sum()
    }

    /// Returns the number of contiguous values of a channel.
    pub fn inner(&self, value: &Value) -> usize {
        if self.planes { value.shape()[2..].iter().product::<usize>().max(1) } else { 1 }
    }
}

/// Sums per channel of rows with one value for each.
struct RowSums<'v> {
    values: &'v [f32],
    bounds: ActivationBounds,
    sums: &'v mut [ChannelSum],
}

impl ValueLoop for RowSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for row in self.values.chunks(self.sums.len()) {
            for (sum, &x) in self.sums.iter_mut().zip(row) {
                let out = self.bounds.apply(x);
                sum.sum += f64::from(out);
                sum.n_passed += f64::from(u8::from(out == x));
            }
        }
    }
}

/// The sum of a contiguous run of values.
struct RunSum<'v> {
    values: &'v [f32],
    bounds: ActivationBounds,
}

impl ValueLoop for RunSum<'_> {
    type Output = ChannelSum;

    /// Adds up in eight lanes, so that additions overlap.
    #[inline(always)]
    fn run(self) -> ChannelSum {
        const N: usize = 8;
        let (mut sums, mut n_passed) = ([0f64; N], [0u32; N]);
        if self.bounds == ActivationBounds::ALL {
            let mut add = |part: &[f32]| {
                sums.iter_mut().zip(part).for_each(|(sum, &x)| *sum += f64::from(x));
            };
            let (parts, rest) = self.values.as_chunks::<N>();
            parts.iter().for_each(|part| add(part));
            add(rest);
            return ChannelSum { sum: sums.iter().sum(), n_passed: self.values.len() as f64 };
        }
        let mut add = |part: &[f32]| {
            for ((sum, n), &x) in sums.iter_mut().zip(&mut n_passed).zip(part) {
                let out = self.bounds.apply(x);
                *sum += f64::from(out);
                *n += u32::from(out == x);
            }
        };
        let (parts, rest) = self.values.as_chunks::<N>();
        parts.iter().for_each(|part| add(part));
        add(rest);
        ChannelSum { sum: sums.iter().sum(), n_passed: n_passed.iter().map(|&n| f64::from(n)).sum() }
    }
}
