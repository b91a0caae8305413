//! The parallel pass over the calibration data.
//!
//! In: a prepared model as the engine takes it, where it is quantized, and [`CalibrationOptions`] with the data. Out:
//! [`CalibrationStatistics`], one [`TensorStatistics`](crate::statistics::TensorStatistics) per observed tensor, and the
//! [`SampleSet`], from which others load samples again. It chooses no range and does not change the model.
//! Nothing depends on the number of threads, which is that of the caller's thread pool, nor on the order of the files.

mod observe;
mod samples;
mod statistics;

pub use samples::{Order, SampleSet, each_sample};
pub use statistics::{CalibrationStatistics, ScaledTensor, observed_tensors};

use crate::data::Preprocessing;

/// Which data are observed, and how.
pub struct CalibrationOptions {
    /// Calibration data, as `--data` gives it.
    pub data: Vec<String>,
    /// How images become inputs.
    pub preprocessing: Preprocessing,
    /// At most so many samples.
    pub limit: Option<usize>,
    /// Leave samples out that cannot be read.
    pub skip_bad_data: bool,
}

/// What the samples are for.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Samples per batch, where the range observer averages over batches.
    pub batch_size: Option<usize>,
    /// Whether samples are loaded again after the pass, in an order of their contents.
    pub loads_again: bool,
}
