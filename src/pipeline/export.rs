//! Formats of other tools from a sidecar.

use super::{equalize, known, sha256_of};
use crate::decide::QuantPlan;
use crate::emit::{BiasFacts, Emitter, Sidecar, Source};
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, Loaded, tensor};
use crate::prepare::{self, prepare};
use crate::tune::{NewBias, Tuned, replace_biases};
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// The bytes of a format.
///
/// # Errors
/// If the format cannot express the plan; the message names the format and the tensor.
pub fn emit(
    emitter: &dyn Emitter,
    sidecar: &Sidecar,
    prepared: Option<&ModelProto>,
) -> Result<Vec<u8>> {
    let source = Source::new(sidecar, prepared);
    let bytes = source.ensure_held_by(emitter).and_then(|()| emitter.emit(&source));
    bytes.with_context(|| format!("format `{}`", emitter.name()))
}

/// The float model that `sidecar` was made for, prepared as it was then.
///
/// # Errors
/// If it is another model, or this version of the program prepares it in another way.
pub fn prepared_for(sidecar: &Sidecar, path: &Path) -> Result<ModelProto> {
    let load = || -> Result<ModelProto> {
        let found = sha256_of(path)?;
        ensure!(
            found == sidecar.model.sha256,
            "is not the float model of the sidecar, which was `{}`: SHA-256 is {found}, expected {}",
            sidecar.model.file,
            sidecar.model.sha256
        );
        let Loaded { mut model, .. } = onnx::load_whole(path)?;
        prepare::check_float(&model)?;
        let is_static = sidecar.scheme.resolved.get("static_shapes") == Some(&true.into());
        let inputs = sidecar.calibration.inputs.iter();
        let shapes = inputs.map(|input| (input.name.clone(), input.shape.clone())).collect();
        let mut changes =
            if is_static { prepare::fix_inputs(&mut model, &shapes)? } else { Vec::new() };
        changes.extend(prepare(&mut model, sidecar.model.opset[1])?);
        ensure!(
            changes == sidecar.model.prepared,
            "was prepared in another way by the version that wrote the sidecar\nhint: calibrate again with this version of mqq"
        );
        if is_static {
            let (facts, _) = known(&model, &shapes);
            prepare::fill_in(&mut model, &facts);
        }
        if let Some(equalization) = &sidecar.equalization {
            equalize::again(&mut model, equalization, &sidecar.calibration.inputs)?;
        }
        if let Some(tuning) = &sidecar.tuning {
            ensure!(
                tuning.n_rounded == 0,
                "the sidecar does not hold the {} weights whose rounding was learned\nhint: ask for the format with `mqq calibrate --emit`",
                tuning.n_rounded
            );
            let bias = |bias: &BiasFacts| NewBias {
                node_idx: bias.node,
                input_idx: bias.input,
                name: bias.name.clone(),
                values: bias.values.clone(),
            };
            let biases: Vec<NewBias> = tuning.biases.iter().map(bias).collect();
            replace_biases(&mut model, &biases)?;
        }
        Ok(model)
    };
    load().with_context(|| format!("`{}`", path.display()))
}

/// The float model as `plan` quantizes it: with the biases that tuning gave it, and with weights that lie
/// on their grids where their rounding was learned, so that rounding them again gives the plan's integers.
pub(super) fn tuned_float(
    model: &ModelProto,
    plan: &QuantPlan,
    tuned: Option<&Tuned>,
) -> Result<ModelProto> {
    let mut float = model.clone();
    if tuned.is_none_or(|tuned| tuned.n_rounded == 0) {
        return Ok(float);
    }
    let graph = float.graph.as_mut().context("model has no graph")?;
    for weight in &plan.weights {
        let index = GraphIndex::new(graph);
        let name = &weight.site.tensor;
        // Its other readers take it as it is.
        if index.consumers(name).len() != weight.site.edges.len() || index.is_output(name) {
            continue;
        }
        let rounded = tensor::from_f32(name, &weight.shape, &weight.dequantized())?;
        let stored = graph.initializer.iter_mut().filter(|tensor| tensor.name() == name);
        stored.for_each(|tensor| *tensor = rounded.clone());
    }
    Ok(float)
}
