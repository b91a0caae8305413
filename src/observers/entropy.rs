use super::{Observer, observed};
use crate::quant::{Grid, Range};
use crate::statistics::TensorStatistics;
use anyhow::Result;

/// Linear bins over `[0, amax]`, as in pytorch-quantization.
const N_BINS: usize = 2048;
/// Smallest threshold, in bins.
const START_BIN: usize = 128;

/// The threshold on |x| with the least KL divergence between the histogram and its quantized form
/// (TensorRT's "entropy" calibration).
///
/// The bin at zero takes its neighbor's count, so that a ReLU's zeros do not dominate. For a threshold of `i` bins, P
/// is the first `i` bins with all outliers added to the last, and Q is P without outliers averaged over the non-empty
/// bins of each of N levels. N is the number of levels for absolute values: `2^bits` if the range has one sign and the
/// grid is not centered, else `2^(bits-1)`. Ties take the wider range. On an asymmetric grid the threshold clips both
/// ends.
///
/// Source: S. Migacz, "8-bit Inference with TensorRT", GTC 2017; pytorch-quantization's
/// `HistogramCalibrator`, with bins from the float-prefix histogram.
pub const ENTROPY: Observer = Observer { name: "entropy", find, ..Observer::PLAIN };

fn find(_: &Observer, statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
    let whole = observed(statistics, grid)?;
    let amax = whole.amax();
    if amax == 0.0 {
        return Ok(whole);
    }
    let one_sided = !grid.is_centred() && (whole.min == 0.0 || whole.max == 0.0);
    let level_bits = u32::from(grid.bits) - u32::from(!one_sided);
    let mut counts = linear_counts(statistics, amax);
    counts[0] = counts[1];
    let threshold = Divergences::of(&counts, level_bits).best_threshold() as f64 / N_BINS as f64 * amax;
    Ok(Range { min: whole.min.max(-threshold), max: whole.max.min(threshold) })
}

/// Counts of |x| in equal bins over `[0, amax]`; a float-prefix bin is spread over the bins that it overlaps.
fn linear_counts(statistics: &TensorStatistics, amax: f64) -> Vec<f64> {
    let mut counts = vec![0.0; N_BINS];
    let per_real = N_BINS as f64 / amax;
    for bin in statistics.histogram.bins() {
        let from = (bin.inner.abs() * per_real).min(N_BINS as f64);
        let to = (bin.outer.abs() * per_real).min(N_BINS as f64);
        let (first, last) = ((from as usize).min(N_BINS - 1), (to as usize).min(N_BINS - 1));
        let count = bin.count as f64;
        if first == last || to <= from {
            counts[first] += count;
            continue;
        }
        for (i, slot) in counts.iter_mut().enumerate().take(last + 1).skip(first) {
            let overlap = to.min((i + 1) as f64) - from.max(i as f64);
            *slot += count * overlap.max(0.0) / (to - from);
        }
    }
    counts
}

/// Divergences by threshold, from sums over runs of bins.
struct Divergences<'a> {
    counts: &'a [f64],
    /// Base-2 logarithm of the number of levels.
    level_bits: u32,
    /// Prefix sums of the counts.
    count: Vec<f64>,
    /// Prefix sums of `count * ln(count)`.
    count_ln: Vec<f64>,
    /// Prefix sums of the number of non-empty bins.
    n_non_empty: Vec<u32>,
    /// Losses of runs by their first bin, for even and odd numbers of bins; NaN where unknown.
    losses: [Vec<f64>; 2],
    /// Number of bins of the runs in `losses`.
    n_bins: [usize; 2],
}

impl<'a> Divergences<'a> {
    fn of(counts: &'a [f64], level_bits: u32) -> Divergences<'a> {
        let (mut count, mut count_ln, mut n_non_empty) = (vec![0.0], vec![0.0], vec![0]);
        for (i, &c) in counts.iter().enumerate() {
            count.push(count[i] + c);
            count_ln.push(count_ln[i] + times_ln(c));
            n_non_empty.push(n_non_empty[i] + u32::from(c > 0.0));
        }
        Divergences { counts, level_bits, count, count_ln, n_non_empty, losses: Default::default(), n_bins: [0; 2] }
    }

    /// The threshold in bins with the least divergence.
    fn best_threshold(&mut self) -> usize {
        /// Divergences that differ by less count as equal. The bound is the precision of sums of differences.
        const EQUAL: f64 = 1e-12;
        let (mut best, mut best_divergence) = (self.counts.len(), f64::INFINITY);
        for n in (START_BIN..=self.counts.len()).rev() {
            let divergence = self.divergence(n, best_divergence);
            if divergence < best_divergence - EQUAL {
                (best, best_divergence) = (n, divergence);
            }
        }
        best
    }

    /// Returns KL(P || Q) in nats for a threshold of `n` bins. The result is infinite if outliers fall on an empty last
    /// bin, and may be infinite if the divergence is above `bound`.
    ///
    /// With counts c of P and q of Q's level, the terms of a level add up to
    /// `(sum(c ln c) - sum(c) (ln total + ln q)) / total`. Without outliers, the sum is a loss that follows from the
    /// level's bins alone, plus a part that is the same for all counts.
    fn divergence(&mut self, n: usize, bound: f64) -> f64 {
        let kept = self.count[n];
        let n_outliers = (self.count[self.counts.len()] - kept).max(0.0);
        let last = self.counts[n - 1];
        if kept == 0.0 || (n_outliers > 0.0 && last == 0.0) {
            return f64::INFINITY;
        }
        let p_total = kept + n_outliers;
        // The first bin of the last level; levels of one bin lose nothing.
        let n_levels = 1 << self.level_bits;
        let is_coarse = n > n_levels;
        let last_start = if is_coarse { self.start_of(n_levels - 1, n) } else { n - 1 };
        let (ln_excess, n_used) = ((p_total / kept).ln(), self.n_non_empty[n] - self.n_non_empty[last_start]);
        let mut sum = -self.count[last_start] * ln_excess;
        if n_used > 0 {
            let count = kept - self.count[last_start];
            let p_count_ln =
                self.count_ln[n] - self.count_ln[last_start] + times_ln(last + n_outliers) - times_ln(last);
            sum += p_count_ln - (count + n_outliers) * (ln_excess + (count / f64::from(n_used)).ln());
        }
        let mut start = 0;
        for level in 1..if is_coarse { n_levels } else { 0 } {
            let end = self.start_of(level, n);
            sum += self.loss(start, end);
            // Losses are not negative.
            if sum > bound * p_total {
                return f64::INFINITY;
            }
            start = end;
        }
        sum / p_total
    }

    /// The first bin of a level for a threshold of `n` bins: the first k with floor(k * n_levels / n) = level.
    fn start_of(&self, level: usize, n: usize) -> usize {
        (level * n + (1 << self.level_bits) - 1) >> self.level_bits
    }

    /// `sum(c ln c) - sum(c) ln(q)` over a run of bins, where q is the mean of the non-empty bins. Successive
    /// thresholds have many runs in common, of two lengths that differ by one.
    fn loss(&mut self, start: usize, end: usize) -> f64 {
        let (n_bins, parity) = (end - start, (end - start) % 2);
        if self.n_bins[parity] != n_bins {
            self.n_bins[parity] = n_bins;
            self.losses[parity] = vec![f64::NAN; self.counts.len()];
        }
        let known = &mut self.losses[parity][start];
        if known.is_nan() {
            let count = self.count[end] - self.count[start];
            let n_used = f64::from(self.n_non_empty[end] - self.n_non_empty[start]).max(1.0);
            *known = self.count_ln[end] - self.count_ln[start] - n_used * times_ln(count / n_used);
        }
        *known
    }
}

/// `x ln(x)`; 0 for 0.
fn times_ln(x: f64) -> f64 {
    if x > 0.0 { x * x.ln() } else { 0.0 }
}
