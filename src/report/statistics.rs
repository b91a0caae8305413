//! Reports of saved statistics.

use crate::diag::WithHint;
use crate::observers::Observer;
use crate::quant::{Grid, Range};
use crate::statistics::{Bin, SavedModel, SavedStatistics, SavedTensor, Shard, TensorStatistics};
use anyhow::{Result, anyhow, ensure};
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;

/// The bars of a histogram, lowest first.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The report on a file of statistics.
#[skip_serializing_none]
#[derive(Serialize)]
pub struct StatisticsReport {
    /// File name of the float model.
    pub model: String,
    /// SHA-256 of the model's file.
    pub model_sha256: String,
    /// Number of observed samples.
    pub n_samples: usize,
    /// Number of samples left out.
    pub n_skipped: usize,
    /// The preprocessing of images; absent for arrays.
    pub preprocessing: Option<String>,
    /// The shard; absent if the statistics are not of a shard.
    pub shard: Option<Shard>,
    /// Number of samples done before an interruption; absent if all of the shard or list are done.
    pub n_done: Option<usize>,
    /// Size of the file in bytes.
    pub n_bytes: usize,
    /// Size of the file per tensor, in bytes; statistics that prepared models share count once.
    pub bytes_per_tensor: usize,
    /// The prepared models, grouped by equal statistics.
    pub prepared_models: Vec<PreparedReport>,
}

/// Prepared models with the same statistics.
#[derive(Serialize)]
pub struct PreparedReport {
    /// Hashes of the prepared models.
    pub sha256: Vec<String>,
    /// The backends that the models are prepared for.
    pub backends: Vec<String>,
    /// The tensors of these models.
    pub tensors: Vec<TensorReport>,
}

/// Statistics of a tensor.
#[skip_serializing_none]
#[derive(Serialize)]
pub struct TensorReport {
    /// ONNX name.
    pub tensor: String,
    /// Number of finite values.
    pub n_values: u64,
    /// Number of NaN and infinite values.
    pub n_non_finite: u64,
    /// Lowest and highest finite value; absent where there is none.
    pub observed: Option<[f32; 2]>,
    /// The range that the observer chooses for an 8-bit grid; absent for a moving average without extremes by sample.
    pub range: Option<[f64; 2]>,
    /// Share of the finite values beyond `range`, 0 to 1.
    pub beyond: Option<f64>,
    /// Share of the finite values in each of 24 intervals of the same width from the lowest to the highest value.
    pub histogram: Vec<f32>,
}

/// Returns the report on statistics whose file has `n_bytes` bytes.
///
/// # Errors
/// If a histogram is invalid, the observer finds no range, or no tensor has the extremes by sample that it averages.
pub fn statistics(saved: &SavedStatistics, n_bytes: usize, observer: &Observer) -> Result<StatisticsReport> {
    let about = &saved.about;
    let batch_size = observer.batch_size.filter(|size| *size < about.n_listed);
    ensure!(
        batch_size.is_none() || saved.models.values().any(|model| !model.averaged.is_empty()),
        anyhow!("has no extremes by sample, expected them for observer `{}`", observer.name)
            .hint(format!("collect them with --observer {}", observer.name))
    );
    let mut prepared: Vec<(Vec<String>, &SavedModel)> = Vec::new();
    for (sha256, model) in &saved.models {
        match prepared.iter_mut().find(|(_, other)| other.tensors == model.tensors) {
            Some((same, _)) => same.push(sha256.clone()),
            None => prepared.push((vec![sha256.clone()], model)),
        }
    }
    let report = |(sha256, model): (Vec<String>, &SavedModel)| -> Result<PreparedReport> {
        let tensors = model.tensors.keys().map(|name| TensorReport::new(name, model, observer, batch_size));
        let backends = about.tables.iter().filter(|(_, other)| sha256.contains(other)).map(|(name, _)| name.clone());
        Ok(PreparedReport { backends: backends.collect(), tensors: tensors.collect::<Result<_>>()?, sha256 })
    };
    let n_tensors: usize = saved.different_tensors().values().map(Vec::len).sum();
    Ok(StatisticsReport {
        model: about.model.file.clone(),
        model_sha256: about.model.sha256.clone(),
        n_samples: saved.hashes.len(),
        n_skipped: about.skipped.len(),
        preprocessing: about.preprocessing.clone(),
        shard: about.part.as_ref().map(|part| part.shard),
        n_done: about.part.as_ref().and_then(|part| part.n_done),
        n_bytes,
        bytes_per_tensor: n_bytes / n_tensors.max(1),
        prepared_models: prepared.into_iter().map(report).collect::<Result<_>>()?,
    })
}

impl TensorReport {
    fn new(name: &str, model: &SavedModel, observer: &Observer, batch_size: Option<usize>) -> Result<TensorReport> {
        let statistics = model.statistics(name, None)?.unwrap_or_default();
        let observed = statistics.min_max();
        let of_observer = model.statistics(name, batch_size)?.filter(|_| observed.is_some());
        let chosen = of_observer.map(|read| observer.find(&read, &Grid::UINT8_ASYMMETRIC)).transpose()?;
        Ok(TensorReport {
            tensor: name.to_string(),
            n_values: statistics.n_finite(),
            n_non_finite: statistics.n_non_finite(),
            observed: observed.map(|(min, max)| [min, max]),
            range: chosen.map(|Range { min, max }| [min, max]),
            beyond: chosen.map(|range| beyond(&statistics, range)),
            histogram: statistics.shares().unwrap_or_default(),
        })
    }

    /// Returns the histogram as text.
    pub fn bars(&self) -> String {
        bars(&self.histogram)
    }
}

/// Returns a histogram as text: a bar per interval, as high as the square root of its share.
pub fn bars(shares: &[f32]) -> String {
    let highest = shares.iter().copied().fold(0.0, f32::max);
    let bar = |share: &f32| {
        let height = (share / highest).sqrt() * (BARS.len() - 1) as f32;
        BARS[(height.ceil() as usize).min(BARS.len() - 1)]
    };
    if highest > 0.0 { shares.iter().map(bar).collect() } else { String::new() }
}

/// Returns the share of the finite values beyond `range`, 0 to 1. All values of a bin are taken as its middle.
fn beyond(statistics: &TensorStatistics, range: Range) -> f64 {
    let (min, max) = statistics.min_max().map_or((0.0, 0.0), |(min, max)| (f64::from(min), f64::from(max)));
    let is_beyond = |bin: &Bin| {
        let middle = bin.center().clamp(min, max);
        middle < range.min || middle > range.max
    };
    let n: u64 = statistics.histogram.bins().filter(is_beyond).map(|bin| bin.count).sum();
    n as f64 / statistics.n_finite().max(1) as f64
}

/// The difference between the statistics of a tensor in two files.
#[skip_serializing_none]
#[derive(Serialize)]
pub struct TensorDifference {
    /// ONNX name.
    pub tensor: String,
    /// Largest difference between the shares of the values below any number, 0 to 1 (Kolmogorov-Smirnov).
    pub distance: f64,
    /// Lowest and highest finite value in each file.
    pub observed: [Option<[f32; 2]>; 2],
}

/// Returns the differences of the tensors that two files have in common, largest first.
///
/// # Errors
/// If a histogram is invalid.
pub fn differences(a: &SavedStatistics, b: &SavedStatistics) -> Result<Vec<TensorDifference>> {
    let (a, b) = (tensors(a), tensors(b));
    let mut differences = Vec::new();
    for (tensor, one) in a {
        let Some(other) = b.get(tensor) else { continue };
        let both = [one.counts.statistics()?, other.counts.statistics()?];
        let observed = [&both[0], &both[1]].map(|statistics| statistics.min_max().map(|(min, max)| [min, max]));
        differences.push(TensorDifference { tensor: tensor.clone(), distance: distance(&both), observed });
    }
    differences.sort_by(|x, y| y.distance.total_cmp(&x.distance));
    Ok(differences)
}

/// Returns the tensors of all prepared models by name, each from the first model that has it.
fn tensors(saved: &SavedStatistics) -> BTreeMap<&String, &SavedTensor> {
    saved.models.values().rev().flat_map(|model| &model.tensors).collect()
}

/// Returns the largest difference between the shares of two tensors' values below any number, 0 to 1.
fn distance(both: &[TensorStatistics; 2]) -> f64 {
    let shares = |statistics: &TensorStatistics, sign: f64| -> Vec<(f64, f64)> {
        let n = statistics.n_finite().max(1) as f64;
        statistics.histogram.bins().map(|bin| (bin.center(), sign * bin.count as f64 / n)).collect()
    };
    let mut steps = [shares(&both[0], 1.0), shares(&both[1], -1.0)].concat();
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut largest) = (0.0f64, 0.0f64);
    for same in steps.chunk_by(|a, b| a.0 == b.0) {
        sum += same.iter().map(|step| step.1).sum::<f64>();
        largest = largest.max(sum.abs());
    }
    largest
}
