//! The layout of an output: its channel axis, and whether it is class scores.

use super::classes::n_classes;
use super::outputs::EvaluatedOutput;

/// An output of the float network over some samples.
#[derive(Debug, Clone)]
pub struct FloatOutput<'a> {
    /// The output's description from the graph.
    pub about: &'a EvaluatedOutput,
    /// Batch size of the network's first input.
    pub batch: usize,
    /// Shape in the first sample.
    pub shape: &'a [usize],
    /// Values of each sample.
    pub samples: Vec<&'a [f32]>,
    /// Shape in each sample, if the network's inputs have several shapes; otherwise empty.
    pub shapes: Vec<&'a [usize]>,
}

/// Least confidence of rows that are logits: their largest probability after Softmax, mean over the rows. Their class
/// is rarely in doubt. For few classes the limit is higher.
const LEAST_CONFIDENCE: f64 = 0.25;
/// The same for rows longer than [`LONG_ROW`] without a negative value: logits behind a Relu, as in SqueezeNet. Pooled
/// features have no negative value either, but a Softmax is not confident of one of them.
const LEAST_CONFIDENCE_BEHIND_RELU: f64 = 0.5;
/// Largest variance of the mean of a row of few logits, in units of the variance that independent values would give the
/// mean. The gradient of cross entropy sums to zero over the classes, so training leaves the mean of a row where it
/// was. Joint angles, coordinates and other regressed values reach 1 or more.
const LARGEST_VARIANCE_OF_MEANS: f64 = 0.3;
/// Maximum values per row for [`LARGEST_VARIANCE_OF_MEANS`]. Longer rows are too long for most regressed vectors, and
/// their logits may come from other losses.
const LONG_ROW: usize = 100;
/// Minimum rows for [`LARGEST_VARIANCE_OF_MEANS`].
const LEAST_ROWS: f64 = 8.0;
/// Maximum samples for the detection of the channel axis.
const MAX_SAMPLES: usize = 16;
/// Mean squared difference of neighbors, divided by twice the variance, below which values along an axis are smooth.
const SMOOTH: f64 = 0.25;
/// Least ratio of the length of rows to that of the last axis at which an output [N, rows, last axis] is examined for
/// channels along its last axis, and not along its rows.
const MANY_ROWS: usize = 100;
/// Least ratio of the roughness along the last axis to that along so many rows at which the last axis has the channels.
/// Along the positions of a signal with its channels first, values are smoother.
const ROUGH_ENOUGH: f64 = 0.5;
/// Least length of both axes of an output [N, height, width] that is a picture if it is smooth along both.
const LEAST_SIDE: usize = 32;
/// Least share of the variance that the means along a smooth channel axis explain.
const LEAST_EXPLAINED: f64 = 0.1;

impl FloatOutput<'_> {
    /// Whether every sample has the same number of values.
    pub fn is_fixed(&self) -> bool {
        let n: usize = self.shape.iter().product();
        n > 0 && self.samples.iter().all(|values| values.len() == n)
    }

    /// Whether the channels can be determined. Every sample must have the same number of values, or the same number of
    /// axes if the network's inputs have several shapes.
    pub(super) fn has_channels(&self) -> bool {
        let is_filled = |shape: &&[usize]| shape.len() == self.shape.len() && !shape.contains(&0);
        self.is_fixed() || !self.shapes.is_empty() && self.shapes.iter().all(is_filled)
    }

    /// Returns the channel axis: the axis whose neighbors differ most. It has the same length in all samples. `None` if
    /// the output is a map without channels, or has one value per sample. The first of two or more axes is the batch.
    ///
    /// The measure is the mean squared difference of neighbors divided by twice the variance. It is about 1 for
    /// independent values, and near 0 along an axis of an image. An output [N, many rows, few values] has its channels
    /// last unless its values are smooth there. One of [N, many values, 1] or [N, 1, many values] has one channel if
    /// its values are smooth; otherwise they are features.
    pub fn channel_axis(&self) -> Option<usize> {
        let shape_of = |sample: usize| self.shapes.get(sample).copied().unwrap_or(self.shape);
        let samples = self.samples.iter().enumerate();
        axis_of(&samples.map(|(sample, values)| (shape_of(sample), *values)).collect::<Vec<_>>())
    }

    /// Returns the number of values per row, if the shape is that of class scores.
    pub(super) fn row_length(&self) -> Option<usize> {
        n_classes(self.shape, self.batch).filter(|_| self.about.is_float && self.is_fixed())
    }

    /// Returns the number of classes, if the output is class scores. It must have the shape of class scores. It must
    /// also come from a Softmax, be declared to be scores, or look like logits, probabilities or logarithms of
    /// probabilities. Boxes, landmarks, embeddings and other regressed values are not class scores.
    pub fn n_classes(&self) -> Option<usize> {
        let n = self.row_length()?;
        let rows = || self.samples.iter().flat_map(|values| values.chunks_exact(n));
        let look_like_scores =
            || are_probabilities(rows(), |p| p) || are_probabilities(rows(), f32::exp) || are_logits(rows(), n);
        let is_scores = self.about.is_scores.unwrap_or_else(look_like_scores);
        is_scores.then_some(n)
    }
}

/// Whether `probability` maps the values of each row to probabilities with sum 1.
fn are_probabilities<'r>(mut rows: impl Iterator<Item = &'r [f32]>, probability: impl Fn(f32) -> f32) -> bool {
    rows.all(|row| {
        let of_row = || row.iter().map(|&x| probability(x));
        of_row().all(|p| p >= 0.0) && (of_row().sum::<f32>() - 1.0).abs() < 1e-2
    })
}

/// Whether rows of `n` values look like logits. They have a negative value or are longer than [`LONG_ROW`], and a Softmax
/// would be confident of one class. If `n` is at most [`LONG_ROW`], the mean of the rows hardly varies.
fn are_logits<'r>(rows: impl Iterator<Item = &'r [f32]>, n: usize) -> bool {
    let (mut confidence, mut n_rows, mut has_negative) = (0.0, 0.0, false);
    let (mut sums, mut squares, mut mean_squares) = (vec![0.0; n], 0.0, 0.0);
    for row in rows {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // This is the largest probability that a Softmax would give the row.
        confidence += 1.0 / row.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>();
        n_rows += 1.0;
        has_negative |= row.iter().any(|&x| x < 0.0);
        let mut sum = 0.0;
        for (total, &x) in sums.iter_mut().zip(row) {
            let x = f64::from(x);
            *total += x;
            sum += x;
            squares += x * x;
        }
        mean_squares += sum * sum / n as f64;
    }
    // Squared deviations from the mean of each class: of all values, and of the means of rows.
    let total: f64 = sums.iter().sum();
    let all = squares - sums.iter().map(|sum| sum * sum).sum::<f64>() / n_rows;
    let of_means = mean_squares - total * total / (n_rows * n as f64);
    let varies = n as f64 * of_means > LARGEST_VARIANCE_OF_MEANS * (all - of_means);
    let is_regressed = varies && n <= LONG_ROW && n_rows >= LEAST_ROWS;
    let least_confidence = match has_negative {
        true => LEAST_CONFIDENCE + (1.0 - LEAST_CONFIDENCE) / n as f64,
        false => LEAST_CONFIDENCE_BEHIND_RELU,
    };
    (has_negative || n > LONG_ROW) && confidence / n_rows >= least_confidence && !is_regressed
}

/// The shape and the values of an output in a sample.
type Shaped<'a> = (&'a [usize], &'a [f32]);

fn axis_of(samples: &[Shaped]) -> Option<usize> {
    let (shape, _) = *samples.first()?;
    let is_fixed = |axis: usize| samples.iter().all(|(other, _)| other.get(axis) == shape.get(axis));
    let first = usize::from(shape.len() > 1);
    let axes: Vec<usize> = (first..shape.len()).filter(|&axis| shape[axis] > 1 && is_fixed(axis)).collect();
    let samples = &samples[..samples.len().min(MAX_SAMPLES)];
    let variance = Spread::of(samples.iter().flat_map(|(_, values)| values.iter())).variance;
    let roughness = |&axis: &usize| (axis, roughness(samples, axis) / (2.0 * variance));
    let all: Vec<(usize, f64)> = axes.iter().map(roughness).collect();
    let (axis, roughness) = all.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
    if let &[_, 1, n_values] = shape
        && n_values >= MANY_ROWS
        && roughness < ROUGH_ENOUGH
    {
        return None;
    }
    if let (&[_, n_rows, n_last], 1) = (shape, axis)
        && n_rows >= MANY_ROWS * n_last
    {
        let last = all.iter().copied().find(|&(axis, _)| axis == 2);
        match last {
            None if roughness < ROUGH_ENOUGH => return None,
            Some((last, of_last)) if of_last >= ROUGH_ENOUGH * roughness => return Some(last),
            _ => {}
        }
    }
    if shape.len() > 2 && roughness < SMOOTH {
        // This is a picture of one channel, which is first or last or has no axis. Its rows may differ, as in a depth map.
        let is_one_channel = match shape {
            [_, height, width] => *height.min(width) >= LEAST_SIDE,
            _ => axes.len() > 1 && [shape[1], shape[shape.len() - 1]].contains(&1),
        };
        if is_one_channel {
            return None;
        }
        let means = slice_means(samples, axis);
        let explained = Spread::of(means.iter()).variance / variance;
        return (explained >= LEAST_EXPLAINED).then_some(axis);
    }
    Some(axis)
}

struct Spread {
    variance: f64,
}

impl Spread {
    /// Returns the variance of the finite values.
    fn of<'v, T: Copy + Into<f64> + 'v>(values: impl Iterator<Item = &'v T> + Clone) -> Spread {
        let values = values.map(|&value| value.into()).filter(|value: &f64| value.is_finite());
        let (sum, n) = values.clone().fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
        let mean = sum / n;
        Spread { variance: values.map(|value| (value - mean).powi(2)).sum::<f64>() / n }
    }
}

/// Returns the mean squared difference of neighbors along an axis.
fn roughness(samples: &[Shaped], axis: usize) -> f64 {
    let (mut sum, mut n_pairs) = (0.0, 0.0);
    for (shape, values) in samples {
        let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        for part in values.chunks_exact(n * inner) {
            for (a, b) in part.iter().zip(&part[inner..]) {
                let square = f64::from(a - b).powi(2);
                if square.is_finite() {
                    sum += square;
                    n_pairs += 1.0;
                }
            }
        }
    }
    sum / f64::max(n_pairs, 1.0)
}

/// Returns the mean of the values at each position of an axis.
fn slice_means(samples: &[Shaped], axis: usize) -> Vec<f64> {
    let n = samples.first().map_or(0, |(shape, _)| shape[axis]);
    let mut sums = vec![(0.0, 0.0); n];
    for (shape, values) in samples {
        let inner = shape[axis + 1..].iter().product::<usize>();
        for (run, part) in values.chunks_exact(inner).enumerate() {
            let (sum, count) = &mut sums[run % n];
            for value in part.iter().filter(|value| value.is_finite()) {
                *sum += f64::from(*value);
                *count += 1.0;
            }
        }
    }
    sums.iter().map(|(sum, count)| sum / f64::max(*count, 1.0)).collect()
}
