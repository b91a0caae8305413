//! Statistics for a file, of several prepared models in one pass over a part of the samples.

use super::samples::{SampleSet, each_of, hash};
use crate::data::{Array, Sample};
use crate::engine::{Engine, Parsed, Session};
use crate::progress::Tick;
use crate::statistics::{
    ChannelExtremes, Extremes, KeptSample, SavedModel, SavedStatistics, SavedTensor, TensorCounts, TensorStatistics,
};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The tensors of a prepared model to observe.
#[derive(Debug, Clone, Default)]
pub struct WantedTensors {
    /// The observed tensors.
    pub tensors: BTreeSet<String>,
    /// The tensors of `tensors` that are also observed per channel.
    pub by_channel: BTreeSet<String>,
    /// The tensors of `tensors` whose extremes are kept per sample, for moving averages.
    pub averaged: BTreeSet<String>,
}

impl WantedTensors {
    /// Adds the tensors of another table.
    pub fn extend(&mut self, other: WantedTensors) {
        self.tensors.extend(other.tensors);
        self.by_channel.extend(other.by_channel);
        self.averaged.extend(other.averaged);
    }
}

/// The error that statistics cannot be saved, or collected for several backends at once. A backend's own run on the
/// data can succeed.
#[derive(Debug)]
pub struct NotSavable(pub String);

impl fmt::Display for NotSavable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotSavable {}

/// A prepared model and its tensors to observe.
pub struct ObservedModel {
    /// Hash of the model.
    pub sha256: String,
    engine: Engine,
    tensors: Vec<String>,
    by_channel: Vec<bool>,
    /// The position of each tensor among the tensors with extremes per sample; `None` for other tensors.
    averaged: Vec<Option<usize>>,
    n_averaged: usize,
}

impl ObservedModel {
    /// Builds the engine of a prepared model with the hash `sha256`.
    ///
    /// # Errors
    /// If the engine cannot run the model, or fuses operators depending on the observed tensors ([`NotSavable`]).
    pub fn new(sha256: String, parsed: Parsed, wanted: &WantedTensors) -> Result<ObservedModel> {
        let tensors: Vec<String> = wanted.tensors.iter().cloned().collect();
        let engine = parsed.build(&tensors)?;
        if !engine.has_independent_values() {
            let reason = "the engine fuses operators of this model depending on the observed tensors";
            bail!(NotSavable(format!("{reason}, so its statistics cannot be saved")));
        }
        Ok(ObservedModel {
            sha256,
            engine,
            by_channel: tensors.iter().map(|tensor| wanted.by_channel.contains(tensor)).collect(),
            averaged: tensors.iter().map(|tensor| wanted.averaged.iter().position(|name| name == tensor)).collect(),
            n_averaged: wanted.averaged.len(),
            tensors,
        })
    }

    /// Returns statistics without samples.
    pub fn empty(&self) -> SavedModel {
        let averaged = self.tensors.iter().zip(&self.averaged).filter(|(_, at)| at.is_some());
        SavedModel {
            tensors: self.tensors.iter().map(|tensor| (tensor.clone(), SavedTensor::default())).collect(),
            averaged: averaged.map(|(tensor, _)| tensor.clone()).collect(),
            by_sample: BTreeMap::new(),
        }
    }

    /// Runs a sample and adds its statistics to `seen`.
    fn observe(&self, seen: &mut SeenModel, session: &mut Session, sample: &Sample, hash: u64) -> Result<()> {
        let mut row = vec![Extremes::NONE; self.n_averaged];
        session.run(sample, &mut |at, shape, values| {
            let extremes = seen.statistics[at].observe(values);
            if self.by_channel[at] {
                seen.channels[at].observe(shape, values);
            }
            if let Some(column) = self.averaged[at] {
                row[column].widen(extremes);
            }
            Ok(())
        })?;
        if !row.is_empty() {
            seen.by_sample.insert(hash, row);
        }
        Ok(())
    }
}

/// The statistics of one model that one thread collects.
struct SeenModel {
    statistics: Vec<TensorStatistics>,
    channels: Vec<ChannelExtremes>,
    by_sample: BTreeMap<u64, Vec<Extremes>>,
}

impl SeenModel {
    fn new(model: &ObservedModel) -> SeenModel {
        let n = model.tensors.len();
        SeenModel {
            statistics: vec![TensorStatistics::default(); n],
            channels: vec![ChannelExtremes::default(); n],
            by_sample: BTreeMap::new(),
        }
    }

    fn saved(self, model: &ObservedModel) -> SavedModel {
        let SeenModel { statistics, channels, by_sample } = self;
        let of_tensors = statistics.iter().zip(channels).zip(&model.by_channel);
        let of_tensors = of_tensors.map(|((statistics, channels), by_channel)| {
            let is_seen = *by_channel && channels != ChannelExtremes::default();
            SavedTensor { counts: TensorCounts::of(statistics), channels: is_seen.then_some(channels) }
        });
        let tensors = model.tensors.iter().cloned().zip(of_tensors).collect();
        SavedModel { tensors, by_sample, ..model.empty() }
    }
}

/// The results of one thread.
#[derive(Default)]
struct SeenSamples {
    models: Vec<SeenModel>,
    hashes: Vec<u64>,
    skipped: Vec<String>,
    /// The first samples, ordered by hash and then by position.
    kept: BTreeMap<(u64, usize), KeptSample>,
}

impl SeenSamples {
    /// Keeps the sample if its key is among the lowest `n`.
    fn keep(&mut self, n: usize, sample: &Sample, key: (u64, usize)) {
        if self.kept.len() < n || self.kept.last_key_value().is_some_and(|(last, _)| key < *last) {
            let inputs = sample.iter().map(Array::to_kept_array).collect();
            self.kept.insert(key, KeptSample { hash: key.0, inputs });
            while self.kept.len() > n {
                self.kept.pop_last();
            }
        }
    }
}

/// Runs the models on `n` samples and adds their statistics to `saved`. `position` maps 0..n to positions in the data.
///
/// # Errors
/// If a sample cannot be loaded (unless such samples are skipped) or run; the message names it.
pub fn collect(
    models: &[ObservedModel],
    samples: &SampleSet,
    (n, position): (usize, &(dyn Fn(usize) -> usize + Sync)),
    saved: &mut SavedStatistics,
    tick: &Tick,
) -> Result<()> {
    let (dataset, n_kept) = (samples.dataset()?, saved.about.n_kept);
    let start = || {
        let sessions = models.iter().map(|model| model.engine.session()).collect::<Result<Vec<Session>>>()?;
        Ok((SeenSamples { models: models.iter().map(SeenModel::new).collect(), ..SeenSamples::default() }, sessions))
    };
    let job = |seen: &mut SeenSamples, sessions: &mut Vec<Session>, sample_idx: usize, loaded: Result<Sample>| {
        let sample = match samples.usable(loaded)? {
            Ok(sample) => sample,
            Err(reason) => {
                seen.skipped.push(reason);
                return Ok(());
            }
        };
        let hash = hash(&sample);
        for ((model, session), seen) in models.iter().zip(sessions).zip(&mut seen.models) {
            let observed = model.observe(seen, session, &sample, hash);
            observed.with_context(|| format!("`{}`", dataset.name(sample_idx)))?;
        }
        seen.hashes.push(hash);
        seen.keep(n_kept, &sample, (hash, sample_idx));
        Ok(())
    };
    for seen in each_of((n, position), &|i| dataset.load(i), &**tick, start, job)? {
        let of_models = models.iter().zip(seen.models).map(|(model, seen)| (model.sha256.clone(), seen.saved(model)));
        saved.add(seen.hashes, seen.skipped, of_models)?;
        saved.keep(seen.kept.into_values().collect());
    }
    Ok(())
}
