//! Activations that a network leaves to the decoding of its outputs.

use serde::Deserialize;

/// An activation that decoding applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadActivation {
    /// No activation: the network contains it.
    #[default]
    None,
    /// Sigmoid of each value, 0 to 1.
    Sigmoid,
    /// Softmax of each row, with sum 1.
    Softmax,
}

impl HeadActivation {
    /// Applies the activation to a row in place.
    pub fn apply(self, row: &mut [f32]) {
        match self {
            HeadActivation::None => {}
            HeadActivation::Sigmoid => row.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            HeadActivation::Softmax => {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter_mut().for_each(|x| *x = (*x - largest).exp());
                let sum: f32 = row.iter().sum();
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
    }
}
