//! Statistics of one tensor, gathered in one pass.
//!
//! In: the values of a tensor, sample by sample. Out: a [`Statistic`] that answers every range finder.
//! It does not choose a range. Memory does not grow with the number of values; it grows by one
//! [`Sample`] record per sample.

mod histogram;

pub use histogram::{Bin, Histogram};

/// What is kept of one sample (one image, one batch entry) of a tensor. Sums are in f64, over the
/// finite values only.
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
    /// The record of `values`. Sums are kept in eight lanes that are added at the end, always in the same
    /// order.
    pub fn of(values: &[f32]) -> Sample {
        let mut lanes = Lanes::EMPTY;
        lanes.add(values);
        lanes.total(values.len() as u64)
    }

    /// The record of `values`, which are counted into `histogram` on the way, while they are in the cache.
    pub fn counted(values: &[f32], histogram: &mut Histogram) -> Sample {
        let mut lanes = Lanes::EMPTY;
        for part in values.chunks(8 * BLOCK) {
            histogram.observe(part);
            lanes.add(part);
        }
        lanes.total(values.len() as u64)
    }
}

/// Values that are looked at together.
const BLOCK: usize = 512;
/// From here on the squares of a block might overflow f32.
const LARGE: f32 = 1e17;
const LANES: usize = 8;

/// Partial results of [`Sample::of`].
struct Lanes {
    min: [f32; LANES],
    max: [f32; LANES],
    sum: [f64; LANES],
    sum_squares: [f64; LANES],
    sum_abs: [f64; LANES],
    n_non_finite: u64,
}

impl Lanes {
    const EMPTY: Lanes = Lanes {
        min: [f32::INFINITY; LANES],
        max: [f32::NEG_INFINITY; LANES],
        sum: [0.0; LANES],
        sum_squares: [0.0; LANES],
        sum_abs: [0.0; LANES],
        n_non_finite: 0,
    };

    fn add(&mut self, values: &[f32]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature.
            return unsafe { self.add_avx2(values) };
        }
        self.add_blocks(values);
    }

    /// The same operations in the same order, so the same bits, with wider registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn add_avx2(&mut self, values: &[f32]) {
        self.add_blocks(values);
    }

    #[inline(always)]
    fn add_blocks(&mut self, values: &[f32]) {
        for block in values.chunks(BLOCK) {
            let (chunks, rest) = block.as_chunks::<LANES>();
            let largest = block.iter().fold(0, |largest, x| largest.max(x.abs().to_bits()));
            if largest < LARGE.to_bits() {
                self.add_finite(chunks);
            } else {
                chunks.iter().for_each(|chunk| self.add_some(chunk));
            }
            self.add_some(rest);
        }
    }

    /// Adds the chunks of a block of finite values below [`LARGE`]. Its sums are in f32, over few enough
    /// values to be good to 1e-6, and only then added to those in f64.
    #[inline(always)]
    fn add_finite(&mut self, chunks: &[[f32; LANES]]) {
        let (mut min, mut max) = (self.min, self.max);
        let (mut sum, mut sum_abs, mut sum_squares) =
            ([0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
        for chunk in chunks {
            for lane in 0..LANES {
                let value = chunk[lane];
                min[lane] = if value < min[lane] { value } else { min[lane] };
                max[lane] = if value > max[lane] { value } else { max[lane] };
                sum[lane] += value;
                sum_abs[lane] += value.abs();
                sum_squares[lane] += value * value;
            }
        }
        (self.min, self.max) = (min, max);
        for lane in 0..LANES {
            self.sum[lane] += f64::from(sum[lane]);
            self.sum_abs[lane] += f64::from(sum_abs[lane]);
            self.sum_squares[lane] += f64::from(sum_squares[lane]);
        }
    }

    /// Adds at most a chunk, of any values.
    fn add_some(&mut self, chunk: &[f32]) {
        for (lane, &value) in chunk.iter().enumerate() {
            if !value.is_finite() {
                self.n_non_finite += 1;
                continue;
            }
            self.min[lane] = if value < self.min[lane] { value } else { self.min[lane] };
            self.max[lane] = if value > self.max[lane] { value } else { self.max[lane] };
            let value = f64::from(value);
            self.sum[lane] += value;
            self.sum_squares[lane] += value * value;
            self.sum_abs[lane] += value.abs();
        }
    }

    fn total(self, n_values: u64) -> Sample {
        Sample {
            min: self.min.into_iter().fold(f32::INFINITY, f32::min),
            max: self.max.into_iter().fold(f32::NEG_INFINITY, f32::max),
            sum: self.sum.iter().sum(),
            sum_squares: self.sum_squares.iter().sum(),
            sum_abs: self.sum_abs.iter().sum(),
            n_finite: n_values - self.n_non_finite,
            n_non_finite: self.n_non_finite,
        }
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
        self.samples.push(Sample::counted(values, &mut self.histogram));
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
