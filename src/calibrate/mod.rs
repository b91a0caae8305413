//! The parallel pass over the calibration data.
//!
//! In: a prepared model as the engine takes it, its placement, and [`CalibrationOptions`] with the data. Out:
//! [`CalibrationStatistics`], one [`TensorStatistics`](crate::statistics::TensorStatistics) per observed tensor, and
//! the [`SampleSet`], from which later stages load samples again. [`collect()`] returns [`SavedStatistics`] instead, for
//! a file that replaces the data in later runs. The pass chooses no range and does not change the model. The result
//! depends neither on the number of threads (the caller's thread pool sets it) nor on the order of the files.

mod channels;
mod collect;
mod observe;
mod samples;
mod statistics;

pub use channels::channel_extremes;
pub use collect::{NotSavable, ObservedModel, WantedTensors, collect};
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
    /// Maximum number of samples; `None` for all.
    pub limit: Option<usize>,
    /// Number of samples to keep of the first `limit`, spread over the data; `None` for all.
    pub spread: Option<usize>,
    /// Whether unreadable samples are skipped.
    pub skip_bad_data: bool,
    /// Whether the float network is checked with other pixel values.
    pub checks_preprocessing: bool,
    /// Statistics of the data: read from a file that replaces the data, or collected for a file.
    pub saved: Option<Arc<SavedStatistics>>,
}

impl CalibrationOptions {
    /// Returns whether there are samples, or their statistics.
    pub fn has_samples(&self) -> bool {
        !self.data.is_empty() || self.saved.is_some()
    }
}

/// Later uses of the samples.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Samples per batch if the range observer averages over batches; else `None`.
    pub batch_size: Option<usize>,
    /// Whether later stages load samples again, in the content order.
    pub loads_again: bool,
}
