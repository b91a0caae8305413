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

/// How the values of a tensor are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Units {
    /// Each channel by its own variance; none where a sample has too few values of a channel to tell that.
    Values {
        /// The axis of the channels; that along which values spread most differently where none is given.
        axis: Option<usize>,
    },
    /// As values, in front of a Sigmoid: what is above [`LIKELY`] is likely.
    Scores {
        /// The axis of the channels.
        axis: Option<usize>,
    },
    /// Differences along an axis alone, as in front of a Softmax.
    Centred {
        /// The axis; below 0 from the end.
        axis: i64,
    },
}

impl Units {
    /// The same, with channels along `axis`.
    pub fn along(self, axis: usize) -> Units {
        match self {
            Units::Values { .. } => Units::Values { axis: Some(axis) },
            Units::Scores { .. } => Units::Scores { axis: Some(axis) },
            Units::Centred { .. } => self,
        }
    }
}

/// The same values of both networks.
#[derive(Debug, Clone, Copy)]
pub struct ValuePair<'a> {
    /// Of the float network.
    pub float: &'a [f32],
    /// Of the quantized one.
    pub quantized: &'a [f32],
}

/// Values of a channel in one sample from which its variance is taken, at least.
const LEAST_POSITIONS: usize = 16;
/// Least variance of a channel, over the mean of the channels'.
const LEAST_OF_MEAN: f64 = 1e-6;
/// Least variance of a channel, over the square of its mean.
const LEAST_OF_LEVEL: f64 = 1e-4;
/// In front of a Sigmoid: what float finds likely is above, a probability of 0.27.
pub const LIKELY: f32 = -1.0;

/// Which values of a tensor are compared.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// All.
    All,
    /// Those at likely positions, and of scores there the likely ones.
    Likely(&'a LikelyPositions),
    /// All others.
    Others(&'a LikelyPositions),
}

/// Where the float network finds something: the positions at which every tensor of scores has a likely one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LikelyPositions {
    /// Per sample and position.
    are: Vec<Vec<bool>>,
}

impl LikelyPositions {
    /// Counts those positions alone at which a tensor of scores of this `shape` has a likely value, too; `samples` are of
    /// the float network.
    pub fn narrow(&mut self, samples: &[&[f32]], shape: &[usize], axis: usize) {
        let of = |values: &&[f32]| {
            let mut likely = vec![false; values.len() / shape.get(axis).copied().unwrap_or(1).max(1)];
            for (i, value) in values.iter().enumerate() {
                if let Some(likely) = likely.get_mut(position(i, shape, axis)) {
                    *likely |= *value > LIKELY;
                }
            }
            likely
        };
        let found: Vec<Vec<bool>> = samples.iter().map(of).collect();
        if self.are.is_empty() {
            self.are = found;
            return;
        }
        for (are, found) in self.are.iter_mut().zip(found) {
            are.iter_mut().zip(found).for_each(|(are, found)| *are &= found);
        }
    }

    fn contains(&self, sample_idx: usize, position: usize) -> bool {
        self.are.get(sample_idx).and_then(|are| are.get(position)).copied().unwrap_or(false)
    }
}

/// The position of a value among those of its channel.
fn position(value_idx: usize, shape: &[usize], axis: usize) -> usize {
    let inner = shape.iter().skip(axis + 1).product::<usize>().max(1);
    let n = shape.get(axis).copied().unwrap_or(1).max(1);
    value_idx / (n * inner) * inner + value_idx % inner
}

/// How far one tensor of a quantized network is from the float one, sample by sample.
#[derive(Debug, Clone, Default)]
pub struct QuantizationError {
    samples: Vec<Squares>,
    /// Whether it is of likely positions alone.
    is_of_likely: bool,
}

impl QuantizationError {
    /// Of some samples of a tensor of this `shape`. Likely positions are told apart where a sample has enough values of a
    /// channel; else there are none.
    pub fn of(samples: &[ValuePair], shape: &[usize], units: Units, part: Part) -> QuantizationError {
        let is_of_likely = matches!(part, Part::Likely(_));
        let (axis, is_scores) = match units {
            Units::Centred { axis } => {
                let axis = usize::try_from(axis).unwrap_or((axis + shape.len() as i64).max(0) as usize);
                let samples = samples.iter().map(|pair| pair.centred(shape, axis)).collect();
                return QuantizationError { samples, is_of_likely };
            }
            Units::Values { axis } => (axis, false),
            Units::Scores { axis } => (axis, true),
        };
        let axis = axis.or_else(|| channel_axis(samples, shape));
        let channels = axis.and_then(|axis| PerChannel::of(samples, shape, axis));
        let samples = match (channels, axis) {
            (Some(channels), Some(axis)) => {
                let is_likely = |positions: &LikelyPositions, sample_idx: usize, i: usize, value: f64| {
                    positions.contains(sample_idx, position(i, shape, axis))
                        && (!is_scores || value > f64::from(LIKELY))
                };
                let counts = |sample_idx: usize, i: usize, value: f64| match part {
                    Part::All => true,
                    Part::Likely(positions) => is_likely(positions, sample_idx, i, value),
                    Part::Others(positions) => !is_likely(positions, sample_idx, i, value),
                };
                channels.squares(samples, counts)
            }
            _ if is_of_likely => Vec::new(),
            _ => samples.iter().map(ValuePair::squares).collect(),
        };
        QuantizationError { samples, is_of_likely }
    }

    /// Adds a sample, all its values in one unit.
    pub fn push(&mut self, pair: ValuePair) {
        self.samples.push(pair.squares());
    }

    /// Of the samples from `first` on alone.
    pub fn from(&self, first: usize) -> QuantizationError {
        let samples = self.samples.get(first..).unwrap_or_default().to_vec();
        QuantizationError { samples, ..*self }
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

impl ValuePair<'_> {
    fn values_and_errors(&self) -> impl Iterator<Item = (f64, f64)> {
        self.float.iter().zip(self.quantized).map(|(&a, &b)| value_and_error(a, b))
    }

    fn squares(&self) -> Squares {
        let (values, errors) = (self.values_and_errors().map(|p| p.0), self.values_and_errors().map(|p| p.1));
        Squares { signal: values.map(square).sum(), error: errors.map(square).sum() }
    }

    fn centred(&self, shape: &[usize], axis: usize) -> Squares {
        let (values, errors): (Vec<f64>, Vec<f64>) = self.values_and_errors().unzip();
        Squares { signal: variation(&values, shape, axis), error: variation(&errors, shape, axis) }
    }
}

/// The channels of a tensor.
struct PerChannel {
    n: usize,
    /// Values behind each other of one channel.
    inner: usize,
    variances: Vec<f64>,
}

impl PerChannel {
    /// `None` where a sample has too few values of each.
    fn of(samples: &[ValuePair], shape: &[usize], axis: usize) -> Option<PerChannel> {
        let n = shape.get(axis).copied().filter(|n| *n > 0)?;
        let inner = shape[axis + 1..].iter().product::<usize>().max(1);
        let n_values: usize = shape.iter().product();
        if n_values / n < LEAST_POSITIONS || samples.iter().any(|pair| pair.float.len() != n_values) {
            return None;
        }
        let mut sums = vec![[0.0f64; 2]; n];
        for pair in samples {
            for (i, value) in pair.float.iter().enumerate().filter(|(_, value)| value.is_finite()) {
                let [sum, squares] = &mut sums[i / inner % n];
                *sum += f64::from(*value);
                *squares += square(f64::from(*value));
            }
        }
        let count = (samples.len() * (n_values / n)).max(1) as f64;
        let means: Vec<f64> = sums.iter().map(|[sum, _]| sum / count).collect();
        let variance = |([_, squares], mean): (&[f64; 2], &f64)| (squares / count - square(*mean)).max(0.0);
        let variances: Vec<f64> = sums.iter().zip(&means).map(variance).collect();
        // A channel that hardly varies says nothing; what it is off matters by its level, or by what others are.
        let of_all = (LEAST_OF_MEAN * variances.iter().sum::<f64>() / n as f64).max(f64::MIN_POSITIVE);
        let variances = variances.into_iter().zip(&means);
        let variances = variances.map(|(variance, mean)| variance.max(LEAST_OF_LEVEL * square(*mean)).max(of_all));
        Some(PerChannel { n, inner, variances: variances.collect() })
    }

    /// How much the logarithm of the variance differs between channels.
    fn spread(&self) -> f64 {
        let logs = || self.variances.iter().map(|variance| variance.ln());
        let mean = logs().sum::<f64>() / self.n as f64;
        logs().map(|log| square(log - mean)).sum::<f64>() / self.n as f64
    }

    /// Sums of squares per sample, in units of the channels' variances; of those values alone that `counts` by their
    /// sample, position and size.
    fn squares(&self, samples: &[ValuePair], counts: impl Fn(usize, usize, f64) -> bool) -> Vec<Squares> {
        let of = |(sample_idx, pair): (usize, &ValuePair)| {
            let mut sums = Squares { signal: 0.0, error: 0.0 };
            let values = pair.values_and_errors().enumerate();
            for (i, (_, error)) in values.filter(|(i, (value, _))| counts(sample_idx, *i, *value)) {
                sums.signal += 1.0;
                sums.error += square(error) / self.variances[i / self.inner % self.n];
            }
            sums
        };
        samples.iter().enumerate().map(of).collect()
    }
}

/// The axis along which values spread most differently; not the first, that of the batch.
fn channel_axis(samples: &[ValuePair], shape: &[usize]) -> Option<usize> {
    let axes = (1..shape.len()).filter(|axis| shape[*axis] > 1);
    let spreads = axes.filter_map(|axis| Some((axis, PerChannel::of(samples, shape, axis)?.spread())));
    spreads.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(axis, _)| axis)
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

/// A tensor that is nearer to float than this, in dB, is not harmed.
const HARMLESS_DB: f64 = 40.0;
/// What a tensor may lose beside its standard deviations, in dB.
const HARMLESS_LOSS_DB: f64 = 0.1;
/// Standard deviations that a loss must be above to be harm.
const DEVIATIONS: f64 = 2.0;
/// The same, of all tensors together at likely positions: they are few, and all that a detector is for.
const DEVIATIONS_OF_LIKELY: f64 = 1.0;

/// Whether a tensor loses more than its samples' choice does, or all together at likely positions.
fn does_harm(before: &[QuantizationError], after: &[QuantizationError]) -> bool {
    let alone = before.iter().zip(after).any(|(before, after)| {
        let (before, after) = (std::slice::from_ref(before), std::slice::from_ref(after));
        is_harm(before, after, DEVIATIONS)
    });
    let likely = |errors: &[QuantizationError]| -> Vec<QuantizationError> {
        errors.iter().filter(|error| error.is_of_likely).cloned().collect()
    };
    alone || is_harm(&likely(before), &likely(after), DEVIATIONS_OF_LIKELY)
}

fn is_harm(before: &[QuantizationError], after: &[QuantizationError], deviations: f64) -> bool {
    let is_near = |error: &QuantizationError| error.sqnr_db().is_none_or(|db| db > HARMLESS_DB);
    let loss_db = -gain_db(before, after);
    !after.iter().all(is_near) && loss_db > HARMLESS_LOSS_DB + deviations * standard_deviation_db(before, after)
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
    /// Whether a tensor loses more than its samples' choice does, or all together at likely positions.
    pub does_harm: bool,
}

impl Gain {
    /// Of the errors of a second network over those of a first, output by output.
    pub fn of(before: &[QuantizationError], after: &[QuantizationError]) -> Gain {
        Gain {
            sqnr_db: [mean_sqnr_db(before), mean_sqnr_db(after)],
            gain_db: gain_db(before, after),
            standard_deviation_db: standard_deviation_db(before, after),
            does_harm: does_harm(before, after),
        }
    }

    /// As [`Gain::of`], where the first `n_tune` samples were learned from: they may show harm, and no gain.
    pub fn on_held_out(before: &[QuantizationError], after: &[QuantizationError], n_tune: usize) -> Gain {
        let held_out = |errors: &[QuantizationError]| errors.iter().map(|error| error.from(n_tune)).collect::<Vec<_>>();
        let (of_all, of_held_out) = (Gain::of(before, after), Gain::of(&held_out(before), &held_out(after)));
        Gain { does_harm: of_all.does_harm || of_held_out.does_harm, ..of_held_out }
    }
}
