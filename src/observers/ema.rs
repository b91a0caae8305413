use super::{Observer, fit, observed};
use crate::quant::{Grid, Range};
use crate::statistics::TensorStatistics;
use anyhow::{Result, ensure};

/// Exponential moving average of the minimum and maximum of each batch of samples:
/// `m = ratio * m + (1 - ratio) * batch`; the first batch sets it. Which samples make a batch follows from their contents,
/// not from their order ([`TensorStatistics::batches`]).
///
/// Source: MQBench, `EMAMinMaxObserver` (ratio 0.9), over the batches of the calibration data.
#[derive(Debug, Clone, Copy)]
pub struct Ema {
    /// Weight of the past, at least 0 and below 1.
    pub ratio: f64,
    /// Samples per batch, at least 1.
    pub batch: usize,
}

impl Ema {
    /// MQBench's ratio, over batches of 32.
    pub const DEFAULT: Ema = Ema { ratio: 0.9, batch: 32 };
}

impl Observer for Ema {
    fn name(&self) -> &'static str {
        "ema"
    }

    fn find(&self, statistic: &TensorStatistics, grid: &Grid) -> Result<Range> {
        ensure!(
            (0.0..1.0).contains(&self.ratio),
            "ema ratio is {}, expected at least 0 and below 1",
            self.ratio
        );
        let batches = statistic.batches.iter().filter_map(|batch| batch.get());
        let batches = batches.map(|(min, max)| Range { min: f64::from(min), max: f64::from(max) });
        let blend = |past: f64, new: f64| self.ratio * past + (1.0 - self.ratio) * new;
        let mean = batches
            .reduce(|m, new| Range { min: blend(m.min, new.min), max: blend(m.max, new.max) });
        // What was seen at once is one batch.
        mean.map_or_else(|| observed(statistic, grid), |range| Ok(fit(range, grid)))
    }

    fn reads_histogram(&self) -> bool {
        false
    }

    fn batch_size(&self) -> Option<usize> {
        Some(self.batch)
    }
}
