use super::{Observer, fit, observed};
use crate::quant::{Grid, Range};
use crate::statistics::{Bin, TensorStatistics};
use anyhow::{Result, ensure};

/// The interval that holds `percent` of the values: of the absolute values on a centred grid, otherwise
/// with half of the rest cut on each side. 100 is the observed range exactly.
///
/// The outer edge of the histogram bin that crosses the mark is taken, so that at least `percent` of
/// the values are kept (pytorch-quantization takes the inner edge, and can never return the maximum).
#[derive(Debug, Clone, Copy)]
pub struct Percentile {
    /// Above 0, at most 100.
    pub percent: f64,
}

impl Percentile {
    /// Keeps 99.99 % of the values, as pytorch-quantization does.
    pub const DEFAULT: Percentile = Percentile { percent: 99.99 };
}

impl Observer for Percentile {
    fn name(&self) -> &'static str {
        "percentile"
    }

    fn find(&self, statistic: &TensorStatistics, grid: &Grid) -> Result<Range> {
        ensure!(
            self.percent > 0.0 && self.percent <= 100.0,
            "percentile is {}, expected above 0 and at most 100",
            self.percent
        );
        let whole = observed(statistic, grid)?;
        let mut bins: Vec<Bin> = statistic.histogram.bins().collect();
        let total = statistic.n_finite() as f64;
        let cut = 1.0 - self.percent / 100.0;
        if grid.is_centred() {
            bins.sort_by(|a, b| b.outer.abs().total_cmp(&a.outer.abs()));
            let amax = edge_after_cutting(bins.iter(), cut * total).abs();
            return Ok(Range::symmetric(amax.min(whole.max)));
        }
        let cut = 0.5 * cut * total;
        let min = edge_after_cutting(bins.iter(), cut).max(whole.min);
        let max = edge_after_cutting(bins.iter().rev(), cut).min(whole.max);
        Ok(fit(Range { min, max }, grid))
    }
}

/// The end that is left when whole bins holding at most `n_cut` values are taken away, outermost first.
pub(super) fn edge_after_cutting<'a>(bins: impl Iterator<Item = &'a Bin>, n_cut: f64) -> f64 {
    let mut n_gone = 0.0;
    for bin in bins {
        n_gone += bin.count as f64;
        if n_gone > n_cut {
            return bin.outer;
        }
    }
    0.0
}
