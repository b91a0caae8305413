//! From raw values to numbers: activations, distributions.

use super::{ActivationFunction, Curve};

impl ActivationFunction {
    /// Of one value; Softmax is over several: see [`softmax`].
    pub(super) fn of(self, x: f64) -> f64 {
        match self {
            ActivationFunction::None | ActivationFunction::Softmax => x,
            ActivationFunction::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            ActivationFunction::Exp => x.exp(),
        }
    }
}

impl Curve {
    pub(super) fn of(&self, x: f64) -> f64 {
        (self.scale * self.activation.of(x) + self.shift).powi(self.power)
    }
}

/// Shares of a whole.
pub(super) fn softmax(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = row.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp()).collect();
    let whole: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / whole).collect()
}

/// The mean of a distribution over 0, 1, 2 … before its Softmax (Li et al., 2020, generalized focal loss).
pub(super) fn expectation(bins: &[f32]) -> f64 {
    softmax(bins).into_iter().enumerate().map(|(bin, share)| bin as f64 * share).sum()
}
