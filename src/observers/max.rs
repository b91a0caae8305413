use super::{Observer, observed};
use crate::quant::{Grid, Range};
use crate::statistics::TensorStatistics;
use anyhow::Result;

/// The whole observed range. Nothing clips; one outlier sets the scale.
#[derive(Debug, Clone, Copy)]
pub struct Max;

impl Observer for Max {
    fn name(&self) -> &'static str {
        "max"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["minmax"]
    }

    fn find(&self, statistic: &TensorStatistics, grid: &Grid) -> Result<Range> {
        observed(statistic, grid)
    }

    fn reads_histogram(&self) -> bool {
        false
    }
}
