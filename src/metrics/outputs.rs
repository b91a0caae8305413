//! How near all outputs of a network are to the float ones.

use super::classes::{row_length, same_class};
use super::decibels::{MAX_DB, relative_error_db};
use super::error::{QuantizationError, gain_db};
use super::value_and_error;

/// Sums over the samples, per output.
#[derive(Debug, Clone, Default)]
pub struct OutputErrors {
    outputs: Vec<OutputSums>,
}

#[derive(Debug, Clone, Default)]
struct OutputSums {
    error: QuantizationError,
    /// Values.
    n_values: usize,
    /// Sums of squares: of the float output, of the difference.
    sums: [f64; 2],
    /// Rows of class scores, and those whose largest is the same.
    rows: [usize; 2],
}

impl OutputErrors {
    /// For so many outputs.
    pub fn new(n_outputs: usize) -> OutputErrors {
        OutputErrors { outputs: vec![OutputSums::default(); n_outputs] }
    }

    /// Adds one sample of an output of this `shape`, as many values of the float network and of another.
    pub fn add(&mut self, output_idx: usize, shape: &[usize], float: &[f32], other: &[f32]) {
        self.outputs[output_idx].add(shape, float, other);
    }

    /// The lowest SQNR of an output, in dB; 200 at most, which stands for no error, and -200 where a value is NaN or
    /// infinite, or no output has values that could be measured.
    pub fn sqnr_db(&self) -> f64 {
        let db = |output: &OutputSums| match output.sums {
            [signal, error] if error > 0.0 => relative_error_db(error / signal),
            [_, error] => relative_error_db(error),
        };
        let measured = self.outputs.iter().filter(|output| output.n_values > 0);
        measured.map(db).reduce(f64::min).unwrap_or(-MAX_DB)
    }

    /// The lowest share of rows of class scores with the same largest value, in percent; `None` where no
    /// output has such rows.
    pub fn agreement_percent(&self) -> Option<f64> {
        let percent = |[all, same]: [usize; 2]| 100.0 * same as f64 / all as f64;
        let of_scores = self.outputs.iter().filter(|output| output.rows[0] > 0);
        of_scores.map(|output| percent(output.rows)).reduce(f64::min)
    }

    /// Mean over the outputs of the error relative to the output; the largest number where one is NaN or infinite.
    pub fn relative_error(&self) -> f64 {
        let relative = |output: &OutputSums| {
            let [signal, error] = output.sums;
            if error > 0.0 { error / signal } else { error }
        };
        let mean = self.outputs.iter().map(relative).sum::<f64>() / self.outputs.len().max(1) as f64;
        if mean.is_finite() { mean } else { f64::MAX }
    }

    /// How much smaller the errors of `other` are, in dB.
    pub fn gain_db(&self, other: &OutputErrors) -> f64 {
        let of = |errors: &OutputErrors| -> Vec<QuantizationError> {
            errors.outputs.iter().map(|output| output.error.clone()).collect()
        };
        gain_db(&of(self), &of(other))
    }
}

impl OutputSums {
    fn add(&mut self, shape: &[usize], float: &[f32], other: &[f32]) {
        self.error.add(float, other, None);
        self.n_values += float.len();
        for (&a, &b) in float.iter().zip(other) {
            let (value, error) = value_and_error(a, b);
            self.sums[0] += value * value;
            self.sums[1] += error * error;
        }
        if let Some(n) = row_length(shape) {
            let same = float.chunks(n).zip(other.chunks(n)).filter(|(a, b)| same_class(a, b)).count();
            self.rows[0] += float.len() / n;
            self.rows[1] += same;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sample of outputs of this shape.
    fn errors(shape: &[usize], float: &[&[f32]], other: &[&[f32]]) -> OutputErrors {
        let mut errors = OutputErrors::new(float.len());
        for (i, (float, other)) in float.iter().zip(other).enumerate() {
            errors.add(i, shape, float, other);
        }
        errors
    }

    #[test]
    fn rows_of_scores_agree_where_their_largest_do() {
        let (float, other) = ([1.0, 2.0, 0.0, 3.0, 1.0, 0.0], [1.0, 1.5, 0.0, 0.0, 1.0, 0.0]);
        let scores = errors(&[2, 3, 1, 1], &[&float], &[&other]);
        assert_eq!(scores.agreement_percent(), Some(50.0));
        let boxes = errors(&[1, 2, 3], &[&float], &[&float]);
        assert_eq!((boxes.agreement_percent(), boxes.sqnr_db()), (None, MAX_DB));
    }

    #[test]
    fn values_that_are_no_numbers_are_the_worst() {
        let good: &[f32] = &[1.0, 2.0];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let bad: &[f32] = &[bad, 2.0];
            // Of the quantized network, of both, of the float one.
            for (float, other) in [(good, bad), (bad, &[f32::NAN, 2.0]), (bad, good)] {
                let errors = errors(&[1, 2], &[float], &[other]);
                assert_eq!((errors.sqnr_db(), errors.relative_error()), (-MAX_DB, f64::MAX));
            }
            let agreement = errors(&[1, 2], &[good], &[bad]).agreement_percent();
            assert_eq!(agreement, Some(0.0));
        }
    }

    #[test]
    fn one_output_without_numbers_is_not_hidden_by_others() {
        let [good, near, bad]: [&[f32]; 3] = [&[1.0, 2.0], &[1.0, 2.1], &[f32::NAN, 2.0]];
        let errors = |first, second| errors(&[1, 2], &[good, good], &[first, second]);
        let (before, after) = (errors(near, near), errors(good, bad));
        assert_eq!((after.sqnr_db(), after.relative_error()), (-MAX_DB, f64::MAX));
        assert_eq!((before.gain_db(&after), after.gain_db(&before)), (-MAX_DB, MAX_DB));
        // What is left of the error where one of two moves is no number is never NaN.
        assert_eq!(errors(bad, bad).relative_error() - after.relative_error(), 0.0);
    }

    #[test]
    fn nothing_measured_reaches_no_goal() {
        assert_eq!(OutputErrors::default().sqnr_db(), -MAX_DB);
        let empty = errors(&[0, 2], &[&[]], &[&[]]);
        assert_eq!((empty.sqnr_db(), empty.agreement_percent()), (-MAX_DB, None));
        let of = relative_error_db;
        assert_eq!((of(f64::NAN), of(f64::INFINITY)), (-MAX_DB, -MAX_DB));
        assert_eq!((of(0.0), of(0.1)), (MAX_DB, 10.0));
    }
}
