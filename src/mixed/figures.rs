//! How near a network is to the float one, on some samples.

use crate::engine::Value;
use crate::metrics::{MAX_DB, same_class, value_and_error};
use crate::tune::{Noise, gain_db};

/// The SQNR of noise relative to its signal, in dB; 200 at most, and -200 where the noise is no number.
pub fn db_of_noise(noise: f64) -> f64 {
    let db = (-10.0 * noise.log10()).clamp(-MAX_DB, MAX_DB);
    if db.is_nan() { -MAX_DB } else { db }
}

/// Sums over the samples, per output.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    outputs: Vec<Output>,
}

#[derive(Debug, Clone, Default)]
struct Output {
    noise: Noise,
    /// Values that are float32.
    n_values: usize,
    /// Sums of squares: of the float output, of the difference.
    sums: [f64; 2],
    /// Rows of class scores, and those whose largest is the same.
    rows: [usize; 2],
}

/// Values per row of class scores, where the output's shape is that of some: rows of two values or more,
/// with no other axis than that of the rows.
fn row_length(value: &Value) -> Option<usize> {
    let mut long = value.shape().iter().skip(1).filter(|&&dim| dim != 1);
    match (long.next(), long.next()) {
        (Some(&n), None) if n > 1 => Some(n),
        _ => None,
    }
}

impl Figures {
    /// Adds samples: the outputs of the float network and of another, per output and sample.
    pub fn add(&mut self, float: &[Vec<Value>], other: &[Vec<Value>]) {
        self.outputs.resize_with(self.outputs.len().max(float.len()), Output::default);
        for (output, (float, other)) in self.outputs.iter_mut().zip(float.iter().zip(other)) {
            float.iter().zip(other).for_each(|(a, b)| output.add(a, b));
        }
    }

    /// The lowest SQNR of an output, in dB; 200 at most, which stands for no noise, and -200 where a value is NaN or
    /// infinite, or no output has values that could be measured.
    pub fn sqnr_db(&self) -> f64 {
        let db = |output: &Output| match output.sums {
            [signal, noise] if noise > 0.0 => db_of_noise(noise / signal),
            [_, noise] => db_of_noise(noise),
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

    /// Mean over the outputs of the noise relative to the output; the largest number where one is NaN or infinite.
    pub fn noise(&self) -> f64 {
        let relative = |output: &Output| {
            let [signal, noise] = output.sums;
            if noise > 0.0 { noise / signal } else { noise }
        };
        let mean =
            self.outputs.iter().map(relative).sum::<f64>() / self.outputs.len().max(1) as f64;
        if mean.is_finite() { mean } else { f64::MAX }
    }

    /// How much less noise `other` has, in dB.
    pub fn gain_db(&self, other: &Figures) -> f64 {
        let noise = |figures: &Figures| -> Vec<Noise> {
            figures.outputs.iter().map(|output| output.noise.clone()).collect()
        };
        gain_db(&noise(self), &noise(other))
    }
}

impl Output {
    fn add(&mut self, float: &Value, other: &Value) {
        let (Some(a), Some(b)) = (float.f32s(), other.f32s()) else { return };
        self.noise.add(float, other, None);
        self.n_values += a.len();
        for (&a, &b) in a.iter().zip(b) {
            let (value, error) = value_and_error(a, b);
            self.sums[0] += value * value;
            self.sums[1] += error * error;
        }
        if let Some(n) = row_length(float) {
            let same = a.chunks(n).zip(b.chunks(n)).filter(|(a, b)| same_class(a, b)).count();
            self.rows[0] += a.len() / n;
            self.rows[1] += same;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(shape: &[usize], values: &[f32]) -> Vec<Vec<Value>> {
        vec![vec![Value::from_f32(shape, values.to_vec()).unwrap()]]
    }

    #[test]
    fn rows_of_scores_agree_where_their_largest_do() {
        let mut figures = Figures::default();
        let float = value(&[2, 3, 1, 1], &[1.0, 2.0, 0.0, 3.0, 1.0, 0.0]);
        figures.add(&float, &value(&[2, 3, 1, 1], &[1.0, 1.5, 0.0, 0.0, 1.0, 0.0]));
        assert_eq!(figures.agreement_percent(), Some(50.0));
        let mut figures = Figures::default();
        let boxes = value(&[1, 2, 3], &[1.0, 2.0, 0.0, 3.0, 1.0, 0.0]);
        figures.add(&boxes, &boxes);
        assert_eq!((figures.agreement_percent(), figures.sqnr_db()), (None, MAX_DB));
    }

    #[test]
    fn values_that_are_no_numbers_are_the_worst() {
        let good = value(&[1, 2], &[1.0, 2.0]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let bad = value(&[1, 2], &[bad, 2.0]);
            // Of the quantized network, of both, of the float one.
            for (float, other) in
                [(&good, &bad), (&bad, &value(&[1, 2], &[f32::NAN, 2.0])), (&bad, &good)]
            {
                let mut figures = Figures::default();
                figures.add(float, other);
                assert_eq!((figures.sqnr_db(), figures.noise()), (-MAX_DB, f64::MAX));
            }
            let mut figures = Figures::default();
            figures.add(&good, &bad);
            assert_eq!(figures.agreement_percent(), Some(0.0));
        }
    }

    #[test]
    fn one_output_without_numbers_is_not_hidden_by_others() {
        let [good, near, bad] =
            [[1.0, 2.0], [1.0, 2.1], [f32::NAN, 2.0]].map(|v| value(&[1, 2], &v));
        let both = |a: &[Vec<Value>], b: &[Vec<Value>]| [a, b].concat();
        let figures = |other: &[Vec<Value>]| {
            let mut figures = Figures::default();
            figures.add(&both(&good, &good), other);
            figures
        };
        let (before, after) = (figures(&both(&near, &near)), figures(&both(&good, &bad)));
        assert_eq!((after.sqnr_db(), after.noise()), (-MAX_DB, f64::MAX));
        assert_eq!((before.gain_db(&after), after.gain_db(&before)), (-MAX_DB, MAX_DB));
        // What is left of the noise where one of two moves is no number is never NaN.
        assert_eq!(figures(&both(&bad, &bad)).noise() - after.noise(), 0.0);
    }

    #[test]
    fn nothing_measured_reaches_no_goal() {
        let mut figures = Figures::default();
        assert_eq!(figures.sqnr_db(), -MAX_DB);
        figures.add(&value(&[0, 2], &[]), &value(&[0, 2], &[]));
        assert_eq!((figures.sqnr_db(), figures.agreement_percent()), (-MAX_DB, None));
        assert_eq!((db_of_noise(f64::NAN), db_of_noise(f64::INFINITY)), (-MAX_DB, -MAX_DB));
        assert_eq!((db_of_noise(0.0), db_of_noise(0.1)), (MAX_DB, 10.0));
    }
}
