use super::bin_centers::BinCenters;
use super::{Observer, observed};
use crate::quant::{Grid, Range, params_for_range};
use crate::statistics::TensorStatistics;
use anyhow::Result;

/// Number of candidates per end: 1 % to 100 % of the observed end.
const N_STEPS: u32 = 100;
/// Rounds over both ends of an asymmetric grid.
const N_ROUNDS: usize = 3;

/// The range with the least mean squared error on the tensor's grid.
///
/// Both ends shrink towards 0 in steps of 1 % of the observed end: together on a centered grid, in turn otherwise. The
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
