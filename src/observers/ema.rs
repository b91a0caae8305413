use super::{Observer, fit, number, observed};
use crate::quant::{Grid, Range};
use crate::statistics::TensorStatistics;
use anyhow::{Context, Result, ensure};

/// Exponential moving average of the minimum and maximum of each batch of samples:
/// `m = ratio * m + (1 - ratio) * batch`; the first batch sets `m`. Samples belong to batches by their contents, not by
/// their order ([`TensorStatistics::batches`]).
///
/// Source: MQBench, `EMAMinMaxObserver` (ratio 0.9), over the batches of the calibration data.
/// The options are the weight of the past (by default MQBench's ratio) and the samples per batch (by default 32).
pub const EMA: Observer = Observer {
    name: "ema",
    option: 0.9,
    batch_size: Some(32),
    parse: Some(parse),
    find,
    reads_histogram: false,
    ..Observer::PLAIN
};

fn parse(ema: Observer, text: &str) -> Result<Observer> {
    let (ratio, batch) = text.split_once(':').map_or((text, None), |(ratio, batch)| (ratio, Some(batch)));
    let option = number(ratio)?;
    ensure!((0.0..1.0).contains(&option), "{option}, expected at least 0 and below 1");
    let Some(batch) = batch else { return Ok(Observer { option, ..ema }) };
    let size = batch.parse().ok().filter(|size| *size > 0);
    let size = size.with_context(|| format!("batches of `{batch}` samples, expected 1 or more"))?;
    Ok(Observer { option, batch_size: Some(size), ..ema })
}

fn find(ema: &Observer, statistics: &TensorStatistics, grid: &Grid) -> Result<Range> {
    let batches = statistics.batches.iter().filter_map(|batch| batch.get());
    let batches = batches.map(|(min, max)| Range { min: f64::from(min), max: f64::from(max) });
    let blend = |past: f64, new: f64| ema.option * past + (1.0 - ema.option) * new;
    let mean = batches.reduce(|m, new| Range { min: blend(m.min, new.min), max: blend(m.max, new.max) });
    // Without batches all samples are one batch.
    mean.map_or_else(|| observed(statistics, grid), |range| Ok(fit(range, grid)))
}
