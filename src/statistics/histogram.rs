//! A histogram with bins from the top bits of the float.
//!
//! A value belongs to the bin `to_bits() >> 15`: sign, exponent and the top 8 bits of the mantissa. The bins are fixed
//! before any value is seen, so one pass is enough, and two histograms merge by adding, exactly and in any order. A bin
//! is at most 0.4 % as wide as its values are large, at every magnitude.

use anyhow::{Result, ensure};

/// Low bits of the float that are not part of the bin number.
const DROPPED_BITS: u32 = 15;
/// Number of bins of both signs.
const N_BINS: usize = 1 << (32 - DROPPED_BITS);
/// Number of extra counters after the bins. Zeros are distributed among them while values are counted; at other times
/// they are 0.
const N_ZERO_COUNTERS: usize = 8;
/// First bin of the negative half.
const N_HALF: usize = N_BINS / 2;
/// First bin in each half with infinities and NaN (exponent of all ones).
const NON_FINITE: usize = 0x7f80_0000 >> DROPPED_BITS;

/// Counts per bin. A histogram takes no memory for counts until the first value.
#[derive(Clone, Default)]
pub struct Histogram {
    counts: Vec<u64>,
}

/// A non-empty bin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    /// The end closer to zero.
    pub inner: f64,
    /// The end farther from zero.
    pub outer: f64,
    /// Number of values.
    pub count: u64,
}

impl Bin {
    /// Returns the middle of the bin; exactly 0 for the bin that holds zero.
    pub fn center(&self) -> f64 {
        if self.inner == 0.0 { 0.0 } else { 0.5 * (self.inner + self.outer) }
    }
}

impl Histogram {
    /// Counts every value. Zeros of both signs are in bin 0. NaN and the infinities are in bins without finite values.
    pub fn observe(&mut self, values: &[f32]) {
        if self.counts.is_empty() {
            self.counts = vec![0; N_BINS + N_ZERO_COUNTERS];
        }
        // After a ReLU most values are zeros in no order: a branch would be mispredicted half of the time, and on one
        // counter each increment would wait for the one before. So zeros are distributed among several counters.
        let counts: &mut [u64; N_BINS + N_ZERO_COUNTERS] =
            self.counts.as_mut_slice().try_into().expect("the table has one size");
        for (position, value) in values.iter().enumerate() {
            let bits = value.to_bits();
            let zero = N_BINS + position % N_ZERO_COUNTERS;
            let bin = if bits << 1 == 0 { zero } else { (bits >> DROPPED_BITS) as usize };
            counts[bin] += 1;
        }
        let n_zeros: u64 = counts[N_BINS..].iter_mut().map(std::mem::take).sum();
        counts[0] += n_zeros;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        if self.counts.is_empty() && !other.counts.is_empty() {
            self.counts = vec![0; N_BINS + N_ZERO_COUNTERS];
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            // Untouched pages stay unallocated.
            if *theirs != 0 {
                *mine += theirs;
            }
        }
    }

    /// Number of NaN and infinite values.
    pub fn n_non_finite(&self) -> u64 {
        let half = |start: usize| -> u64 {
            let end = self.counts.len().min(start + N_HALF);
            self.counts.get(start + NON_FINITE..end).map_or(0, |counts| counts.iter().sum())
        };
        half(0) + half(N_HALF)
    }

    /// Number of values of minus infinity.
    pub fn n_minus_infinity(&self) -> u64 {
        self.counts.get(N_HALF + NON_FINITE).copied().unwrap_or(0)
    }

    /// Moves every negative value up to `highest`, minus infinity included, to the bin of `to`.
    pub fn raise(&mut self, highest: f64, to: f32) {
        if self.counts.is_empty() {
            return;
        }
        let lowest = (0..NON_FINITE).find(|&i| -edge(i) <= highest).unwrap_or(NON_FINITE);
        let raised = self.counts[N_HALF + lowest..=N_HALF + NON_FINITE].iter_mut();
        let n_raised: u64 = raised.map(std::mem::take).sum();
        self.counts[(to.to_bits() >> DROPPED_BITS) as usize] += n_raised;
    }

    /// Returns the number and the count of each non-empty bin, ascending by the number.
    pub fn counts(&self) -> Vec<(u32, u64)> {
        let counts = self.counts.iter().take(N_BINS).zip(0..);
        counts.filter(|(count, _)| **count != 0).map(|(count, bin)| (bin, *count)).collect()
    }

    /// Returns the histogram of counts, each with the number of its bin.
    ///
    /// # Errors
    /// If the number of a bin is too large.
    pub fn of_counts(counts: &[(u32, u64)]) -> Result<Histogram> {
        let mut histogram = Histogram::default();
        if !counts.is_empty() {
            histogram.counts = vec![0; N_BINS + N_ZERO_COUNTERS];
        }
        for &(bin, count) in counts {
            ensure!((bin as usize) < N_BINS, "bin {bin}, expected below {N_BINS}");
            histogram.counts[bin as usize] = count;
        }
        Ok(histogram)
    }

    /// Returns the numbers of the bins of the lowest and the highest finite value; `None` without finite values.
    pub fn ends(&self) -> Option<(u32, u32)> {
        let numbers = |half: usize| half..(half + NON_FINITE).min(self.counts.len().max(half));
        let is_used = |bin: &usize| self.counts[*bin] > 0;
        let mut ascending = numbers(N_HALF).rev().chain(numbers(0)).filter(is_used);
        let lowest = ascending.next()?;
        let highest = ascending.next_back().unwrap_or(lowest);
        Some((lowest as u32, highest as u32))
    }

    /// Number of finite values.
    pub fn n_finite(&self) -> u64 {
        self.bins().map(|bin| bin.count).sum()
    }

    /// The non-empty bins of finite values, lowest first.
    pub fn bins(&self) -> impl DoubleEndedIterator<Item = Bin> + '_ {
        let (positive, negative) = match self.counts.len() {
            0 => (&[][..], &[][..]),
            _ => (&self.counts[..NON_FINITE], &self.counts[N_HALF..N_HALF + NON_FINITE]),
        };
        let bin = |i: usize, sign: f64, count: u64| Bin { inner: sign * edge(i), outer: sign * edge(i + 1), count };
        let negative = negative.iter().enumerate().rev().map(move |(i, &n)| bin(i, -1.0, n));
        let positive = positive.iter().enumerate().map(move |(i, &n)| bin(i, 1.0, n));
        negative.chain(positive).filter(|bin| bin.count > 0)
    }
}

/// Returns the number of the bin of a value.
pub fn bin_of(value: f32) -> u32 {
    if value == 0.0 { 0 } else { value.to_bits() >> DROPPED_BITS }
}

/// Returns the number of bins of the positive half whose centers are not above `value`; `value` must be 0 or more.
pub fn n_centers_up_to(value: f64) -> usize {
    // The center of a bin is the value at which the highest dropped bit becomes 1; the center of the first bin is 0.
    let bits = (value as f32).to_bits() + (1 << (DROPPED_BITS - 1));
    ((bits >> DROPPED_BITS) as usize).max(1)
}

/// Absolute value at the lower end of bin `i` of a half. The last finite bin ends at `f32::MAX` rounded up to the next
/// power of two.
fn edge(i: usize) -> f64 {
    if i == NON_FINITE {
        return 2f64.powi(128);
    }
    f64::from(f32::from_bits((i as u32) << DROPPED_BITS))
}

impl PartialEq for Histogram {
    fn eq(&self, other: &Histogram) -> bool {
        self.bins().eq(other.bins()) && self.n_non_finite() == other.n_non_finite()
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.bins()).finish()
    }
}
