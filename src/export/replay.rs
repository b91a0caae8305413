//! Repeats the changes that a run made to its float model.

use crate::diag::WithHint;
use crate::onnx::edit::{ModelEdit, apply};
use crate::onnx::proto::ModelProto;
use crate::onnx::{Loaded, load_whole, sha256};
use crate::prepare::{Change, Demands, PreparedGraph};
use crate::sidecar::Sidecar;
use anyhow::{Context, Result, anyhow, ensure};
use std::path::Path;

/// Returns the float model at `path` as the run of `sidecar` quantized it: prepared, with channel scales, corrected
/// biases and learned weights.
///
/// # Errors
/// If the file is another model, or this version of the program prepares the model differently; the message begins with
/// the path.
pub fn float_model(sidecar: &Sidecar, path: &Path) -> Result<ModelProto> {
    let replay = || -> Result<ModelProto> {
        let mut model = prepared(sidecar, path)?;
        let graph = model.graph_mut()?;
        apply(graph, &sidecar.model_edits()?)?;
        let learned = sidecar.learned_weights(graph)?;
        apply(graph, &learned)?;
        Ok(model)
    };
    replay().with_context(|| format!("`{}`", path.display()))
}

/// Returns the float model at `path` prepared and with the channel scales of the run of `sidecar`, but with its own
/// weights and biases otherwise: its tensors are those that the run quantized, its outputs those of the file.
///
/// # Errors
/// As [`float_model`].
pub fn scaled_float_model(sidecar: &Sidecar, path: &Path) -> Result<ModelProto> {
    let mut model = prepared(sidecar, path)?;
    let mut edits = sidecar.model_edits()?;
    edits.retain(|edit| !matches!(edit, ModelEdit::ReplaceBias(_)));
    apply(model.graph_mut()?, &edits)?;
    Ok(model)
}

/// Returns the float model as the run prepared it.
fn prepared(sidecar: &Sidecar, path: &Path) -> Result<ModelProto> {
    let found = sha256(path)?;
    ensure!(
        found == sidecar.model.sha256,
        "is not the float model of the sidecar (`{}`): SHA-256 is {found}, expected {}",
        sidecar.model.file,
        sidecar.model.sha256
    );
    let Loaded { model, .. } = load_whole(path)?;
    let shapes = sidecar.calibration.inputs.iter();
    let shapes = shapes.map(|input| (input.name.clone(), input.shape.clone())).collect();
    let PreparedGraph { model, changes, .. } = PreparedGraph::new(model, &demands_of(sidecar), &shapes)?;
    let before = sidecar.model.prepared.iter().map(|change| Change::parse(change));
    ensure!(
        changes.into_iter().map(Some).eq(before),
        anyhow!("the version of mqq that wrote the sidecar prepared this model differently").hint(AGAIN)
    );
    Ok(model)
}

const AGAIN: &str = "calibrate again with this version of mqq";

/// Returns the demands that the sidecar's run had on the float model.
fn demands_of(sidecar: &Sidecar) -> Demands {
    let is_set = |key: &str| sidecar.scheme.resolved.get(key) == Some(&true.into());
    let changes = sidecar.model.prepared.iter().filter_map(|change| Change::parse(change));
    let cut =
        changes.into_iter().find_map(|change| if let Change::Cut(outputs) = change { Some(outputs) } else { None });
    Demands {
        outputs: cut.unwrap_or_default(),
        min_opset: sidecar.model.opset[1],
        static_shapes: is_set("static_shapes"),
        fuse_operators: is_set("fuse_operators"),
        multiply_and_add: is_set("multiply_and_add"),
    }
}
