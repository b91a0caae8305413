//! Statistics of one tensor, gathered in one pass.
//!
//! In: the values of a tensor, sample by sample. Out: a [`Statistic`] that answers every range finder.
//! It does not choose a range. Memory does not grow with the number of values; it grows by one
//! [`Sample`] record per sample.

mod histogram;

pub use histogram::{Bin, Histogram};

/// What is kept of one sample (one image, one batch entry) of a tensor. Sums are in f64, in the order
/// of the values, over the finite values only.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Lowest finite value; `f32::INFINITY` where there is none.
    pub min: f32,
    /// Highest finite value; `f32::NEG_INFINITY` where there is none.
    pub max: f32,
    /// Sum of the values.
    pub sum: f64,
    /// Sum of the squares.
    pub sum_squares: f64,
    /// Sum of the absolute values.
    pub sum_abs: f64,
    /// Number of finite values.
    pub n_finite: u64,
    /// Number of NaN and infinite values.
    pub n_non_finite: u64,
}

impl Sample {
    /// The record of `values`.
    pub fn of(values: &[f32]) -> Sample {
        let mut sample = Sample {
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
            sum: 0.0,
            sum_squares: 0.0,
            sum_abs: 0.0,
            n_finite: 0,
            n_non_finite: 0,
        };
        for &value in values {
            if !value.is_finite() {
                sample.n_non_finite += 1;
                continue;
            }
            sample.n_finite += 1;
            sample.min = sample.min.min(value);
            sample.max = sample.max.max(value);
            let value = f64::from(value);
            sample.sum += value;
            sample.sum_squares += value * value;
            sample.sum_abs += value.abs();
        }
        sample
    }
}

/// Everything known about one tensor: its histogram over all samples and a record per sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Statistic {
    /// Counts over all samples.
    pub histogram: Histogram,
    /// One record per sample, in sample order.
    pub samples: Vec<Sample>,
}

impl Statistic {
    /// Adds one sample.
    pub fn observe(&mut self, values: &[f32]) {
        self.histogram.observe(values);
        self.samples.push(Sample::of(values));
    }

    /// Appends what `later` saw. Equal to having observed its samples here, bit for bit.
    pub fn merge(&mut self, later: &Statistic) {
        self.histogram.merge(&later.histogram);
        self.samples.extend_from_slice(&later.samples);
    }

    /// Adds another tensor of the same samples, as if both were one tensor.
    pub fn join(&mut self, other: &Statistic) {
        self.histogram.merge(&other.histogram);
        for (mine, theirs) in self.samples.iter_mut().zip(&other.samples) {
            mine.min = mine.min.min(theirs.min);
            mine.max = mine.max.max(theirs.max);
            mine.sum += theirs.sum;
            mine.sum_squares += theirs.sum_squares;
            mine.sum_abs += theirs.sum_abs;
            mine.n_finite += theirs.n_finite;
            mine.n_non_finite += theirs.n_non_finite;
        }
    }

    /// Lowest and highest finite value over all samples, or `None` where no value was finite.
    pub fn min_max(&self) -> Option<(f32, f32)> {
        let min = self.samples.iter().map(|s| s.min).fold(f32::INFINITY, f32::min);
        let max = self.samples.iter().map(|s| s.max).fold(f32::NEG_INFINITY, f32::max);
        (min <= max).then_some((min, max))
    }

    /// Number of finite values over all samples.
    pub fn n_finite(&self) -> u64 {
        self.samples.iter().map(|s| s.n_finite).sum()
    }

    /// Number of NaN and infinite values over all samples.
    pub fn n_non_finite(&self) -> u64 {
        self.samples.iter().map(|s| s.n_non_finite).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_what_is_not_finite_and_leaves_it_out() {
        let mut statistic = Statistic::default();
        statistic.observe(&[1.0, f32::NAN, -2.0, f32::INFINITY, f32::NEG_INFINITY, 0.0]);
        assert_eq!((statistic.n_finite(), statistic.n_non_finite()), (3, 3));
        assert_eq!(statistic.min_max(), Some((-2.0, 1.0)));
        assert_eq!(statistic.histogram.total(), 3);
        assert_eq!(statistic.histogram.n_non_finite(), 3);

        let mut nothing = Statistic::default();
        nothing.observe(&[f32::NAN]);
        assert_eq!(nothing.min_max(), None);
    }

    proptest! {
        #[test]
        fn merging_equals_observing_the_whole(
            values in prop::collection::vec(any::<f32>(), 0..200), split in 0usize..200
        ) {
            let split = split.min(values.len());
            let (mut whole, mut left, mut right) = <(Statistic, Statistic, Statistic)>::default();
            for (i, value) in values.chunks(7).enumerate() {
                whole.observe(value);
                if i * 7 < split { left.observe(value) } else { right.observe(value) }
            }
            let mut other_order = right.histogram.clone();
            other_order.merge(&left.histogram);
            left.merge(&right);
            prop_assert_eq!(&other_order, &left.histogram);
            prop_assert_eq!(left, whole);
        }
    }
}
