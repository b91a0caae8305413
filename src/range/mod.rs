//! Range finders: which interval of a tensor to keep.
//!
//! In: a [`Statistic`] and the [`Grid`] it will be laid on. Out: a [`Range`]. Pure functions; they do
//! not compute scales and do not know tensors' names. [`FINDERS`] is the open list: a new one is a file
//! here, a `mod` line and a line in the list.

mod ema;
mod entropy;
mod max;
mod mse;
mod percentile;

pub use ema::Ema;
pub use entropy::Entropy;
pub use max::Max;
pub use mse::Mse;
pub use percentile::Percentile;

use crate::observe::Statistic;
use crate::quant::{Grid, Range, Symmetry};
use anyhow::{Context, Result};

/// Chooses the interval of a tensor that its grid will cover.
pub trait RangeFinder: std::fmt::Debug + Sync {
    /// The name on the command line and in a backend table.
    fn name(&self) -> &'static str;

    /// The interval to keep. It lies inside the observed range, is centred on 0 for a symmetric signed
    /// grid, and is the same whatever order the histogram was filled in.
    ///
    /// # Errors
    /// If the statistic holds no finite value, or an option of the finder is out of bounds.
    fn find(&self, statistic: &Statistic, grid: &Grid) -> Result<Range>;
}

/// Every finder, with its default options.
pub const FINDERS: &[&dyn RangeFinder] =
    &[&Max, &Ema::DEFAULT, &Percentile::DEFAULT, &Entropy, &Mse];

/// Whether the grid's range is `[-amax, amax]`.
fn is_centred(grid: &Grid) -> bool {
    grid.signed && grid.symmetry == Symmetry::Symmetric
}

/// The observed range, widened to hold 0 and centred where the grid is.
fn observed(statistic: &Statistic, grid: &Grid) -> Result<Range> {
    let (min, max) =
        statistic.min_max().context("no finite value was observed, expected at least one")?;
    Ok(fit(Range { min: f64::from(min), max: f64::from(max) }, grid))
}

/// `range` widened to hold 0, and centred where the grid is.
fn fit(range: Range, grid: &Grid) -> Range {
    let range = Range { min: range.min.min(0.0), max: range.max.max(0.0) };
    if is_centred(grid) { Range::symmetric(range.amax()) } else { range }
}

#[cfg(test)]
mod tests;
