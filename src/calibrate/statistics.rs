//! Statistics of the activations without a given range.

use super::observe::observe;
use super::samples::SampleSet;
use crate::engine::{Parsed, ShapedEngines};
use crate::onnx::edit::InsertedCopy;
use crate::onnx::inputs::Shapes;
use crate::onnx::model_sha256;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::progress::Progress;
use crate::quant::{ChannelScaling, GivenRange};
use crate::statistics::{ChannelExtremes, SavedStatistics, TensorStatistics};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the tensors to observe: the activations of `placement` without a `given` range, each once.
pub fn observed_tensors(placement: &Placement, given: Option<&BTreeMap<String, GivenRange>>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let tensors = placement.activations.iter().map(|quantizer| &quantizer.tensor);
    let unknown = tensors.filter(|tensor| !given.is_some_and(|all| all.contains_key(*tensor)));
    unknown.filter(|tensor| seen.insert(*tensor)).cloned().collect()
}

/// A tensor whose channels are scaled before it is observed.
pub struct ScaledTensor {
    /// Name of the scaled tensor; it may equal `source`.
    pub name: String,
    /// Name of the tensor in the model.
    pub source: String,
    /// Factors on its channels.
    pub scaling: ChannelScaling,
}

/// Statistics by tensor.
#[derive(Default)]
pub struct CalibrationStatistics {
    by_tensor: BTreeMap<String, TensorStatistics>,
    /// Statistics by tensor that others replaced.
    replaced: BTreeMap<String, TensorStatistics>,
    /// Statistics of scaled tensors, by the scaled tensors' names.
    scaled: BTreeMap<String, TensorStatistics>,
    /// Channel extremes along the last axis, by tensor, for the tensors that were observed per channel.
    channels: BTreeMap<String, ChannelExtremes>,
    /// Empty statistics, for tensors that were not observed.
    none: TensorStatistics,
    /// Number of observed samples.
    pub n_samples: usize,
    /// Skipped samples, with the reason.
    pub skipped: Vec<String>,
}

impl CalibrationStatistics {
    /// Runs the samples and observes `tensors`: also with scaled channels as `scaled` tells, and per channel if in
    /// `by_channel`.
    ///
    /// # Errors
    /// If the data cannot be read or run.
    pub fn collect(
        parsed: Parsed,
        tensors: Vec<String>,
        scaled: Vec<ScaledTensor>,
        by_channel: &BTreeSet<String>,
        samples: &SampleSet,
        progress: &Progress,
    ) -> Result<CalibrationStatistics> {
        let engines = ShapedEngines::new(parsed, &tensors)?;
        let of_tensor = |tensor: &String| scaled.iter().filter(|one| one.source == *tensor).collect();
        let by_source: Vec<Vec<&ScaledTensor>> = tensors.iter().map(of_tensor).collect();
        let scalings: Vec<Vec<&ChannelScaling>> =
            by_source.iter().map(|scaled| scaled.iter().map(|one| &one.scaling).collect()).collect();
        let of_channels: Vec<bool> = tensors.iter().map(|tensor| by_channel.contains(tensor)).collect();
        let pass = observe(&engines, &scalings, &of_channels, samples, progress)?;
        let channels = tensors.iter().cloned().zip(pass.channels);
        let names = by_source.iter().flatten();
        Ok(CalibrationStatistics {
            scaled: names.map(|one| one.name.clone()).zip(pass.scaled).collect(),
            channels: channels.filter(|(tensor, _)| by_channel.contains(tensor)).collect(),
            by_tensor: tensors.into_iter().zip(pass.statistics).collect(),
            replaced: BTreeMap::new(),
            none: TensorStatistics::default(),
            n_samples: pass.n_samples,
            skipped: pass.skipped,
        })
    }

    /// Returns the statistics of [`collect`](Self::collect) from saved ones, for a prepared model with the hash
    /// `sha256`. Returns `None` if the saved statistics lack something and the samples can be run instead.
    ///
    /// # Errors
    /// If the saved statistics lack something and not all samples can be loaded.
    pub fn of_saved(
        saved: &SavedStatistics,
        sha256: &str,
        tensors: &[String],
        scaled: &[ScaledTensor],
        by_channel: &BTreeSet<String>,
        samples: &SampleSet,
    ) -> Result<Option<CalibrationStatistics>> {
        let lacks = |lack: String| match samples.has_all() {
            true => Ok(None),
            false => Err(samples.record_lack(lack)),
        };
        let Some(model) = saved.models.get(sha256) else {
            return lacks("tensors of the model as this run prepares it".to_string());
        };
        if let Some(scaled) = scaled.first() {
            return lacks(format!(
                "values of tensor `{}` with scaled channels (they follow from the samples if all are kept)",
                scaled.source
            ));
        }
        let n_skipped = saved.about.skipped.len();
        let batch_size = samples.used.batch_size.filter(|size| *size < saved.about.n_listed);
        let mut all = CalibrationStatistics {
            n_samples: saved.about.n_listed - n_skipped.min(saved.about.n_listed),
            skipped: saved.about.skipped.clone(),
            ..CalibrationStatistics::default()
        };
        for tensor in tensors {
            let Some(statistics) = model.statistics(tensor, batch_size)? else {
                let of = if batch_size.is_some() { "extremes by sample" } else { "values" };
                return lacks(format!("{of} of tensor `{tensor}`"));
            };
            all.by_tensor.insert(tensor.clone(), statistics);
            if by_channel.contains(tensor) {
                let channels = model.tensors.get(tensor).and_then(|saved| saved.channels.clone());
                all.channels.insert(tensor.clone(), channels.unwrap_or_default());
            }
        }
        Ok(Some(all))
    }

    /// Returns the statistics of each activation quantizer's tensor; empty statistics where the range is given.
    pub fn for_quantizers(&self, placement: &Placement) -> Vec<&TensorStatistics> {
        let of = |tensor: &str| self.by_tensor.get(tensor).unwrap_or(&self.none);
        placement.activations.iter().map(|quantizer| of(&quantizer.tensor)).collect()
    }

    /// Returns the statistics of a tensor, if it was observed.
    pub fn get(&self, tensor: &str) -> Option<&TensorStatistics> {
        self.by_tensor.get(tensor)
    }

    /// Returns the statistics of each activation quantizer's tensor, for the model with channels scaled by `scalings`.
    pub fn of_scaled(
        &self,
        placement: &Placement,
        scalings: &BTreeMap<String, ChannelScaling>,
    ) -> Vec<&TensorStatistics> {
        self.for_quantizers_or(placement, |tensor| self.scaled.get(tensor).filter(|_| scalings.contains_key(tensor)))
    }

    /// Returns the statistics of each activation quantizer's tensor. Statistics in `others` replace the observed ones.
    pub fn for_quantizers_with<'a>(
        &'a self,
        placement: &Placement,
        others: &'a BTreeMap<String, TensorStatistics>,
    ) -> Vec<&'a TensorStatistics> {
        self.for_quantizers_or(placement, |tensor| others.get(tensor))
    }

    /// Returns the statistics of each activation quantizer's tensor: those from `other`, else the observed ones.
    fn for_quantizers_or<'a>(
        &'a self,
        placement: &Placement,
        other: impl Fn(&String) -> Option<&'a TensorStatistics>,
    ) -> Vec<&'a TensorStatistics> {
        let others = placement.activations.iter().map(|quantizer| other(&quantizer.tensor));
        others.zip(self.for_quantizers(placement)).map(|(other, plain)| other.unwrap_or(plain)).collect()
    }

    /// Returns statistics by the name of each copy: those of the copied tensor, if it was observed.
    pub fn of_copies(&self, copies: &[InsertedCopy]) -> BTreeMap<String, TensorStatistics> {
        let of = |copy: &InsertedCopy| Some((copy.output.clone(), self.get(&copy.tensor)?.clone()));
        copies.iter().filter_map(of).collect()
    }

    /// Sets the statistics of the tensors in `others`.
    pub fn set_statistics(&mut self, others: BTreeMap<String, TensorStatistics>) {
        others.into_iter().for_each(|(tensor, statistics)| self.replace(tensor, statistics));
    }

    fn replace(&mut self, tensor: String, statistics: TensorStatistics) {
        if let Some(first) = self.by_tensor.insert(tensor.clone(), statistics) {
            self.replaced.entry(tensor).or_insert(first);
        }
    }

    /// Gives each tensor with replaced statistics its first statistics again.
    pub fn restore(&mut self) {
        self.by_tensor.extend(std::mem::take(&mut self.replaced));
    }

    /// Returns, by tensor, the lowest and highest value of each channel along the last axis, where they were observed.
    pub fn channels(&self) -> &BTreeMap<String, ChannelExtremes> {
        &self.channels
    }

    /// Replaces the statistics of the tensors in `scalings` by those of their scaled versions.
    pub fn take_scaled(&mut self, scalings: &BTreeMap<String, ChannelScaling>) {
        for tensor in scalings.keys() {
            if let Some((tensor, statistics)) = self.scaled.remove_entry(tensor) {
                self.replace(tensor, statistics);
            }
        }
    }

    /// Adds the statistics of the `tensors` of `model` that were not observed yet: from saved statistics, or by another
    /// run of the samples.
    ///
    /// # Errors
    /// If the data cannot be read or run.
    pub fn observe_more(
        &mut self,
        model: &ModelProto,
        shapes: &Shapes,
        mut tensors: BTreeSet<&String>,
        samples: &SampleSet,
        progress: &Progress,
    ) -> Result<()> {
        tensors.retain(|tensor| !self.by_tensor.contains_key(*tensor));
        if tensors.is_empty() {
            return Ok(());
        }
        let tensors: Vec<String> = tensors.into_iter().cloned().collect();
        if let Some(saved) = &samples.saved {
            let sha256 = model_sha256(model);
            let none = BTreeSet::new();
            let known = CalibrationStatistics::of_saved(saved, &sha256, &tensors, &[], &none, samples)?;
            if let Some(known) = known {
                self.by_tensor.extend(known.by_tensor);
                return Ok(());
            }
        }
        let engines = ShapedEngines::new(Parsed::new(model, shapes)?, &tensors)?;
        let n = tensors.len();
        let pass = observe(&engines, &vec![Vec::new(); n], &vec![false; n], samples, progress)?;
        self.by_tensor.extend(tensors.into_iter().zip(pass.statistics));
        Ok(())
    }
}
