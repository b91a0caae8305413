//! Bias correction: the mean of each output channel as in the float network.
//!
//! Source: empirical bias correction, Nagel et al., 2019 (arXiv 1906.04721), section 4.2, here one layer
//! after another, each seeing its quantized predecessors.

use crate::engine::Value;

/// What to add to each output channel, so that the quantized outputs `quantized` have the means of the
/// float outputs `float`, over all samples. A channel whose error differs from sample to sample is moved
/// less: by the share of the squared mean that is above `doubt` times the variance of the mean.
pub fn correction(
    layer: &OutChannels,
    float: &[Value],
    quantized: &[Value],
    doubt: f64,
) -> Vec<f64> {
    let means: Vec<Vec<f64>> = float
        .iter()
        .zip(quantized)
        .map(|(float, quantized)| layer.mean_difference(float, quantized))
        .collect();
    beyond_doubt(&means, layer.n_out, doubt)
}

/// Means over the samples, as far as they stand out: `means` holds a value per sample and channel.
pub fn beyond_doubt(means: &[Vec<f64>], n_out: usize, doubt: f64) -> Vec<f64> {
    let n = means.len().max(1) as f64;
    (0..n_out)
        .map(|o| {
            let mean = means.iter().map(|m| m[o]).sum::<f64>() / n;
            let spread = means.iter().map(|m| (m[o] - mean).powi(2)).sum::<f64>();
            let noise = spread / (n - 1.0).max(1.0) / n;
            let share =
                if mean == 0.0 { 0.0 } else { (1.0 - doubt * noise / (mean * mean)).max(0.0) };
            mean * share
        })
        .collect()
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
    /// Mean of each channel of `float` less that of `quantized`.
    pub fn mean_difference(&self, float: &Value, quantized: &Value) -> Vec<f64> {
        let mut sums = vec![0f64; self.n_out];
        let (Some(a), Some(b)) = (float.f32s(), quantized.f32s()) else { return sums };
        let inner = self.inner(float);
        let runs = a.chunks(inner).zip(b.chunks(inner));
        for (run, (a, b)) in runs.enumerate() {
            let difference: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b)).sum();
            sums[run % self.n_out] += difference;
        }
        let n = (a.len() / self.n_out.max(1)).max(1) as f64;
        sums.iter_mut().for_each(|sum| *sum /= n);
        sums
    }

    /// Mean of each channel.
    pub fn means(&self, value: &Value) -> Vec<f64> {
        let mut sums = vec![0f64; self.n_out];
        let Some(values) = value.f32s() else { return sums };
        for (run, part) in values.chunks(self.inner(value)).enumerate() {
            sums[run % self.n_out] += part.iter().map(|&x| f64::from(x)).sum::<f64>();
        }
        let n = (values.len() / self.n_out.max(1)).max(1) as f64;
        sums.iter_mut().for_each(|sum| *sum /= n);
        sums
    }

    /// Adds `by` to the channels of `value`.
    pub fn shift(&self, value: &Value, by: &[f32]) -> anyhow::Result<Value> {
        let Some(values) = value.f32s() else { return Ok(value.clone()) };
        let mut values = values.to_vec();
        for (run, part) in values.chunks_mut(self.inner(value)).enumerate() {
            let by = by[run % self.n_out];
            part.iter_mut().for_each(|value| *value += by);
        }
        Value::from_f32(value.shape(), values)
    }

    fn inner(&self, value: &Value) -> usize {
        if self.planes { value.shape()[2..].iter().product::<usize>().max(1) } else { 1 }
    }
}
