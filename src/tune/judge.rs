//! Whether one network is nearer to the float one than another, on samples that neither has learned from.

use crate::engine::Value;

/// Signal and noise of one output, sample by sample.
#[derive(Debug, Clone, Default)]
pub struct Noise {
    samples: Vec<(f64, f64)>,
}

impl Noise {
    /// Adds one sample; nothing where it is not float32.
    pub fn add(&mut self, float: &Value, quantized: &Value) {
        let (Some(a), Some(b)) = (float.f32s(), quantized.f32s()) else { return };
        let square = |x: f64| x * x;
        let signal = a.iter().map(|&a| square(f64::from(a))).sum();
        let noise = a.iter().zip(b).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
        self.samples.push((signal, noise));
    }

    /// SQNR over all samples, in dB; `None` where there is no noise, or no finite one.
    fn sqnr_db(&self) -> Option<f64> {
        let signal: f64 = self.samples.iter().map(|s| s.0).sum();
        let noise: f64 = self.samples.iter().map(|s| s.1).sum();
        let db = 10.0 * (signal / noise).log10();
        (noise > 0.0 && db.is_finite()).then_some(db)
    }

    /// How much less noise `other` has, in dB: the mean of what all samples together have less and of what
    /// one sample typically has less. The SQNR of all is ruled by a few bad samples; the typical sample by
    /// those with hardly any noise, so that a quarter of the mean noise is added to each.
    fn gain_db(&self, other: &Noise) -> Option<f64> {
        let n = self.samples.len().min(other.samples.len());
        let mean = self.samples.iter().map(|s| s.1).sum::<f64>() / n.max(1) as f64;
        let floor = 0.25 * mean;
        let pairs = self.samples.iter().zip(&other.samples);
        let typical: f64 =
            pairs.map(|(a, b)| 10.0 * ((a.1 + floor) / (b.1 + floor)).log10()).sum::<f64>();
        let noise = |noise: &Noise| noise.samples[..n].iter().map(|s| s.1).sum::<f64>();
        let overall = 10.0 * (noise(self) / noise(other).max(f64::MIN_POSITIVE)).log10();
        let gain = 0.5 * (typical / n as f64 + overall);
        (n > 0 && floor > 0.0 && gain.is_finite()).then_some(gain)
    }
}

fn mean(values: impl Iterator<Item = Option<f64>>) -> f64 {
    let values: Vec<f64> = values.flatten().collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Mean SQNR over the outputs, in dB.
pub fn sqnr_db(outputs: &[Noise]) -> f64 {
    mean(outputs.iter().map(Noise::sqnr_db))
}

/// Mean gain over the outputs, in dB; above 0 where `after` is nearer to the float network.
pub fn gain_db(before: &[Noise], after: &[Noise]) -> f64 {
    mean(before.iter().zip(after).map(|(before, after)| before.gain_db(after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(samples: &[f64]) -> Noise {
        Noise { samples: samples.iter().map(|&noise| (1.0, noise)).collect() }
    }

    #[test]
    fn most_samples_decide() {
        let before = noise(&[1.0, 1.0, 1.0, 1.0, 20.0]);
        let after = noise(&[0.1, 0.1, 0.1, 0.1, 30.0]);
        let (before, after) = ([before], [after]);
        assert!(sqnr_db(&before) > sqnr_db(&after));
        assert!(gain_db(&before, &after) > 0.0);
        assert!(gain_db(&after, &before) < 0.0);
    }

    #[test]
    fn samples_without_noise_to_speak_of_do_not() {
        let before = noise(&[1.0, 1.0, 1e-9]);
        let after = noise(&[0.5, 0.5, 1e-6]);
        assert!(gain_db(&[before], &[after]) > 1.0);
    }
}
