//! Numbers and maps of them: correlation with the float network's, and the error relative to how these vary.

use super::{AlongAxis, OutputPair};
use serde::Serialize;
use serde_with::skip_serializing_none;

/// Means and sums of products about them, of one channel.
#[derive(Debug, Clone, Copy, Default)]
struct ChannelMoments {
    n: f64,
    /// Means, float and quantized.
    means: [f64; 2],
    /// Sums of squares about the means, float and quantized.
    squares: [f64; 2],
    /// Sum of products about the means.
    product: f64,
    /// Sum of squares of the difference.
    error: f64,
}

impl ChannelMoments {
    /// Adds those of other values (Chan, Golub and LeVeque, 1979).
    fn merge(&mut self, other: &ChannelMoments) {
        let n = self.n + other.n;
        if n == 0.0 {
            return;
        }
        let delta = [other.means[0] - self.means[0], other.means[1] - self.means[1]];
        let weight = self.n * other.n / n;
        self.product += other.product + delta[0] * delta[1] * weight;
        for (k, delta) in delta.into_iter().enumerate() {
            self.squares[k] += other.squares[k] + delta * delta * weight;
            self.means[k] += delta * other.n / n;
        }
        self.error += other.error;
        self.n = n;
    }

    /// Correlation, and the error relative to the float values' variation; `None` where these do not vary.
    fn figures(&self) -> Option<[f64; 2]> {
        let [float, quantized] = self.squares;
        let correlation = self.product / (float * quantized).sqrt();
        let correlation = if correlation.is_finite() { correlation.clamp(-1.0, 1.0) } else { 0.0 };
        (float > 0.0).then(|| [correlation, (self.error / float).sqrt()])
    }
}

/// Sums by channel.
#[derive(Debug, Clone, Default)]
pub(super) struct RegressionSums {
    channels: Vec<ChannelMoments>,
}

/// Figures of numbers and maps.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct RegressionFigures {
    /// Pearson's correlation with the float network's values over samples and positions, -1 to 1: mean over the channels
    /// that vary. 0 for one that is constant in the quantized network alone. Absent where none varies in float.
    pub correlation: Option<f64>,
    /// Root of the mean squared difference by the standard deviation of the float network's values (which are centred,
    /// the difference is not): mean over the channels that vary.
    pub centred_error: Option<f64>,
    /// The channel with the largest error.
    pub worst: Option<WorstChannel>,
    /// Channels.
    pub n_channels: usize,
    /// Those of them that are the same everywhere in the float network, and in no figure.
    pub n_constant: usize,
}

/// The channel with the largest error.
#[derive(Debug, Clone, Serialize)]
pub struct WorstChannel {
    /// Its index.
    pub channel: usize,
    /// As for the output.
    pub correlation: f64,
    /// As for the output.
    pub centred_error: f64,
}

impl RegressionSums {
    /// By the given axis, or the second; all values are one channel where there is none.
    pub fn of(pair: &OutputPair, channel_axis: Option<usize>) -> Option<RegressionSums> {
        if !pair.is_float || pair.float.is_empty() {
            return None;
        }
        let lines = match channel_axis {
            Some(axis) => AlongAxis::of(pair.shape, axis)?,
            None => AlongAxis::of(pair.shape, 1).unwrap_or(AlongAxis { outer: pair.float.len(), n: 1, inner: 1 }),
        };
        let mut channels = vec![ChannelMoments::default(); lines.n];
        for (i, (&a, &b)) in pair.float.iter().zip(pair.quantized).enumerate() {
            let (a, b) = (f64::from(a), f64::from(b));
            let one = ChannelMoments { n: 1.0, means: [a, b], error: (a - b) * (a - b), ..ChannelMoments::default() };
            // An infinity that both have is no value to measure by.
            if one.error.is_finite() {
                channels[i / lines.inner % lines.n].merge(&one);
            }
        }
        Some(RegressionSums { channels })
    }

    /// Adds another sample; one with more channels has them behind the others.
    pub fn merge(&mut self, other: &RegressionSums) {
        let n = self.channels.len().max(other.channels.len());
        self.channels.resize(n, ChannelMoments::default());
        self.channels.iter_mut().zip(&other.channels).for_each(|(all, one)| all.merge(one));
    }

    pub fn figures(&self) -> RegressionFigures {
        let figures = |(channel, moments): (usize, &ChannelMoments)| {
            let [correlation, centred_error] = moments.figures()?;
            Some(WorstChannel { channel, correlation, centred_error })
        };
        let measured: Vec<WorstChannel> = self.channels.iter().enumerate().filter_map(figures).collect();
        let mean = |of: fn(&WorstChannel) -> f64| {
            let n = measured.len();
            (n > 0).then(|| measured.iter().map(of).sum::<f64>() / n as f64)
        };
        RegressionFigures {
            correlation: mean(|one| one.correlation),
            centred_error: mean(|one| one.centred_error),
            worst: measured.iter().max_by(|a, b| a.centred_error.total_cmp(&b.centred_error)).cloned(),
            n_channels: self.channels.len(),
            n_constant: self.channels.len() - measured.len(),
        }
    }
}
