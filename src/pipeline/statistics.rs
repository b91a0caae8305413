//! What is known of the activations before their parameters are chosen: from the data, or from a file.

use super::samples::SampleSet;
use super::{Request, observe};
use crate::data::Dataset;
use crate::diag::{WithHint, hint_of};
use crate::engine::Parsed;
use crate::onnx::inputs::{InputSpec, resolve_inputs};
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::progress::Progress;
use crate::quant::ChannelScaling;
use crate::sidecar::InputRecord;
use crate::statistics::TensorStatistics;
use anyhow::{Result, anyhow};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Statistics and where they are from.
pub(super) struct CalibrationStatistics {
    /// One per activation quantizer; empty for those whose range was given.
    pub statistics: Vec<TensorStatistics>,
    /// Those of the placement whose channels are to change, with the changes.
    pub scaled: BTreeMap<usize, TensorStatistics>,
    /// Samples observed.
    pub n_samples: usize,
    /// Samples left out, with the reason.
    pub skipped: Vec<String>,
    /// How images became inputs.
    pub preprocessing: Option<String>,
    /// Inputs with their shapes.
    pub inputs: Vec<InputRecord>,
    /// What was run; `None` where nothing was.
    pub run: Option<Run>,
}

/// The data that was run.
pub(super) struct Run {
    /// The samples.
    pub samples: Arc<SampleSet>,
    /// The inputs that they are for.
    pub inputs: Vec<InputSpec>,
}

impl CalibrationStatistics {
    /// One per activation quantizer, of the model with the changed channels.
    pub fn scaled_statistics(&self) -> Vec<&TensorStatistics> {
        let changed = |(quantizer, statistic)| self.scaled.get(&quantizer).unwrap_or(statistic);
        self.statistics.iter().enumerate().map(changed).collect()
    }

    /// The model with the changed channels takes the place of the other.
    pub fn take_scaled(&mut self) {
        for (quantizer, statistic) in std::mem::take(&mut self.scaled) {
            self.statistics[quantizer] = statistic;
        }
    }
}

/// The data for the placement that `request.ranges` says nothing of; `None` where there are none, and nothing is to be run.
///
/// # Errors
/// If a quantizer has neither data nor a range, or the engine does not take the model.
pub(super) fn open(
    parsed: &Result<Parsed>,
    placement: &Placement,
    request: &Request,
) -> Result<Option<Arc<SampleSet>>> {
    if let (Some(ranges), true) = (&request.ranges, request.data.is_empty()) {
        ranges
            .ensure_all(placement.activations.iter().map(|quantizer| quantizer.tensor.as_str()))?;
    }
    if request.ranges.is_some() && unknown(placement, request).is_empty() {
        return Ok(None);
    }
    let parsed =
        parsed.as_ref().map_err(|error| anyhow!("{}", error.root_cause()).hint(hint_of(error)))?;
    let Request { data, preprocessing, limit, effort, .. } = request;
    let dataset = Dataset::open(data, parsed.inputs(), preprocessing, *limit)?;
    let looks_again = effort.looks_again() || request.activation_observer.0.batch_size.is_some();
    let dataset = if looks_again { dataset.keeping_images() } else { dataset };
    Ok(Some(Arc::new(SampleSet::new(dataset))))
}

/// The placement without a range from a file.
fn unknown(placement: &Placement, request: &Request) -> Vec<usize> {
    let given = |tensor: &str| {
        request.ranges.as_ref().is_some_and(|ranges| ranges.ranges.contains_key(tensor))
    };
    let placement = placement.activations.iter().enumerate();
    placement
        .filter(|(_, quantizer)| !given(&quantizer.tensor))
        .map(|(quantizer_idx, _)| quantizer_idx)
        .collect()
}

/// Runs the data, where there is some, for the placement without a range from a file, and in other units as well where
/// there are some for them.
///
/// # Errors
/// If the data cannot be read or run.
pub(super) fn gather(
    model: &ModelProto,
    parsed: Result<Parsed>,
    placement: &Placement,
    request: &Request,
    (samples, units): (Option<Arc<SampleSet>>, &BTreeMap<String, ChannelScaling>),
    progress: &Progress,
) -> Result<CalibrationStatistics> {
    let mut statistics = vec![TensorStatistics::default(); placement.activations.len()];
    let Some(samples) = samples else {
        let inputs = resolve_inputs(model, &request.shapes)?;
        let inputs = inputs.into_iter().map(|i| InputRecord { name: i.name, shape: i.shape });
        return Ok(CalibrationStatistics {
            statistics,
            scaled: BTreeMap::new(),
            n_samples: 0,
            skipped: Vec::new(),
            preprocessing: None,
            inputs: inputs.collect(),
            run: None,
        });
    };
    let unknown = unknown(placement, request);
    let watched: Vec<String> =
        unknown.iter().map(|&quantizer| placement.activations[quantizer].tensor.clone()).collect();
    let engine = parsed?.build(&watched)?;
    let units: Vec<Option<&ChannelScaling>> =
        watched.iter().map(|tensor| units.get(tensor)).collect();
    let observed = observe::observe(&engine, &units, &samples, request, progress)?;
    for (quantizer, statistic) in unknown.iter().zip(observed.statistics) {
        statistics[*quantizer] = statistic;
    }
    let scaled = unknown.iter().zip(observed.scaled);
    let scaled = scaled.filter_map(|(quantizer, statistic)| Some((*quantizer, statistic?)));
    let inputs = engine.inputs().iter();
    let inputs = inputs.map(|i| InputRecord { name: i.name.clone(), shape: i.shape.clone() });
    Ok(CalibrationStatistics {
        statistics,
        scaled: scaled.collect(),
        n_samples: observed.n_samples,
        skipped: observed.skipped,
        preprocessing: samples.dataset.describe(),
        inputs: inputs.collect(),
        run: Some(Run { inputs: engine.inputs().to_vec(), samples }),
    })
}

/// Runs the data again for tensors that were not observed: a statistic for each.
///
/// # Errors
/// If the data cannot be read or run.
pub(super) fn observe_more(
    model: &ModelProto,
    run: &Run,
    tensors: &[String],
    request: &Request,
    progress: &Progress,
) -> Result<Vec<TensorStatistics>> {
    let engine = Parsed::new(model, &request.shapes)?.build(tensors)?;
    let watched = vec![None; tensors.len()];
    Ok(observe::observe(&engine, &watched, &run.samples, request, progress)?.statistics)
}
