//! How near all outputs of a network are to the float ones.

use super::classes::{row_length, same_class};
use super::decibels::{MAX_DB, relative_error_db};
use super::error::{QuantizationError, ValuePair, gain_db};
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
        self.outputs.iter().filter(|output| output.n_values > 0).map(db).reduce(f64::min).unwrap_or(-MAX_DB)
    }

    /// The lowest share of rows of class scores with the same largest value, in percent; `None` where no
    /// output has such rows.
    pub fn agreement_percent(&self) -> Option<f64> {
        let percent = |[all, same]: [usize; 2]| 100.0 * same as f64 / all as f64;
        self.outputs.iter().filter(|output| output.rows[0] > 0).map(|output| percent(output.rows)).reduce(f64::min)
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
        self.error.push(ValuePair { float, quantized: other });
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
