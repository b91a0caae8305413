//! Whether one network is nearer to the float one than another, sample by sample.

use super::decibels::{MAX_DB, sqnr_db};
use super::value_and_error;

/// Sums of squares over one sample of one output.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Squares {
    /// Of the float values.
    signal: f64,
    /// Of what the quantized ones are off.
    error: f64,
}

/// The axis of an output along which only differences count, as in front of a Softmax.
#[derive(Debug, Clone, Copy)]
pub struct Centred<'a> {
    /// The output's shape.
    pub shape: &'a [usize],
    /// The axis.
    pub axis: usize,
}

/// How far one output of a quantized network is from the float one, sample by sample.
#[derive(Debug, Clone, Default)]
pub struct QuantizationError {
    samples: Vec<Squares>,
}

impl QuantizationError {
    /// Adds one sample, as many values of both networks.
    pub fn add(&mut self, float: &[f32], quantized: &[f32], centred: Option<Centred>) {
        let pairs = || float.iter().zip(quantized).map(|(&a, &b)| value_and_error(a, b));
        let (values, errors) = (pairs().map(|pair| pair.0), pairs().map(|pair| pair.1));
        self.samples.push(match centred {
            None => Squares { signal: values.map(square).sum(), error: errors.map(square).sum() },
            Some(centred) => Squares {
                signal: variation(&values.collect::<Vec<_>>(), centred),
                error: variation(&errors.collect::<Vec<_>>(), centred),
            },
        });
    }

    /// Whether a value is NaN or infinite, in one of the networks or in both.
    pub fn is_unknown(&self) -> bool {
        self.samples.iter().any(|sample| !sample.error.is_finite())
    }

    /// Sum over the first `n` samples.
    fn total(&self, n: usize) -> f64 {
        self.samples[..n].iter().map(|sample| sample.error).sum()
    }

    /// SQNR over all samples, in dB; the worst where a value is NaN or infinite, `None` where there is no error.
    fn sqnr_db(&self) -> Option<f64> {
        if self.is_unknown() {
            return Some(-MAX_DB);
        }
        let signal: f64 = self.samples.iter().map(|sample| sample.signal).sum();
        let error = self.total(self.samples.len());
        let db = sqnr_db(signal, error);
        (error > 0.0 && db.is_finite()).then_some(db)
    }

    /// How much smaller `other` is, in dB: the mean of what all samples together gain and of what one sample
    /// typically gains. The SQNR of all is ruled by a few bad samples; the typical sample by those with hardly any
    /// error, so that a quarter of the mean error is added to each.
    fn gain_db(&self, other: &QuantizationError) -> Option<f64> {
        let n = self.samples.len().min(other.samples.len());
        let mean = self.total(self.samples.len()) / n.max(1) as f64;
        let floor = 0.25 * mean;
        let pairs = self.samples.iter().zip(&other.samples);
        let typical: f64 = pairs.map(|(a, b)| 10.0 * ((a.error + floor) / (b.error + floor)).log10()).sum::<f64>();
        let overall = 10.0 * (self.total(n) / other.total(n).max(f64::MIN_POSITIVE)).log10();
        let gain = 0.5 * (typical / n as f64 + overall);
        (n > 0 && floor > 0.0 && gain.is_finite()).then_some(gain)
    }
}

fn square(x: f64) -> f64 {
    x * x
}

/// Sum of the squares about the means along an axis.
fn variation(values: &[f64], Centred { shape, axis }: Centred) -> f64 {
    let n = shape.get(axis).copied().unwrap_or(1).max(1);
    let inner = shape.iter().skip(axis + 1).product::<usize>().max(1);
    let of_line = |part: &[f64], i: usize| {
        let line = || part[i..].iter().step_by(inner);
        let mean = line().sum::<f64>() / n as f64;
        line().map(|x| square(x - mean)).sum::<f64>()
    };
    values.chunks_exact(n * inner).flat_map(|part| (0..inner).map(move |i| of_line(part, i))).sum()
}

fn mean(values: impl Iterator<Item = Option<f64>>) -> f64 {
    let values: Vec<f64> = values.flatten().collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Mean SQNR over the outputs, in dB.
pub fn mean_sqnr_db(outputs: &[QuantizationError]) -> f64 {
    mean(outputs.iter().map(QuantizationError::sqnr_db))
}

/// Mean gain over the outputs, in dB; above 0 where `after` is nearer to the float network. The worst where a value of
/// `after` is NaN or infinite, whatever other outputs gain, and the best where that was so only `before`.
pub fn gain_db(before: &[QuantizationError], after: &[QuantizationError]) -> f64 {
    match (unknown(before), unknown(after)) {
        (_, true) => -MAX_DB,
        (true, false) => MAX_DB,
        (false, false) => mean(before.iter().zip(after).map(|(before, after)| before.gain_db(after))),
    }
}

fn unknown(outputs: &[QuantizationError]) -> bool {
    outputs.iter().any(QuantizationError::is_unknown)
}

/// How far the gain may be off because the samples are these and not others, in dB: one standard deviation,
/// by leaving out one sample at a time (the jackknife). 0 where a value is NaN or infinite: no sample puts that in doubt.
fn standard_deviation_db(before: &[QuantizationError], after: &[QuantizationError]) -> f64 {
    if unknown(before) || unknown(after) {
        return 0.0;
    }
    let n = before.iter().map(|error| error.samples.len()).max().unwrap_or(0);
    let without = |errors: &[QuantizationError], left_out: usize| -> Vec<QuantizationError> {
        let of = |error: &QuantizationError| {
            let mut error = error.clone();
            if left_out < error.samples.len() {
                error.samples.remove(left_out);
            }
            error
        };
        errors.iter().map(of).collect()
    };
    let gains: Vec<f64> = (0..n).map(|i| gain_db(&without(before, i), &without(after, i))).collect();
    let mean = gains.iter().sum::<f64>() / n.max(1) as f64;
    let spread: f64 = gains.iter().map(|gain| square(gain - mean)).sum();
    (spread * (n as f64 - 1.0).max(0.0) / n.max(1) as f64).sqrt()
}

/// What a second network gains over a first, on the same samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Gain {
    /// Mean SQNR of the outputs, in dB.
    pub sqnr_db: [f64; 2],
    /// How much smaller the second's error is, in dB.
    pub gain_db: f64,
    /// How far that is a matter of the samples, in dB: one standard deviation.
    pub standard_deviation_db: f64,
}

impl Gain {
    /// Of the errors of a second network over those of a first, output by output.
    pub fn of(before: &[QuantizationError], after: &[QuantizationError]) -> Gain {
        Gain {
            sqnr_db: [mean_sqnr_db(before), mean_sqnr_db(after)],
            gain_db: gain_db(before, after),
            standard_deviation_db: standard_deviation_db(before, after),
        }
    }
}
