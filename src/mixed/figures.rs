//! How near a network is to the float one, on some samples.

use crate::engine::Value;
use crate::tune::{Noise, gain_db};
use crate::verify::argmax;

/// SQNR that is reported where there is no noise at all, in dB.
const NO_NOISE_DB: f64 = 200.0;

/// The SQNR of noise relative to its signal, in dB; 200 at most.
pub fn db_of_noise(noise: f64) -> f64 {
    (-10.0 * noise.log10()).clamp(-NO_NOISE_DB, NO_NOISE_DB)
}

/// Sums over the samples, per output.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    outputs: Vec<Output>,
}

#[derive(Debug, Clone, Default)]
struct Output {
    noise: Noise,
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

    /// The lowest SQNR of an output, in dB; 200 at most, which stands for no noise.
    pub fn sqnr_db(&self) -> f64 {
        let db = |output: &Output| match output.sums {
            [_, noise] if noise <= 0.0 => NO_NOISE_DB,
            [_, noise] if noise.is_nan() => -NO_NOISE_DB,
            [signal, noise] => db_of_noise(noise / signal),
        };
        self.outputs.iter().map(db).fold(NO_NOISE_DB, f64::min)
    }

    /// The lowest share of rows of class scores with the same largest value, in percent; `None` where no
    /// output has such rows.
    pub fn agreement_percent(&self) -> Option<f64> {
        let percent = |[all, same]: [usize; 2]| 100.0 * same as f64 / all as f64;
        let of_scores = self.outputs.iter().filter(|output| output.rows[0] > 0);
        of_scores.map(|output| percent(output.rows)).reduce(f64::min)
    }

    /// Mean over the outputs of the noise relative to the output.
    pub fn noise(&self) -> f64 {
        let relative = |output: &Output| {
            let [signal, noise] = output.sums;
            let relative = if noise > 0.0 { noise / signal } else { noise };
            if relative.is_finite() { relative } else { f64::MAX }
        };
        self.outputs.iter().map(relative).sum::<f64>() / self.outputs.len().max(1) as f64
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
        for (&a, &b) in a.iter().zip(b) {
            let (a, b) = (f64::from(a), f64::from(b));
            self.sums[0] += a * a;
            self.sums[1] += (a - b) * (a - b);
        }
        if let Some(n) = row_length(float) {
            let same = a.chunks(n).zip(b.chunks(n)).filter(|(a, b)| argmax(a) == argmax(b)).count();
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
        assert_eq!((figures.agreement_percent(), figures.sqnr_db()), (None, NO_NOISE_DB));
    }

    #[test]
    fn values_that_are_no_numbers_are_the_worst() {
        let mut figures = Figures::default();
        figures.add(&value(&[1, 2], &[1.0, 2.0]), &value(&[1, 2], &[f32::NAN, 2.0]));
        assert_eq!((figures.sqnr_db(), figures.noise()), (-NO_NOISE_DB, f64::MAX));
    }
}
