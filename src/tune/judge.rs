//! Whether one network is nearer to the float one than another, on samples that neither has learned from.

use crate::engine::Value;
use crate::metrics::{MAX_DB, value_and_error};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::{self, axis_position};

/// The tensor by which an output is judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// Its name.
    pub tensor: String,
    /// The axis along which only differences count.
    pub centred: Option<i64>,
}

/// An output is judged by its values; that of a Softmax by what the Softmax reads, up to a constant. There
/// all samples have a say: of probabilities only the samples that are in doubt have.
pub fn judged(index: &GraphIndex, output: &str) -> Judged {
    let mut tensor = output;
    while let Some(producer) = index.producer(tensor) {
        let Some(input) = producer.input.first() else { break };
        match producer.op_type() {
            "Softmax" | "LogSoftmax" => {
                let centred = Some(node::int(producer, "axis", -1));
                return Judged { tensor: input.clone(), centred };
            }
            "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => tensor = input,
            _ => break,
        }
    }
    Judged { tensor: output.to_string(), centred: None }
}

/// Signal and noise of one output, sample by sample.
#[derive(Debug, Clone, Default)]
pub struct Noise {
    samples: Vec<(f64, f64)>,
}

impl Noise {
    /// Adds one sample; nothing where it is not float32.
    pub fn add(&mut self, float: &Value, quantized: &Value, centred: Option<i64>) {
        let (Some(a), Some(b)) = (float.f32s(), quantized.f32s()) else { return };
        let pairs = || a.iter().zip(b).map(|(&a, &b)| value_and_error(a, b));
        let (values, errors) = (pairs().map(|pair| pair.0), pairs().map(|pair| pair.1));
        let (signal, noise) = match centred {
            None => (values.map(square).sum(), errors.map(square).sum()),
            Some(axis) => {
                let axis = axis_position(axis, float.shape().len());
                let of = |values: Vec<f64>| variation(&values, float.shape(), axis);
                (of(values.collect()), of(errors.collect()))
            }
        };
        self.samples.push((signal, noise));
    }

    /// Whether a value is NaN or infinite, in one of the networks or in both.
    pub fn is_unknown(&self) -> bool {
        self.samples.iter().any(|sample| !sample.1.is_finite())
    }

    /// SQNR over all samples, in dB; the worst where a value is NaN or infinite, `None` where there is no noise.
    fn sqnr_db(&self) -> Option<f64> {
        if self.is_unknown() {
            return Some(-MAX_DB);
        }
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

fn square(x: f64) -> f64 {
    x * x
}

/// Sum of the squares about the means along an axis.
fn variation(values: &[f64], shape: &[usize], axis: usize) -> f64 {
    let n = shape.get(axis).copied().unwrap_or(1).max(1);
    let inner = shape.iter().skip(axis + 1).product::<usize>().max(1);
    let of_line = |part: &[f64], i: usize| {
        let line = || part[i..].iter().step_by(inner);
        let mean = line().sum::<f64>() / n as f64;
        line().map(|x| square(x - mean)).sum::<f64>()
    };
    let parts = values.chunks_exact(n * inner);
    parts.flat_map(|part| (0..inner).map(move |i| of_line(part, i))).sum()
}

fn mean(values: impl Iterator<Item = Option<f64>>) -> f64 {
    let values: Vec<f64> = values.flatten().collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Mean SQNR over the outputs, in dB.
pub fn sqnr_db(outputs: &[Noise]) -> f64 {
    mean(outputs.iter().map(Noise::sqnr_db))
}

/// Mean gain over the outputs, in dB; above 0 where `after` is nearer to the float network. The worst where a value of
/// `after` is NaN or infinite, whatever other outputs gain, and the best where that was so only `before`.
pub fn gain_db(before: &[Noise], after: &[Noise]) -> f64 {
    match (unknown(before), unknown(after)) {
        (_, true) => -MAX_DB,
        (true, false) => MAX_DB,
        (false, false) => {
            mean(before.iter().zip(after).map(|(before, after)| before.gain_db(after)))
        }
    }
}

fn unknown(outputs: &[Noise]) -> bool {
    outputs.iter().any(Noise::is_unknown)
}

/// How far the gain may be off because the samples are these and not others, in dB: one standard deviation,
/// by leaving out one sample at a time (the jackknife). 0 where a value is NaN or infinite: no sample puts that in doubt.
pub fn chance_db(before: &[Noise], after: &[Noise]) -> f64 {
    if unknown(before) || unknown(after) {
        return 0.0;
    }
    let n = before.iter().map(|noise| noise.samples.len()).max().unwrap_or(0);
    let without = |noise: &[Noise], left_out: usize| -> Vec<Noise> {
        let of = |noise: &Noise| {
            let mut noise = noise.clone();
            if left_out < noise.samples.len() {
                noise.samples.remove(left_out);
            }
            noise
        };
        noise.iter().map(of).collect()
    };
    let gains: Vec<f64> =
        (0..n).map(|i| gain_db(&without(before, i), &without(after, i))).collect();
    let mean = gains.iter().sum::<f64>() / n.max(1) as f64;
    let spread: f64 = gains.iter().map(|gain| square(gain - mean)).sum();
    (spread * (n as f64 - 1.0).max(0.0) / n.max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(samples: &[f64]) -> Noise {
        Noise { samples: samples.iter().map(|&noise| (1.0, noise)).collect() }
    }

    #[test]
    fn a_constant_in_front_of_a_softmax_is_no_noise() {
        let value = |values: &[f32]| Value::from_f32(&[1, 2, 3], values.to_vec()).unwrap();
        let float = value(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let moved = value(&[2.0, 3.0, 4.0, 1.0, 2.0, 3.5]);
        let mut noise = Noise::default();
        noise.add(&float, &moved, Some(-1));
        let third = 0.5f64 / 3.0;
        assert_eq!(noise.samples, [(4.0, 2.0 * third.powi(2) + (0.5 - third).powi(2))]);
    }

    #[test]
    fn values_that_are_no_numbers_are_never_a_gain() {
        let (good, better) = (noise(&[1.0; 4]), noise(&[0.1; 4]));
        for bad in [f64::NAN, f64::INFINITY] {
            let bad = noise(&[0.1, bad, 0.1, 0.1]);
            let after = [better.clone(), bad.clone()];
            let before = [good.clone(), good.clone()];
            assert_eq!((gain_db(&before, &after), chance_db(&before, &after)), (-MAX_DB, 0.0));
            assert_eq!((gain_db(&after, &after), gain_db(&after, &before)), (-MAX_DB, MAX_DB));
            assert_eq!((sqnr_db(&[bad]), chance_db(&after, &before)), (-MAX_DB, 0.0));
        }
    }

    #[test]
    fn what_only_one_network_has_as_a_number_is_noise_and_an_infinity_of_both_is_none() {
        let value = |values: &[f32]| Value::from_f32(&[1, 3], values.to_vec()).unwrap();
        let masked = value(&[f32::NEG_INFINITY, 2.0, 3.0]);
        for centred in [None, Some(-1)] {
            let mut same = Noise::default();
            same.add(&masked, &value(&[f32::NEG_INFINITY, 2.0, 2.0]), centred);
            assert!(!same.is_unknown() && same.samples[0].1 > 0.0, "{same:?}");
            let mut other = Noise::default();
            other.add(&masked, &value(&[-9.0, 2.0, 3.0]), centred);
            assert!(other.is_unknown(), "{other:?}");
        }
    }

    #[test]
    fn chance_is_what_samples_disagree_about() {
        let before = [noise(&[1.0; 8])];
        assert!(chance_db(&before, &[noise(&[0.5; 8])]) < 1e-9);
        let mut mixed = [0.5f64; 8];
        mixed[4..].fill(2.0);
        let chance = chance_db(&before, &[noise(&mixed)]);
        // The typical gain is 0, each sample 3 dB off, less what the mean noise of 1/4 levels.
        assert!((0.4..1.6).contains(&chance), "{chance}");
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
