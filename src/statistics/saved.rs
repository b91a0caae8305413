//! Statistics of a data set, from which later runs decide.

use super::{ChannelExtremes, Extremes, TensorCounts, TensorStatistics};
use crate::diag::WithHint;
use anyhow::{Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;

/// The float model whose tensors were observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloatModel {
    /// File name without folders.
    pub file: String,
    /// Hash of the file.
    pub sha256: String,
}

/// A part of a list of samples: every `of`-th, from `index` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard {
    /// Number of the shard, from 0 on.
    pub index: usize,
    /// Number of all shards.
    pub of: usize,
}

impl Shard {
    /// The whole list.
    pub const WHOLE: Shard = Shard { index: 0, of: 1 };

    /// Returns the number of samples of the shard, if the list has `n`.
    pub fn len(self, n: usize) -> usize {
        n.saturating_sub(self.index).div_ceil(self.of.max(1))
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

/// The part of a list of samples that was observed.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartOfList {
    /// The samples of this part.
    pub shard: Shard,
    /// Hash of the file names of the whole list, in order.
    pub list_sha256: String,
    /// Number of samples done; absent if the shard is finished.
    pub n_done: Option<usize>,
}

/// Pixel values that fit the float network clearly better than the given ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BetterPixelValues {
    /// A sentence for a warning.
    pub text: String,
    /// Approximate number of runs of the network that it took to find them.
    pub n_runs: usize,
}

/// The origin of statistics: model, data and options.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AboutStatistics {
    /// Version of the program.
    pub mqq: String,
    /// The float model.
    pub model: FloatModel,
    /// Shapes of open inputs.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// The preprocessing of images, in words; absent for arrays.
    pub preprocessing: Option<String>,
    /// The options of that preprocessing; absent for arrays, and in files of earlier versions.
    pub preprocessing_options: Option<serde_json::Value>,
    /// Height and width of the images that the network takes, if its input looks like an image.
    pub image_size: Option<[usize; 2]>,
    /// Number of samples in the list, unreadable ones included.
    pub n_listed: usize,
    /// The part of the list; absent where all samples were observed.
    pub part: Option<PartOfList>,
    /// Unreadable samples with the reason, sorted.
    pub skipped: Vec<String>,
    /// Warnings about the data.
    pub warnings: Vec<String>,
    /// Pixel values that fit the network clearly better.
    pub pixel_values: Option<BetterPixelValues>,
    /// Maximum number of samples that are kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_kept: usize,
    /// Hash of the prepared model by backend.
    pub tables: BTreeMap<String, String>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Statistics of one tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SavedTensor {
    /// Histogram and extremes.
    pub counts: TensorCounts,
    /// Extremes of the channels, if they were observed.
    pub channels: Option<ChannelExtremes>,
}

/// Statistics of a prepared model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SavedModel {
    /// Statistics by tensor.
    pub tensors: BTreeMap<String, SavedTensor>,
    /// Tensors with extremes of each sample, for moving averages.
    pub averaged: Vec<String>,
    /// Extremes of the `averaged` tensors, in that order, by the hash of the sample.
    pub by_sample: BTreeMap<u64, Vec<Extremes>>,
}

impl SavedModel {
    /// Returns the statistics of a tensor. A `batch_size` adds batches of that many different samples, in the order of
    /// their hashes. `None` if the tensor was not observed, or its extremes by sample are needed and missing.
    ///
    /// # Errors
    /// If the number of a bin is too large.
    pub fn statistics(&self, tensor: &str, batch_size: Option<usize>) -> Result<Option<TensorStatistics>> {
        let Some(saved) = self.tensors.get(tensor) else { return Ok(None) };
        let mut statistics = saved.counts.statistics()?;
        if let Some(size) = batch_size.filter(|_| !saved.counts.is_empty()) {
            let Ok(at) = self.averaged.binary_search_by(|name| name.as_str().cmp(tensor)) else { return Ok(None) };
            for (i, extremes) in self.by_sample.values().enumerate() {
                if i.is_multiple_of(size.max(1)) {
                    statistics.batches.push(Extremes::NONE);
                }
                let (Some(batch), Some(extremes)) = (statistics.batches.last_mut(), extremes.get(at)) else { continue };
                batch.widen(*extremes);
            }
        }
        Ok(Some(statistics))
    }
}

/// An input of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptArray {
    /// Element type, as its number in `TensorProto.DataType`.
    pub data_type: i32,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The values in row-major order, little-endian.
    pub bytes: Vec<u8>,
}

/// The inputs of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptSample {
    /// Hash of the sample's contents.
    pub hash: u64,
    /// One array per input.
    pub inputs: Vec<KeptArray>,
}

/// Statistics of a data set, or of a part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedStatistics {
    /// The origin of the statistics.
    pub about: AboutStatistics,
    /// Hash of the contents of each readable sample, ascending.
    pub hashes: Vec<u64>,
    /// Statistics by the hash of the prepared model.
    pub models: BTreeMap<String, SavedModel>,
    /// The first samples in the order of their hashes, for methods that run the network again.
    pub kept: Vec<KeptSample>,
}

impl SavedStatistics {
    /// Fails unless the statistics are of all samples and of the model with this hash.
    ///
    /// # Errors
    /// If the statistics are of another model, or of a part of the samples.
    pub fn ensure_of(&self, sha256: &str) -> Result<()> {
        let FloatModel { file, sha256: expected } = &self.about.model;
        ensure!(
            expected == sha256,
            anyhow!("the statistics are of another model: `{file}` with SHA-256 {expected}, found {sha256}")
                .hint("collect the statistics again if the model has changed")
        );
        let Some(PartOfList { shard, n_done, .. }) = &self.about.part else { return Ok(()) };
        let n = shard.len(self.about.n_listed);
        match n_done {
            Some(n_done) => Err(anyhow!("the collection of statistics was interrupted after {n_done} of {n} samples")
                .hint("run the same `mqq calibrate` with --resume")),
            None => Err(anyhow!("the statistics are of shard {shard}, expected statistics of all samples")
                .hint("merge all shards with `mqq stats merge`")),
        }
    }

    /// Returns the different statistics of each tensor. Prepared models share most statistics.
    pub fn different_tensors(&self) -> BTreeMap<&String, Vec<&SavedTensor>> {
        let mut different: BTreeMap<&String, Vec<&SavedTensor>> = BTreeMap::new();
        for (name, tensor) in self.models.values().flat_map(|model| &model.tensors) {
            let same = different.entry(name).or_default();
            if !same.contains(&tensor) {
                same.push(tensor);
            }
        }
        different
    }

    /// Number of different contents among the samples.
    pub fn n_different(&self) -> usize {
        self.hashes.chunk_by(|a, b| a == b).count()
    }
}
