//! Scale and zero point of a block. A block has few values, so that each candidate is tried on all of them.

use crate::quant::{Grid, QuantParams, Range, params_for_range};
use anyhow::Result;

/// Candidate ends of the range, in percent of the ends of the block's own range.
const PERCENT: std::ops::RangeInclusive<u32> = 40..=100;
/// Step between two candidates, in percent.
const STEP: usize = 2;
/// Rounds over both ends of an asymmetric grid.
const N_ROUNDS: usize = 3;

/// Returns the parameters with the least squared error after nearest rounding. Both ends of the range shrink towards 0:
/// together on a symmetric grid, in turn otherwise. The whole range is a candidate, and ties take the wider range.
///
/// # Errors
/// If a value is not finite.
pub fn least_error(values: &[f32], grid: &Grid) -> Result<QuantParams> {
    let min = values.iter().copied().fold(0f32, f32::min);
    let max = values.iter().copied().fold(0f32, f32::max);
    let whole = Range { min: min.into(), max: max.into() };
    let mut best = (whole, params_for_range(whole, grid)?);
    let mut best_error = squared_error(values, &best.1);
    let mut try_range = |range: Range, best: &mut (Range, QuantParams)| -> Result<()> {
        let params = params_for_range(range, grid)?;
        let error = squared_error(values, &params);
        if error < best_error {
            (best_error, *best) = (error, (range, params));
        }
        Ok(())
    };
    let shares = || PERCENT.rev().step_by(STEP).map(|percent| f64::from(percent) / 100.0);
    if grid.is_centred() {
        for share in shares() {
            try_range(Range::symmetric(whole.amax() * share), &mut best)?;
        }
        return Ok(best.1);
    }
    for _ in 0..N_ROUNDS {
        let before = best.0;
        for share in shares() {
            try_range(Range { max: whole.max * share, ..best.0 }, &mut best)?;
        }
        for share in shares() {
            try_range(Range { min: whole.min * share, ..best.0 }, &mut best)?;
        }
        if best.0 == before {
            break;
        }
    }
    Ok(best.1)
}

fn squared_error(values: &[f32], params: &QuantParams) -> f32 {
    let rounded = params.fake_quantizer();
    values.iter().map(|&x| (rounded(x) - x).powi(2)).sum()
}
