use super::{RangeFinder, fit, observed};
use crate::observe::Statistic;
use crate::quant::{Grid, Range};
use anyhow::{Result, ensure};

/// Exponential moving average of each sample's minimum and maximum, in sample order:
/// `m = ratio * m + (1 - ratio) * sample`; the first sample sets it. Depends on the order of samples.
///
/// Source: MQBench, `EMAMinMaxObserver` (ratio 0.9).
#[derive(Debug, Clone, Copy)]
pub struct Ema {
    /// Weight of the past, at least 0 and below 1.
    pub ratio: f64,
}

impl Ema {
    /// MQBench's ratio.
    pub const DEFAULT: Ema = Ema { ratio: 0.9 };
}

impl RangeFinder for Ema {
    fn name(&self) -> &'static str {
        "ema"
    }

    fn find(&self, statistic: &Statistic, grid: &Grid) -> Result<Range> {
        ensure!(
            (0.0..1.0).contains(&self.ratio),
            "ema ratio is {}, expected at least 0 and below 1",
            self.ratio
        );
        let mut mean: Option<Range> = None;
        for sample in statistic.samples.iter().filter(|s| s.n_finite > 0) {
            let (min, max) = (f64::from(sample.min), f64::from(sample.max));
            let blend = |past: f64, new: f64| self.ratio * past + (1.0 - self.ratio) * new;
            mean = Some(match mean {
                None => Range { min, max },
                Some(m) => Range { min: blend(m.min, min), max: blend(m.max, max) },
            });
        }
        match mean {
            Some(range) => Ok(fit(range, grid)),
            None => observed(statistic, grid),
        }
    }

    fn reads_histogram(&self) -> bool {
        false
    }
}
