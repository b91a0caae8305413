//! The parallel pass over the calibration data.
//!
//! In: a prepared model as the engine takes it, its placement, and [`CalibrationOptions`] with the data. Out:
//! [`CalibrationStatistics`], one [`TensorStatistics`](crate::statistics::TensorStatistics) per observed tensor, and
//! the [`SampleSet`], from which others load samples again; or [`SavedStatistics`] for a file, which stand for the data in
//! later runs. It chooses no range and does not change the model. The
//! result does not depend on the number of threads (that of the caller's thread pool) nor on the order of the files.

mod channels;
mod collect;
mod observe;
mod samples;
mod statistics;

pub use channels::channel_extremes;
pub use collect::{ObservedModel, WantedTensors, collect};
pub use samples::{Order, SKIPPING, SampleSet, each_sample, hash};
pub use statistics::{CalibrationStatistics, ScaledTensor, observed_tensors};

use crate::data::Preprocessing;
use crate::statistics::SavedStatistics;
use std::sync::Arc;

/// Options of calibration.
pub struct CalibrationOptions {
    /// Calibration data, as `--data` gives it.
    pub data: Vec<String>,
    /// Preprocessing of images.
    pub preprocessing: Preprocessing,
    /// Maximum samples.
    pub limit: Option<usize>,
    /// Number of these samples to keep, spread over the data; `None` for all.
    pub spread: Option<usize>,
    /// Whether unreadable samples are skipped.
    pub skip_bad_data: bool,
    /// Whether other pixel values are tried on the float network.
    pub checks_preprocessing: bool,
    /// Statistics of the data: from a file in place of the data, or as collected for a file.
    pub saved: Option<Arc<SavedStatistics>>,
}

impl CalibrationOptions {
    /// Whether there are samples, or their statistics.
    pub fn has_samples(&self) -> bool {
        !self.data.is_empty() || self.saved.is_some()
    }
}

/// Later uses of the samples.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Samples per batch, where the range observer averages over batches.
    pub batch_size: Option<usize>,
    /// Whether samples are loaded again after the pass, ordered by content.
    pub loads_again: bool,
}
