//! Channel statistics of a tensor over samples.

use super::{Channels, EqualizationGroup};
use crate::onnx::proto::GraphProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::Placement;
use std::collections::BTreeMap;

/// Number of assumed further values per channel that have the usual range of the tensor's channels.
///
/// A fully connected layer has one value per channel and sample, a Conv thousands. Without these values, channels that
/// are 0 on all samples would get the largest channel scales.
const PRIOR_VALUES: f32 = 32.0;

/// A tensor to observe, and the position of its channels, counted from 0.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedTensor {
    /// ONNX name.
    pub tensor: String,
    /// Channels of the tensor. A tensor in no group has one channel.
    pub channels: Channels,
}

/// Statistics of one tensor's unscaled values over the samples. Minimum and maximum ignore NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelStatistics {
    channels: Channels,
    /// Lowest value of each channel.
    pub min: Vec<f32>,
    /// Highest value of each channel.
    pub max: Vec<f32>,
    sum_squares: Vec<f64>,
    n_values: u64,
}

impl ChannelStatistics {
    /// Returns empty statistics.
    pub fn new(channels: Channels) -> ChannelStatistics {
        let channels = Channels { first: 0, ..channels };
        ChannelStatistics {
            channels,
            min: vec![f32::INFINITY; channels.n],
            max: vec![f32::NEG_INFINITY; channels.n],
            sum_squares: vec![0.0; channels.n],
            n_values: 0,
        }
    }

    /// Adds a tensor's values, in row-major order. Ignores them if the shape does not fit the channels.
    pub fn observe(&mut self, shape: &[usize], values: &[f32]) {
        if !self.channels.fits(shape) || values.is_empty() {
            return;
        }
        let (len, run) = (self.channels.n_entries(), self.channels.run);
        let inner: usize = shape[self.channels.axis + 1..].iter().product();
        for block in values.chunks_exact(len * inner) {
            for (channel, values) in block.chunks_exact(run * inner).enumerate() {
                let (mut min, mut max) = (self.min[channel], self.max[channel]);
                let mut squares = 0.0f64;
                for &value in values {
                    min = if value < min { value } else { min };
                    max = if value > max { value } else { max };
                    squares += f64::from(value) * f64::from(value);
                }
                (self.min[channel], self.max[channel]) = (min, max);
                self.sum_squares[channel] += squares;
            }
        }
        self.n_values += (values.len() / self.channels.n) as u64;
    }

    /// Adds the statistics of another thread or sample.
    pub fn merge(&mut self, other: &ChannelStatistics) {
        for (channel, min) in self.min.iter_mut().enumerate() {
            *min = min.min(other.min[channel]);
            self.max[channel] = self.max[channel].max(other.max[channel]);
            self.sum_squares[channel] += other.sum_squares[channel];
        }
        self.n_values += other.n_values;
    }

    /// Returns the smallest range to assume for a channel: the median over the channels times the share of assumed
    /// values, or times `least_share` if that is larger.
    pub fn minimum_range(&self, least_share: f32) -> f32 {
        let mut reaches: Vec<f32> = self.min.iter().zip(&self.max).map(|(min, max)| max.max(-min)).collect();
        reaches.retain(|reach| *reach > 0.0 && reach.is_finite());
        if reaches.is_empty() {
            return 0.0;
        }
        let middle = reaches.len() / 2;
        let (_, median, _) = reaches.select_nth_unstable_by(middle, f32::total_cmp);
        *median * (PRIOR_VALUES / (PRIOR_VALUES + self.n_values as f32)).max(least_share)
    }

    /// Returns the mean square of a channel's values.
    pub fn mean_square(&self, channel: usize) -> f64 {
        self.sum_squares[channel] / self.n_values.max(1) as f64
    }

    /// Returns the mean square of all values.
    pub fn mean_square_of_all(&self) -> f64 {
        let sum: f64 = (0..self.channels.n).map(|channel| self.mean_square(channel)).sum();
        sum / self.channels.n.max(1) as f64
    }
}

/// Returns the tensors whose statistics decide about channel scales: the quantized tensors of groups, the inputs of the
/// groups' readers, and the inputs of their producers.
pub fn observed_tensors(
    groups: &[EqualizationGroup],
    graph: &GraphProto,
    value_info: &ValueInfos,
    placement: &Placement,
) -> Vec<ObservedTensor> {
    let mut tensors: BTreeMap<&str, Channels> = BTreeMap::new();
    for group in groups {
        for (tensor, channels) in &group.tensors {
            let quantized = placement.activations.iter().any(|quantizer| quantizer.tensor == *tensor);
            if quantized || group.consumers.iter().any(|end| end.tensor == *tensor) {
                tensors.insert(tensor, *channels);
            }
        }
    }
    for end in groups.iter().flat_map(|group| &group.producers) {
        let Some(tensor) = graph.node[end.node].input.first() else { continue };
        let Some(&run) = value_info.shape(tensor).and_then(<[usize]>::first) else { continue };
        let whole = Channels { axis: 0, run, first: 0, n: 1 };
        if end.weight_channels.is_some() {
            tensors.entry(tensor).or_insert(whole);
        }
    }
    let observed_tensors = |(tensor, channels): (&str, Channels)| ObservedTensor {
        tensor: tensor.to_string(),
        channels: Channels { first: 0, ..channels },
    };
    tensors.into_iter().map(observed_tensors).collect()
}
