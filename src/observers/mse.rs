use super::{Observer, observed};
use crate::quant::{Codes, Grid, QuantParams, Range, params_for_range};
use crate::statistics::{Bin, Histogram, TensorStatistics};
use anyhow::Result;

/// Candidates per end: 1 % to 100 % of the observed end.
const N_STEPS: u32 = 100;
/// Rounds over both ends of an asymmetric grid.
const N_ROUNDS: usize = 3;

/// The range with the least mean squared error on the tensor's grid.
///
/// Both ends shrink towards 0 in steps of 1 % of the observed end: together on a centred grid, in turn otherwise. The
/// observed range itself is a candidate, so the error is never above that of `max`. Ties take the wider range.
///
/// Source: the search of MQBench's `MSEObserver` (both ends in 1 % steps), over the histogram of all
/// samples instead of batch by batch.
pub const MSE: Observer = Observer { name: "mse", find, ..Observer::PLAIN };

fn find(_: &Observer, statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
    let whole = observed(statistics, grid)?;
    let bins = BinCenters::of(&statistics.histogram);
    let mut best = whole;
    let mut best_error = bins.squared_error(&params_for_range(whole, grid)?, f64::INFINITY);
    let shrink = |step: u32| f64::from(step) / f64::from(N_STEPS);
    let mut try_range = |range: Range, best: &mut Range| -> Result<()> {
        let error = bins.squared_error(&params_for_range(range, grid)?, best_error);
        if error < best_error {
            (best_error, *best) = (error, range);
        }
        Ok(())
    };
    if grid.is_centred() {
        for step in (1..N_STEPS).rev() {
            try_range(Range::symmetric(whole.max * shrink(step)), &mut best)?;
        }
        return Ok(best);
    }
    for _ in 0..N_ROUNDS {
        let before = best;
        for step in (1..N_STEPS).rev() {
            try_range(Range { max: whole.max * shrink(step), ..best }, &mut best)?;
        }
        let lower = if whole.min < 0.0 { N_STEPS } else { 1 };
        for step in (1..lower).rev() {
            try_range(Range { min: whole.min * shrink(step), ..best }, &mut best)?;
        }
        if best == before {
            break;
        }
    }
    Ok(best)
}

/// The centers of a histogram's bins and their counts, highest first, filled up with empty bins.
pub struct BinCenters(Vec<BinGroup>);

/// Bins that are summed side by side.
#[derive(Clone, Copy, Default)]
struct BinGroup {
    centers: [f64; N_GROUP],
    counts: [f64; N_GROUP],
}

const N_GROUP: usize = 4;
/// Groups of bins between two looks at the limit.
const N_UNTIL_LOOK: usize = 16;

impl BinCenters {
    /// The bins of a histogram.
    pub fn of(histogram: &Histogram) -> BinCenters {
        let bins: Vec<Bin> = histogram.bins().rev().collect();
        let group = |bins: &[Bin]| {
            let mut group = BinGroup::default();
            for (at, bin) in bins.iter().enumerate() {
                (group.centers[at], group.counts[at]) = (bin.center(), bin.count as f64);
            }
            group
        };
        BinCenters(bins.chunks(N_GROUP).map(group).collect())
    }

    /// Sum of squared differences between the bins' centers and their quantized values. Once the sum reaches `limit`, any
    /// part of it from `limit` on.
    pub fn squared_error(&self, params: &QuantParams, limit: f64) -> f64 {
        if params.codes == Codes::Affine {
            self.sum(limit, params.fake_quantizer_f64())
        } else {
            self.sum(limit, |x| f64::from(params.fake_quantize(x as f32)))
        }
    }

    fn sum(&self, limit: f64, quantized: impl Fn(f64) -> f64) -> f64 {
        let mut sums = [0.0; N_GROUP];
        for groups in self.0.chunks(N_UNTIL_LOOK) {
            for BinGroup { centers, counts } in groups {
                for ((sum, &x), &n) in sums.iter_mut().zip(centers).zip(counts) {
                    let difference = quantized(x) - x;
                    *sum += n * difference * difference;
                }
            }
            if sums.iter().sum::<f64>() >= limit {
                break;
            }
        }
        sums.iter().sum()
    }
}
