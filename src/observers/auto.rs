use super::{Entropy, Max, Mse, Observer, Percentile};
use crate::quant::{Grid, Range};
use crate::statistics::TensorStatistics;
use anyhow::Result;

/// For each tensor the observer whose range leaves the least error at the outputs of the layers that read it, which
/// tuning measures on the quantized network; `mse` before that, and where no layer reads the tensor.
///
/// Source: selection by the error of the layer's output instead of the tensor's own, as in the search for
/// clipping values of PTQ4ViT (Yuan et al. 2022, arXiv 2111.12293).
#[derive(Debug, Clone, Copy)]
pub struct Auto;

impl Observer for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn find(&self, statistic: &TensorStatistics, grid: &Grid) -> Result<Range> {
        Mse.find(statistic, grid)
    }

    fn choices(&self) -> &'static [&'static dyn Observer] {
        &[&Mse, &Max, &Percentile { percent: 99.99 }, &Percentile { percent: 99.9 }, &Entropy]
    }
}
