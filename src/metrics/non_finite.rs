//! Values that are NaN or infinite.

use super::value_and_error;
use serde::Serialize;

/// Values of an output that are NaN or infinite.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NonFinite {
    /// Their number.
    pub n_values: usize,
    /// The name of the first sample that has one.
    pub first_sample: String,
    /// Its position.
    #[serde(skip)]
    pub position: usize,
}

/// Values of an output that are NaN or infinite, in one network or in both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NonFiniteCounts {
    /// In the quantized network where the float one has numbers.
    pub quantized: Option<NonFinite>,
    /// In the float network, so that there is nothing to compare with; an infinity that both networks have is equal.
    pub float: Option<NonFinite>,
}

impl NonFiniteCounts {
    /// Of one sample with its position and name, as many values of both networks.
    pub fn of((position, sample): (usize, &str), float: &[f32], quantized: &[f32]) -> NonFiniteCounts {
        let mut counts = NonFiniteCounts::default();
        for (&a, &b) in float.iter().zip(quantized) {
            let (value, error) = value_and_error(a, b);
            let count = match (value.is_finite(), error.is_finite()) {
                (false, _) => &mut counts.float,
                (true, false) => &mut counts.quantized,
                (true, true) => continue,
            };
            let first = || NonFinite { n_values: 0, first_sample: sample.to_string(), position };
            count.get_or_insert_with(first).n_values += 1;
        }
        counts
    }

    /// Adds other samples; the order makes no difference.
    pub fn merge(&mut self, other: NonFiniteCounts) {
        for (all, other) in [(&mut self.quantized, other.quantized), (&mut self.float, other.float)] {
            let n_values = [all.as_ref(), other.as_ref()].into_iter().flatten().map(|one| one.n_values).sum();
            let first = all.take().into_iter().chain(other).min_by_key(|one| one.position);
            *all = first.map(|first| NonFinite { n_values, ..first });
        }
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.quantized.is_some() || self.float.is_some()
    }
}
