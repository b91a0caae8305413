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
pub(super) struct Mask {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(values: &[f32], role: SoftmaxRole) -> Option<Mask> {
        let mut statistic = TensorStatistics::default();
        statistic.observe(values);
        Mask::in_values(&statistic, role)
    }

    #[test]
    fn only_what_lies_far_below_all_others_is_a_mask() {
        let scores: Vec<f32> = (-400..=400).map(|i| i as f32 / 4.0).collect();
        assert_eq!(mask(&scores, SoftmaxRole::Input), None);
        assert_eq!(mask(&[-100.0, -30.0, 5.0], SoftmaxRole::Input), None);
        assert_eq!(mask(&[-70.0, -70.5], SoftmaxRole::Input), None);
        assert_eq!(mask(&[-20.0, 3.0, 70.0], SoftmaxRole::Input), None);
        let found = mask(&[-1e4, -9990.0, -8.0, 5.0], SoftmaxRole::Input).unwrap();
        assert_eq!(found.raise(-8.0), -8.0);
        assert!((-20.1..=-20.0).contains(&found.raise(-9990.0)), "{found:?}");
        assert_eq!(found.raise(f32::NEG_INFINITY), found.raise(-1e4));
    }

    #[test]
    fn an_addend_of_zeros_goes_as_far_as_its_mask_but_not_farther_than_any_score() {
        let raised = |low| mask(&[low, 0.0], SoftmaxRole::Addend).unwrap().raise(low);
        assert!((-100.5..=-100.0).contains(&raised(-100.0)));
        assert_eq!(raised(f32::MIN), -1024.0);
        assert_eq!(raised(f32::NEG_INFINITY), -1024.0);
        let alone = mask(&[f32::NEG_INFINITY], SoftmaxRole::Addend).unwrap();
        assert_eq!(alone.raise(f32::NEG_INFINITY), -1024.0);
    }

    #[test]
    fn a_statistic_is_raised_as_its_values_are() {
        let values = [f32::NEG_INFINITY, -1e4, 2.0, -3.0];
        let found = mask(&values, SoftmaxRole::Input).unwrap();
        let (mut statistic, mut expected) = (TensorStatistics::default(), TensorStatistics::default());
        statistic.observe(&values);
        expected.observe(&values.map(|value| found.raise(value)));
        assert_eq!(found.n_masked(&statistic), 2);
        found.raise_all(&mut statistic);
        assert_eq!(statistic.histogram, expected.histogram);
        assert_eq!(statistic.min_max(), expected.min_max());
    }

    #[test]
    fn batches_are_raised_as_their_values_are() {
        let batches = [[-1e4, 2.0], [-1e4, -3.0], [-2.0, 1.0]];
        let mut statistic = TensorStatistics::default();
        for (batch, values) in [0, 1, 3].into_iter().zip(&batches) {
            statistic.observe_in(batch, values);
        }
        let found = Mask::in_values(&statistic, SoftmaxRole::Input).unwrap();
        found.raise_all(&mut statistic);
        let raised = found.raise(-1e4);
        let seen: Vec<_> = statistic.batches.iter().map(|batch| batch.get()).collect();
        assert_eq!(seen, [Some((raised, 2.0)), Some((raised, -3.0)), None, Some((-2.0, 1.0))]);
    }
}
