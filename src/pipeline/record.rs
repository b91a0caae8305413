//! The sidecar from the outcome of a run.

use super::{Improved, Request};
use crate::calibrate::{CalibrationStatistics, SampleSet};
use crate::diag::file_name;
use crate::observers::AUTO;
use crate::onnx::inputs::resolve_inputs;
use crate::onnx::proto::ModelProto;
use crate::onnx::sha256;
use crate::plan::PlannedActivation;
use crate::prepare::{Change, PreparedGraph};
use crate::quant::Range;
use crate::sidecar::{
    CalibrationRecord, HistogramRecord, InputRecord, ModelRecord, Producer, RangesFrom, Record, SCHEMA_VERSION,
    SchemeRecord, Sidecar, TuningRecord,
};
use crate::statistics::TensorStatistics;
use crate::tune::{PlannedModel, Setup, Tuned};
use anyhow::Result;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the record of the float model.
pub fn about_model(path: &Path, prepared: &PreparedGraph) -> Result<ModelRecord> {
    let file = file_name(path);
    let done = prepared.changes.iter().map(Change::to_string).collect();
    Ok(ModelRecord { file, sha256: sha256(path)?, opset: prepared.opset, prepared: done })
}

/// Returns the sidecar of a run, before the graph is rewritten.
pub fn sidecar(
    about_model: ModelRecord,
    setup: Setup,
    request: &Request,
    planned: &PlannedModel,
    calibration: &CalibrationStatistics,
    improved: &Improved,
) -> Result<Sidecar> {
    let PlannedModel { model, placement, plan, .. } = planned;
    let statistics = calibration.for_quantizers(placement);
    // At effort 0, the ranges of other observers would take as long as running some samples.
    let with_ranges = setup.options.looks_again();
    let activations = plan.activations.par_iter().zip(statistics);
    let histograms = activations.map(|(planned, found)| histogram(planned, found, with_ranges)).collect();
    let graph = Record { graph: model.graph()?, value_info: setup.value_info, placement, plan };
    Ok(Sidecar {
        schema_version: SCHEMA_VERSION.to_string(),
        producer: Producer { name: "mqq".into(), version: env!("CARGO_PKG_VERSION").into() },
        model: about_model,
        quantized: None,
        scheme: SchemeRecord {
            backend: request.scheme.name.clone(),
            source: request.scheme.source.clone(),
            resolved: serde_json::to_value(&request.scheme).unwrap_or_default(),
        },
        calibration: about_data(setup, request, calibration, model, improved)?,
        methods: improved.methods.clone(),
        task: improved.task.clone(),
        outputs: improved.outputs.clone(),
        edits: planned.edits.clone(),
        equalization: None,
        mixed_precision: improved.mixed_precision.clone(),
        tuning: improved.tuning.as_ref().map(tuning),
        tensor_errors: improved.tensor_errors.clone(),
        sensitivity: improved.sensitivity.clone(),
        activation_encodings: graph.activations(histograms),
        param_encodings: graph.params()?,
        float_nodes: graph.float_nodes(),
        graph: graph.graph(),
        warnings: planned.warnings.clone(),
    })
}

fn tuning(tuned: &Tuned) -> TuningRecord {
    TuningRecord {
        n_samples: tuned.n_samples,
        judged: Some(tuned.judged.clone()),
        n_weights: tuned.n_weights,
        n_rounded: tuned.n_rounded,
        n_ranges: tuned.n_ranges,
        biases: Vec::new(),
    }
}

/// Returns the distribution of a tensor's values, with the ranges of all observers that choose by it.
fn histogram(planned: &PlannedActivation, statistics: &TensorStatistics, with_ranges: bool) -> Option<HistogramRecord> {
    let shares = statistics.shares()?;
    let mut ranges = BTreeMap::new();
    for observer in AUTO.choices.iter().filter(|_| with_ranges) {
        // Some observers do not know NNIE's codes.
        if let Ok(Range { min, max }) = observer.find(statistics, &planned.qtype.grid()) {
            ranges.insert(observer.spelled(), [min, max]);
        }
    }
    Some(HistogramRecord { shares, ranges })
}

/// Returns the record of the data and the observers.
fn about_data(
    setup: Setup,
    request: &Request,
    calibration: &CalibrationStatistics,
    model: &ModelProto,
    improved: &Improved,
) -> Result<CalibrationRecord> {
    let inputs = match setup.samples {
        Some(samples) => samples.inputs.clone(),
        // Nothing is run, so shapes may stay open.
        None if !request.has_ranges() => resolve_inputs(model, setup.shapes).unwrap_or_default(),
        None => resolve_inputs(model, setup.shapes)?,
    };
    let shapes = setup.samples.and_then(SampleSet::input_shapes).unwrap_or_default();
    let inputs = inputs.into_iter().enumerate().map(|(position, input)| {
        let several = shapes.get(position).filter(|shapes| shapes.n_shapes > 1).cloned();
        InputRecord { name: input.name, shape: input.shape, shapes: several }
    });
    Ok(CalibrationRecord {
        n_samples: calibration.n_samples,
        n_skipped: calibration.skipped.len(),
        activation_observer: improved.observer.unwrap_or(&setup.observers.activation.spelling).to_string(),
        weight_observer: setup.observers.weight.spelling.clone(),
        ranges_from: request
            .ranges
            .as_ref()
            .map(|imported| RangesFrom { file: imported.file.clone(), format: imported.format.to_string() }),
        preprocessing: setup.samples.and_then(SampleSet::preprocessing),
        preprocessing_options: setup.samples.and_then(SampleSet::preprocessing_options),
        inputs: inputs.collect(),
    })
}
