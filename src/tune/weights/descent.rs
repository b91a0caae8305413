//! Coordinate descent on the integers of a row.

use super::problem::Bounds;
use crate::quant::round_half_even;
use mqq_concrete::matrix::Matrix;

/// Maximum sweeps over a row.
const MAX_SWEEPS: usize = 12;

/// The error `(t - w) H (t - w)^T` of a row `w`, plus `(m + E[b] (w - w0)^T)^2` where its mean error `m` counts as
/// well. A descent updates half its negative slope.
pub struct QuadraticError<'a> {
    h: &'a Matrix,
    /// `E[b]`; empty where the mean error does not count.
    means: &'a [f64],
    /// Half the second derivative by each weight.
    curvature: Vec<f64>,
    /// Indices of the weights, largest input variance first.
    order: Vec<usize>,
}

impl<'a> QuadraticError<'a> {
    /// Prepares the error for `H`, `[n_in, n_in]`, and the means of the inputs; these are empty where the mean error
    /// does not count.
    pub fn new(h: &'a Matrix, means: &'a [f64]) -> QuadraticError<'a> {
        let mean = |k: usize| means.get(k).copied().unwrap_or_default();
        let curvature: Vec<f64> = (0..h.n_rows()).map(|k| h[(k, k)] + mean(k).powi(2)).collect();
        let mut order: Vec<usize> = (0..h.n_rows()).collect();
        order.sort_by(|&a, &b| curvature[b].total_cmp(&curvature[a]).then(a.cmp(&b)));
        QuadraticError { h, means, curvature, order }
    }

    /// Moves the integers `q` while that lowers the error. `steps` holds the scale of each; `slope` is half the
    /// negative slope at `q`. Returns the change of the error.
    pub fn descend(&self, bounds: &Bounds, steps: &[f64], q: &mut [f64], slope: &mut [f64]) -> f64 {
        let mut total = 0.0;
        for _ in 0..MAX_SWEEPS {
            let mut moved = false;
            for &j in &self.order {
                // Less than half a step: the integer is already the nearest allowed one.
                if slope[j].abs() <= 0.5 * steps[j] * self.curvature[j] {
                    continue;
                }
                let best = q[j] + slope[j] / (steps[j] * self.curvature[j]);
                let (low, high) = bounds.of(q, j);
                let best = round_half_even(best).clamp(low, high);
                let by = (best - q[j]) * steps[j];
                if by == 0.0 || !by.is_finite() {
                    continue;
                }
                // A tie at half a step would move back and forth.
                let change = by * (by * self.curvature[j] - 2.0 * slope[j]);
                if change >= 0.0 {
                    continue;
                }
                q[j] = best;
                moved = true;
                total += change;
                slope.iter_mut().zip(self.h.column(j)).for_each(|(s, h)| *s -= by * h);
                if let Some(mean) = self.means.get(j) {
                    let by = by * mean;
                    slope.iter_mut().zip(self.means).for_each(|(s, mean)| *s -= by * mean);
                }
            }
            if !moved {
                break;
            }
        }
        total
    }
}
