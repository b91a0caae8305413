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
/// The bin at zero takes its neighbour's count, so that a ReLU's zeros do not dominate. For a threshold of `i` bins, P
/// is the first `i` bins with all outliers added to the last, and Q is P without outliers averaged over the non-empty
/// bins of each of N levels. N is the number of levels for absolute values: `2^(bits-1)` where values have both signs,
/// `2^bits` where the grid has one sign. Ties take the wider range. On an asymmetric grid the threshold clips both
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
    let n_levels = 1usize << (u32::from(grid.bits) - u32::from(!one_sided));
    let mut counts = linear_counts(statistics, amax);
    counts[0] = counts[1];
    let threshold = best_threshold(&counts, n_levels) as f64 / N_BINS as f64 * amax;
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

/// Prefix sums, so that the sum over any run of bins is a difference.
struct Prefix {
    /// Prefix sums of the counts.
    count: Vec<f64>,
    /// Prefix sums of `count * ln(count)`.
    count_ln: Vec<f64>,
    /// Prefix sums of the number of non-empty bins.
    used: Vec<u32>,
}

impl Prefix {
    fn of(counts: &[f64]) -> Prefix {
        let mut prefix = Prefix { count: vec![0.0], count_ln: vec![0.0], used: vec![0] };
        let (mut count, mut count_ln, mut used) = (0.0, 0.0, 0);
        for &c in counts {
            count += c;
            if c > 0.0 {
                count_ln += c * c.ln();
                used += 1;
            }
            prefix.count.push(count);
            prefix.count_ln.push(count_ln);
            prefix.used.push(used);
        }
        prefix
    }
}

/// The threshold in bins with the least divergence.
fn best_threshold(counts: &[f64], n_levels: usize) -> usize {
    /// Divergences that differ by less are equal: the precision of sums of differences.
    const EQUAL: f64 = 1e-12;
    let prefix = Prefix::of(counts);
    let (mut best, mut best_divergence) = (counts.len(), f64::INFINITY);
    for n in START_BIN..=counts.len() {
        let divergence = divergence(counts, &prefix, n, n_levels);
        if divergence <= best_divergence + EQUAL {
            (best, best_divergence) = (n, divergence.min(best_divergence));
        }
    }
    best
}

/// KL(P || Q) in nats for a threshold of `n` bins; infinite where outliers fall on an empty last bin.
///
/// With counts c of P and q of Q's level, the terms of a level add up to
/// `(sum(c ln c) - sum(c) (ln total + ln q)) / total`, so that a level needs one logarithm.
fn divergence(counts: &[f64], prefix: &Prefix, n: usize, n_levels: usize) -> f64 {
    let kept = prefix.count[n];
    let n_outliers = (prefix.count[counts.len()] - kept).max(0.0);
    let last = counts[n - 1];
    if kept == 0.0 || (n_outliers > 0.0 && last == 0.0) {
        return f64::INFINITY;
    }
    let p_total = kept + n_outliers;
    let ln_total = p_total.ln();
    let mut sum = 0.0;
    let mut start = 0;
    for level in 0..n_levels.min(n) {
        // Bins k with floor(k * n_levels / n) = level.
        let end = if n <= n_levels { level + 1 } else { ((level + 1) * n).div_ceil(n_levels) };
        let n_used = prefix.used[end] - prefix.used[start];
        if n_used > 0 {
            let count = prefix.count[end] - prefix.count[start];
            let ln_q = (count / f64::from(n_used) / kept).ln();
            let mut p_count = count;
            let mut p_count_ln = prefix.count_ln[end] - prefix.count_ln[start];
            if end == n && last > 0.0 {
                let with_outliers = last + n_outliers;
                p_count += n_outliers;
                p_count_ln += with_outliers * with_outliers.ln() - last * last.ln();
            }
            sum += p_count_ln - p_count * (ln_total + ln_q);
        }
        start = end;
    }
    sum / p_total
}
