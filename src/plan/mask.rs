//! Masks of attention: values so low that a Softmax ignores them.
//!
//! A mask adds -10000, the lowest float or minus infinity, or -100, to scores that a Softmax must ignore. A grid down
//! to -10000 has one step for all scores (`scale = 40`), and minus infinity is on no grid. The range only has to reach
//! so low that the exponential is almost 0; lower values saturate.

use crate::place::SoftmaxRole;
use crate::statistics::TensorStatistics;

/// Highest value of a mask. In a Softmax, a value of -64 beside one of -16 has the weight 1e-21.
const MASKED: f64 = -64.0;
/// Highest factor that makes a mask: any share of it masks, whatever the grid.
const MASKED_BY_FACTOR: f64 = -1e9;
/// Minimum ratio of the highest masked value to the lowest other value.
const GAP: f64 = 4.0;
/// Distance of the range's lower end from the lowest score, for a Softmax's input: `exp(-12)` is 6e-6.
const BELOW_SCORES: f64 = 12.0;
/// Minimum distance of a raised mask from the other values of an addend: scores have about that spread.
const BELOW_ADDENDS: f64 = 32.0;
/// Offset of the raised mask of an addend with only one other value, usually 0. Any grid holds two values.
const OFFSET_BESIDE_ONE_VALUE: f64 = -1024.0;

/// A mask: the values up to `highest`, which are raised to `raised`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mask {
    highest: f64,
    raised: f32,
}

impl Mask {
    /// Returns the mask in a tensor's values; `None` if there is none.
    pub fn in_values(statistic: &TensorStatistics, role: SoftmaxRole) -> Option<Mask> {
        if role == SoftmaxRole::Factor {
            let highest = f64::from(statistic.extremes.max);
            let raised = OFFSET_BESIDE_ONE_VALUE.max(f64::from(statistic.extremes.min)) as f32;
            return (highest <= MASKED_BY_FACTOR).then_some(Mask { highest, raised });
        }
        let bins: Vec<_> = statistic.histogram.bins().collect();
        let lower_end = |i: usize| bins[i].inner.min(bins[i].outer);
        let parts = |&i: &usize| {
            let below = bins[i - 1].inner;
            below <= MASKED && lower_end(i) >= below / GAP
        };
        let is_infinite = statistic.histogram.n_minus_infinity() > 0;
        let first = (1..bins.len()).rev().find(parts).or(is_infinite.then_some(0))?;
        let highest = first.checked_sub(1).map_or(f64::NEG_INFINITY, |last| bins[last].inner);
        let raised = match (bins.get(first), bins.last()) {
            (Some(_), Some(last)) => {
                let (min, max) = (lower_end(first), last.inner.max(last.outer));
                match role {
                    SoftmaxRole::Input => min - BELOW_SCORES,
                    SoftmaxRole::Addend if bins.len() - first == 1 => min.min(0.0) + OFFSET_BESIDE_ONE_VALUE,
                    _ => min - (max - min).max(BELOW_ADDENDS),
                }
            }
            _ => OFFSET_BESIDE_ONE_VALUE,
        };
        // The raised mask is not below the mask itself.
        let lowest = if is_infinite || bins.is_empty() { f64::NEG_INFINITY } else { lower_end(0) };
        Some(Mask { highest, raised: raised.max(lowest) as f32 })
    }

    /// Number of masked values.
    pub fn n_masked(&self, statistic: &TensorStatistics) -> u64 {
        let masked = statistic.histogram.bins().take_while(|bin| bin.inner <= self.highest);
        masked.map(|bin| bin.count).sum::<u64>() + statistic.histogram.n_minus_infinity()
    }

    /// Returns `raised` for a value of the mask, and any other value as it is.
    pub fn raise(&self, value: f32) -> f32 {
        if f64::from(value) <= self.highest { self.raised } else { value }
    }

    /// Raises the mask in a statistic. A mask of minus infinity is taken to be in every batch.
    pub fn raise_all(&self, statistic: &mut TensorStatistics) {
        let is_infinite = statistic.histogram.n_minus_infinity() > 0;
        statistic.histogram.raise(self.highest, self.raised);
        let batches = statistic.batches.iter_mut().filter(|batch| batch.get().is_some());
        for seen in batches.chain([&mut statistic.extremes]) {
            if f64::from(seen.min) <= self.highest || is_infinite {
                seen.min = self.raised;
            }
            seen.max = self.raise(seen.max).max(seen.min);
        }
    }
}
