//! Watches the ranges of tables while statistics are collected, to measure how much more samples change them.

use crate::observers::Observer;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::{PlannedActivation, decide_activations};
use crate::quant::QuantParams;
use crate::scheme::Scheme;
use crate::statistics::{RangeChange, SavedStatistics, TensorStatistics};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Maximum steps into which a grid is divided to count changes. A step of a wider grid, such as one of 16 bits, changes
/// no result.
const MAX_LEVELS: i32 = 255;

/// A table whose ranges are watched.
pub struct WatchedTable {
    /// The table.
    pub scheme: Scheme,
    /// Hash of the model that is prepared for the table.
    pub sha256: String,
    /// Where the table quantizes the model.
    pub placement: Placement,
    /// The range observer of activations.
    pub observer: Observer,
}

/// Parameters of the activations of all tables, from all samples so far.
#[derive(Default)]
pub struct WatchedRanges(Vec<QuantParams>);

impl WatchedTable {
    /// Returns the activations with their statistics and parameters.
    fn decide(&self, model: &ModelProto, saved: &SavedStatistics, n: usize) -> Result<Decisions> {
        let of_model = saved.models.get(&self.sha256).context("internal error: no statistics")?;
        let batch_size = self.observer.batch_size.filter(|size| *size < n);
        let of_tensor = |tensor: &str| {
            let statistics = of_model.statistics(tensor, batch_size)?;
            statistics.context("internal error: no statistics")
        };
        let seen = self.placement.activations.iter().map(|quantizer| of_tensor(&quantizer.tensor));
        let seen = seen.collect::<Result<Vec<TensorStatistics>>>()?;
        let planned = decide_activations(model.graph()?, &self.placement, &seen, &self.scheme, &self.observer)?;
        Ok((planned, seen))
    }
}

type Decisions = (Vec<PlannedActivation>, Vec<TensorStatistics>);

impl WatchedRanges {
    /// Replaces the ranges by those from the first `n` samples of the list, and returns the changes. `None` where there
    /// were no ranges before, or there are none now because a tensor had no value yet.
    pub fn update(
        &mut self,
        tables: &[WatchedTable],
        models: &BTreeMap<String, ModelProto>,
        saved: &SavedStatistics,
        n: usize,
    ) -> Option<Vec<RangeChange>> {
        let mut before = std::mem::take(&mut self.0).into_iter();
        let has_before = before.len() > 0;
        let (mut params, mut changes) = (Vec::new(), Vec::new());
        for table in tables {
            let (planned, seen) = table.decide(models.get(&table.sha256)?, saved, n).ok()?;
            for (planned, statistics) in planned.into_iter().zip(seen) {
                if let Some(before) = before.next() {
                    let steps = change(&statistics, &before, &planned.params);
                    changes.push(RangeChange { tensor: planned.quantizer.tensor, steps });
                }
                params.push(planned.params);
            }
        }
        self.0 = params;
        has_before.then_some(changes)
    }
}

/// Returns the root mean square of the change of all quantized values from parameters `before` to `after`, in steps of
/// `after`.
fn change(statistics: &TensorStatistics, before: &QuantParams, after: &QuantParams) -> f64 {
    let (mut sum, mut n) = (0.0, 0.0);
    for bin in statistics.histogram.bins() {
        let (value, count) = (bin.center() as f32, bin.count as f64);
        let difference = f64::from(after.fake_quantize(value)) - f64::from(before.fake_quantize(value));
        sum += count * difference * difference;
        n += count;
    }
    let width = f64::from(after.dequantize(after.q_max)) - f64::from(after.dequantize(after.q_min));
    let step = width / f64::from((after.q_max - after.q_min).clamp(1, MAX_LEVELS));
    if sum > 0.0 { (sum / n).sqrt() / step } else { 0.0 }
}
