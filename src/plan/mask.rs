//! Masks of attention: values so low that a Softmax makes nothing of them.
//!
//! A mask adds -10000, the lowest float or minus infinity to the scores that a Softmax must not see, or -100. A grid that
//! reaches there has one step for all scores (`scale = 40` for -10000), and minus infinity lies on none. It only has to
//! reach so far that the exponential is next to nothing; what is lower saturates.

use crate::place::SoftmaxRole;
use crate::statistics::TensorStatistics;

/// From here down values may be a mask's: beside a value of -16 one of -64 weighs 1e-21.
const MASKED: f64 = -64.0;
/// A mask lies this many times as low as everything else.
const GAP: f64 = 4.0;
/// How far below the scores the grid of a Softmax's input ends: `exp(-12)` is 6e-6.
const BELOW_SCORES: f64 = 12.0;
/// How far below other values a masked addend lies at least: scores reach about as far.
const BELOW_ADDENDS: f64 = 32.0;
/// Where a masked addend lies that has no other values but one, usually 0. Any grid holds two.
const BESIDE_ONE: f64 = -1024.0;

/// Up to where the values of a tensor are a mask's, and to where they are raised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mask {
    highest: f64,
    raised: f32,
}

impl Mask {
    /// The mask in a tensor's values; `None` where there is none.
    pub fn in_values(statistic: &TensorStatistics, role: SoftmaxRole) -> Option<Mask> {
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
                    SoftmaxRole::Addend if bins.len() - first == 1 => min.min(0.0) + BESIDE_ONE,
                    SoftmaxRole::Addend => min - (max - min).max(BELOW_ADDENDS),
                }
            }
            _ => BESIDE_ONE,
        };
        // No lower than the mask itself.
        let lowest = if is_infinite || bins.is_empty() { f64::NEG_INFINITY } else { lower_end(0) };
        Some(Mask { highest, raised: raised.max(lowest) as f32 })
    }

    /// How many values it holds.
    pub fn n_masked(&self, statistic: &TensorStatistics) -> u64 {
        let masked = statistic.histogram.bins().take_while(|bin| bin.inner <= self.highest);
        masked.map(|bin| bin.count).sum::<u64>() + statistic.histogram.n_minus_infinity()
    }

    /// A value as the grid is to see it.
    pub fn raise(&self, value: f32) -> f32 {
        if f64::from(value) <= self.highest { self.raised } else { value }
    }

    /// The statistic of the raised values; a mask of minus infinity is taken to be in every batch.
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
