use super::{Observer, observed};
use crate::quant::{Codes, Grid, QuantParams, Range, params_for_range};
use crate::statistics::{Bin, TensorStatistics};
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
    let bins: Vec<Bin> = statistics.histogram.bins().collect();
    let mut best = whole;
    let mut best_error = squared_error(&bins, whole, grid)?;
    let shrink = |step: u32| f64::from(step) / f64::from(N_STEPS);
    let mut try_range = |range: Range, best: &mut Range| -> Result<()> {
        let error = squared_error(&bins, range, grid)?;
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

/// Sum of squared differences between the bins' centers and their values on the grid.
pub fn squared_error(bins: &[Bin], range: Range, grid: &Grid) -> Result<f64> {
    let params = params_for_range(range, grid)?;
    Ok(squared_error_on(bins, &params))
}

/// As [`squared_error`], for given parameters.
pub(super) fn squared_error_on(bins: &[Bin], params: &QuantParams) -> f64 {
    if params.codes != Codes::Affine {
        let error = |bin: &Bin| {
            let x = bin.center();
            bin.count as f64 * (f64::from(params.fake_quantize(x as f32)) - x).powi(2)
        };
        return bins.iter().map(error).sum();
    }
    let scale = f64::from(params.scale);
    let (lo, hi) = (params.q_min - params.zero_point, params.q_max - params.zero_point);
    let error = |bin: &Bin| {
        let x = bin.center();
        let q = (x / scale).round_ties_even().clamp(f64::from(lo), f64::from(hi));
        bin.count as f64 * (q * scale - x).powi(2)
    };
    bins.iter().map(error).sum()
}
