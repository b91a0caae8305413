//! Statistics of one tensor, collected in one pass.
//!
//! In: the values of a tensor, sample by sample, in any order. Out: a [`TensorStatistics`] for every range observer. It
//! does not choose a range. Memory does not grow with the number of values or samples; only for range observers that
//! average over batches there is one [`Extremes`] of 8 bytes per batch.

mod channels;
mod file;
mod histogram;
mod merge;
mod rounds;
mod saved;
mod tensor_counts;

pub use channels::ChannelExtremes;
pub use file::{FORMAT, read_statistics, statistics_bytes};
pub use histogram::{Bin, Histogram, n_centers_up_to};
pub use merge::{merge_shards, mismatch};
pub use rounds::{RangeChange, Round, UntilStable};
pub use saved::{
    AboutStatistics, BetterPixelValues, FloatModel, KeptArray, KeptSample, PartOfList, SavedModel, SavedStatistics,
    SavedTensor, Shard,
};
pub use tensor_counts::TensorCounts;

/// Lowest and highest finite value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extremes {
    /// `f32::INFINITY` without values.
    pub min: f32,
    /// `f32::NEG_INFINITY` without values.
    pub max: f32,
}

impl Extremes {
    /// Extremes without values.
    pub const NONE: Extremes = Extremes { min: f32::INFINITY, max: f32::NEG_INFINITY };

    /// Returns the extremes of all `parts` together.
    pub fn of_all<'e>(parts: impl IntoIterator<Item = &'e Extremes>) -> Extremes {
        let mut all = Extremes::NONE;
        parts.into_iter().for_each(|part| all.widen(*part));
        all
    }

    /// Extends the extremes by the extremes `other`.
    pub fn widen(&mut self, other: Extremes) {
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Width of the smallest range that holds these values and 0.
    pub fn width_with_zero(self) -> f64 {
        f64::from(self.max.max(0.0)) - f64::from(self.min.min(0.0))
    }

    /// Returns the lowest and the highest value; `None` without values.
    pub fn get(self) -> Option<(f32, f32)> {
        (self.min <= self.max).then_some((self.min, self.max))
    }
}

impl Default for Extremes {
    fn default() -> Extremes {
        Extremes::NONE
    }
}

/// Number of intervals of [`TensorStatistics::shares`].
pub const N_SHARES: usize = 24;

/// Number of values that are scanned together, while they are in the cache.
const BLOCK: usize = 4096;
const LANES: usize = 8;

/// Statistics of a block of values, in eight lanes.
struct Scan {
    min: [f32; LANES],
    max: [f32; LANES],
    n_non_finite: u64,
}

impl Scan {
    const EMPTY: Scan = Scan { min: [f32::INFINITY; LANES], max: [f32::NEG_INFINITY; LANES], n_non_finite: 0 };

    fn add(&mut self, values: &[f32]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature.
            return unsafe { self.add_avx2(values) };
        }
        self.add_chunks(values);
    }

    /// Adds values as `add_chunks` does, compiled for wider registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn add_avx2(&mut self, values: &[f32]) {
        self.add_chunks(values);
    }

    #[inline(always)]
    fn add_chunks(&mut self, values: &[f32]) {
        let Scan { mut min, mut max, .. } = *self;
        let mut n_non_finite = [0u32; LANES];
        let mut add = |lane: usize, value: f32| {
            let is_finite = value.abs() < f32::INFINITY;
            let low = if is_finite { value } else { f32::INFINITY };
            let high = if is_finite { value } else { f32::NEG_INFINITY };
            min[lane] = if low < min[lane] { low } else { min[lane] };
            max[lane] = if high > max[lane] { high } else { max[lane] };
            n_non_finite[lane] += u32::from(!is_finite);
        };
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &value) in chunk.iter().enumerate() {
                add(lane, value);
            }
        }
        rest.iter().enumerate().for_each(|(lane, &value)| add(lane, value));
        (self.min, self.max) = (min, max);
        self.n_non_finite += n_non_finite.into_iter().map(u64::from).sum::<u64>();
    }

    /// Returns the extremes of all lanes. Zero gets a positive sign, so that the order of the values does not matter.
    fn extremes(&self) -> Extremes {
        Extremes {
            min: self.min.into_iter().fold(f32::INFINITY, f32::min) + 0.0,
            max: self.max.into_iter().fold(f32::NEG_INFINITY, f32::max) + 0.0,
        }
    }
}

/// All statistics of one tensor. They do not depend on the order of values and merges.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TensorStatistics {
    /// Counts over all samples.
    pub histogram: Histogram,
    /// Extremes over all samples.
    pub extremes: Extremes,
    /// Extremes of each batch of samples, for range observers that average over batches; empty for other observers.
    pub batches: Vec<Extremes>,
    n_finite: u64,
    n_non_finite: u64,
}

impl TensorStatistics {
    /// Adds values and returns their extremes.
    pub fn observe(&mut self, values: &[f32]) -> Extremes {
        self.add(values, true)
    }

    /// Returns the statistics of a histogram and extremes, without batches.
    pub fn of(histogram: Histogram, extremes: Extremes) -> TensorStatistics {
        let (n_finite, n_non_finite) = (histogram.n_finite(), histogram.n_non_finite());
        TensorStatistics { histogram, extremes, batches: Vec::new(), n_finite, n_non_finite }
    }

    /// Adds the values of a sample that belongs to the batch with number `batch`.
    pub fn observe_in(&mut self, batch: usize, values: &[f32]) {
        let extremes = self.observe(values);
        if self.batches.len() <= batch {
            self.batches.resize(batch + 1, Extremes::NONE);
        }
        self.batches[batch].widen(extremes);
    }

    /// Adds values to the extremes and the numbers of values, not to the histogram.
    pub fn observe_extremes(&mut self, values: &[f32]) {
        self.add(values, false);
    }

    fn add(&mut self, values: &[f32], counted: bool) -> Extremes {
        let mut scan = Scan::EMPTY;
        for part in values.chunks(BLOCK) {
            if counted {
                self.histogram.observe(part);
            }
            scan.add(part);
        }
        let extremes = scan.extremes();
        self.extremes.widen(extremes);
        self.n_finite += values.len() as u64 - scan.n_non_finite;
        self.n_non_finite += scan.n_non_finite;
        extremes
    }

    /// Adds the statistics of other samples, or of another tensor as if both were one.
    pub fn merge(&mut self, other: &TensorStatistics) {
        self.histogram.merge(&other.histogram);
        self.extremes.widen(other.extremes);
        if self.batches.len() < other.batches.len() {
            self.batches.resize(other.batches.len(), Extremes::NONE);
        }
        self.batches.iter_mut().zip(&other.batches).for_each(|(mine, other)| mine.widen(*other));
        self.n_finite += other.n_finite;
        self.n_non_finite += other.n_non_finite;
    }

    /// Lowest and highest finite value over all samples, or `None` where no value was finite.
    pub fn min_max(&self) -> Option<(f32, f32)> {
        self.extremes.get()
    }

    /// Returns the shares of the finite values in [`N_SHARES`] intervals of the same width, from the lowest to the
    /// highest value. `None` if the histogram is empty. All values of a bin count at its center.
    pub fn shares(&self) -> Option<Vec<f32>> {
        let (min, max) = self.min_max()?;
        let (min, width) = (f64::from(min), f64::from(max) - f64::from(min));
        let mut counts = [0u64; N_SHARES];
        for bin in self.histogram.bins() {
            let at = if width > 0.0 { (bin.center() - min) / width * N_SHARES as f64 } else { 0.0 };
            counts[(at.max(0.0) as usize).min(N_SHARES - 1)] += bin.count;
        }
        let n: u64 = counts.iter().sum();
        (n > 0).then(|| counts.iter().map(|&count| (count as f64 / n as f64) as f32).collect())
    }

    /// Number of finite values over all samples.
    pub fn n_finite(&self) -> u64 {
        self.n_finite
    }

    /// Number of NaN and infinite values over all samples.
    pub fn n_non_finite(&self) -> u64 {
        self.n_non_finite
    }
}
