use super::percentile::edge_after_cutting;
use super::{Observer, fit, observed};
use crate::quant::{Grid, Range};
use crate::statistics::{Bin, TensorStatistics};
use anyhow::{Result, ensure};

/// The observed range with `percent` of the values cut on each side, then centred where the grid is: on a
/// centred grid it keeps what the wider side asks for, where `percentile` cuts absolute values.
///
/// The outer edge of the histogram bin that crosses the mark is taken.
///
/// Source: TI edgeai-torchmodelopt, `range_shrink` (0.01 is version 2's for its tables with `AT8`).
#[derive(Debug, Clone, Copy)]
pub struct Shrink {
    /// At least 0, below 50.
    pub percent: f64,
}

impl Shrink {
    /// TI's.
    pub const DEFAULT: Shrink = Shrink { percent: 0.01 };
}

impl Observer for Shrink {
    fn name(&self) -> &'static str {
        "shrink"
    }

    fn find(&self, statistic: &TensorStatistics, grid: &Grid) -> Result<Range> {
        ensure!(
            (0.0..50.0).contains(&self.percent),
            "shrink is {}, expected at least 0 and below 50",
            self.percent
        );
        let whole = observed(statistic, grid)?;
        let bins: Vec<Bin> = statistic.histogram.bins().collect();
        let cut = self.percent / 100.0 * statistic.n_finite() as f64;
        let min = edge_after_cutting(bins.iter(), cut).max(whole.min);
        let max = edge_after_cutting(bins.iter().rev(), cut).min(whole.max);
        Ok(fit(Range { min: min.min(0.0), max: max.max(0.0) }, grid))
    }
}
