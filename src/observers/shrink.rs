use super::percentile::cut_on_each_side;
use super::{Observer, number, observed};
use crate::quant::{Grid, Range};
use crate::statistics::{Bin, TensorStatistics};
use anyhow::{Result, ensure};

/// The observed range with `percent` of the values clipped on each side, then centered if the grid is. On a centered
/// grid it keeps the wider side, whereas `percentile` clips absolute values.
///
/// It ends at the outer edge of the histogram bin that crosses the mark.
///
/// Source: TI edgeai-torchmodelopt, `range_shrink` (0.01 is the value in version 2's tables with `AT8`).
pub const SHRINK: Observer = Observer { name: "shrink", option: 0.01, parse: Some(parse), find, ..Observer::PLAIN };

fn parse(observer: Observer, text: &str) -> Result<Observer> {
    let option = number(text)?;
    ensure!((0.0..50.0).contains(&option), "found {option}, expected a percentage of at least 0 and below 50");
    Ok(Observer { option, ..observer })
}

fn find(observer: &Observer, statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
    let whole = observed(statistics, grid)?;
    let bins: Vec<Bin> = statistics.histogram.bins().collect();
    let cut = observer.option / 100.0 * statistics.n_finite() as f64;
    Ok(cut_on_each_side(whole, &bins, cut, grid))
}
