//! What the sidecar says of the model and the data.

use super::Request;
use crate::calibrate::CalibrationStatistics;
use crate::onnx::inputs::resolve_inputs;
use crate::onnx::proto::ModelProto;
use crate::onnx::sha256;
use crate::prepare::{Change, PreparedGraph};
use crate::sidecar::{CalibrationRecord, InputRecord, ModelRecord, RangesFrom};
use crate::tune::Setup;
use anyhow::Result;
use std::path::Path;

/// Of the float model.
pub fn model(path: &Path, prepared: &PreparedGraph) -> Result<ModelRecord> {
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let done = prepared.changes.iter().map(Change::to_string).collect();
    Ok(ModelRecord { file, sha256: sha256(path)?, opset: prepared.opset, prepared: done })
}

/// Of the data and the observers that were asked for.
pub fn calibration(
    setup: Setup,
    request: &Request,
    calibration: &CalibrationStatistics,
    model: &ModelProto,
) -> Result<CalibrationRecord> {
    let inputs = match setup.samples {
        Some(samples) => samples.inputs.clone(),
        None => resolve_inputs(model, setup.shapes)?,
    };
    let inputs = inputs.into_iter().map(|i| InputRecord { name: i.name, shape: i.shape });
    Ok(CalibrationRecord {
        n_samples: calibration.n_samples,
        n_skipped: calibration.skipped.len(),
        activation_observer: setup.observers.activation.spelling.clone(),
        tried_observers: Vec::new(),
        weight_observer: setup.observers.weight.spelling.clone(),
        ranges_from: request.ranges.as_ref().map(|imported| RangesFrom {
            file: imported.file.clone(),
            format: imported.format.to_string(),
        }),
        preprocessing: setup.samples.and_then(|samples| samples.dataset.describe()),
        inputs: inputs.collect(),
    })
}
