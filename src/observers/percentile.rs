use super::{Observer, fit, number, observed};
use crate::quant::{Grid, Range};
use crate::statistics::{Bin, TensorStatistics};
use anyhow::{Result, ensure};

/// The range that holds `percent` of the values: of the absolute values on a centered grid, otherwise with half of the
/// clipped values on each side. 100 is exactly the observed range.
///
/// It ends at the outer edge of the histogram bin that crosses the mark, so that at least `percent` of the values are
/// kept (pytorch-quantization uses the inner edge, and can never return the maximum).
///
/// The default is 99.99 %, as in pytorch-quantization.
pub const PERCENTILE: Observer =
    Observer { name: "percentile", option: 99.99, parse: Some(parse), find, ..Observer::PLAIN };

fn parse(observer: Observer, text: &str) -> Result<Observer> {
    let option = number(text)?;
    // A fraction of 1, as other tools take, would clip nearly all values.
    ensure!((50.0..=100.0).contains(&option), "found {option}, expected a percentage from 50 to 100, such as 99.99");
    Ok(Observer { option, ..observer })
}

fn find(observer: &Observer, statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
    let whole = observed(statistics, grid)?;
    let mut bins: Vec<Bin> = statistics.histogram.bins().collect();
    let total = statistics.n_finite() as f64;
    let cut = 1.0 - observer.option / 100.0;
    if grid.is_centred() {
        bins.sort_by(|a, b| b.outer.abs().total_cmp(&a.outer.abs()));
        let amax = edge_after_cutting(bins.iter(), cut * total).abs();
        return Ok(Range::symmetric(amax.min(whole.max)));
    }
    Ok(cut_on_each_side(whole, &bins, 0.5 * cut * total, grid))
}

/// The observed range without `n_cut` values on each side.
pub(super) fn cut_on_each_side(whole: Range, bins: &[Bin], n_cut: f64, grid: &Grid) -> Range {
    let min = edge_after_cutting(bins.iter(), n_cut).max(whole.min);
    let max = edge_after_cutting(bins.iter().rev(), n_cut).min(whole.max);
    fit(Range { min, max }, grid)
}

/// Returns the outer end of the bins that are left after removing whole bins with at most `n_cut` values, outermost
/// first.
fn edge_after_cutting<'a>(bins: impl Iterator<Item = &'a Bin>, n_cut: f64) -> f64 {
    let mut n_gone = 0.0;
    for bin in bins {
        n_gone += bin.count as f64;
        if n_gone > n_cut {
            return bin.outer;
        }
    }
    0.0
}
