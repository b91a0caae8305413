//! Values that are NaN or infinite.

use super::value_and_error;
use serde::Serialize;

/// NaN and infinite values of an output.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NonFinite {
    /// Number of NaN and infinite values.
    pub n_values: usize,
    /// Name of the first sample with such a value.
    pub first_sample: String,
    /// Index of the first sample with such a value.
    #[serde(skip)]
    pub position: usize,
}

/// NaN and infinite values of an output, in one or both networks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NonFiniteCounts {
    /// Values that are NaN or infinite only in the quantized network.
    pub quantized: Option<NonFinite>,
    /// Values that are NaN or infinite in the float network, where a comparison is impossible. An infinity that both
    /// networks have counts as equal.
    pub float: Option<NonFinite>,
}

impl NonFiniteCounts {
    /// Counts the values of one sample, which is given with its index and name. Both networks have the same number of
    /// values.
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

    /// Adds the counts of other samples, in any order.
    pub fn merge(&mut self, other: NonFiniteCounts) {
        for (all, other) in [(&mut self.quantized, other.quantized), (&mut self.float, other.float)] {
            let n_values = [all.as_ref(), other.as_ref()].into_iter().flatten().map(|one| one.n_values).sum();
            let first = all.take().into_iter().chain(other).min_by_key(|one| one.position);
            *all = first.map(|first| NonFinite { n_values, ..first });
        }
    }

    /// Whether there are NaN or infinite values.
    pub fn any(&self) -> bool {
        self.quantized.is_some() || self.float.is_some()
    }
}
