//! The float model that a sidecar was made for, changed as its run changed it.

use crate::diag::WithHint;
use crate::equalize::{find, with_inserted};
use crate::onnx::edit::{ModelEdit, apply};
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::onnx::value_info::ValueInfos;
use crate::onnx::{Loaded, load_whole, sha256};
use crate::prepare::{Change, Demands, PreparedGraph};
use crate::sidecar::{EqualizationRecord, Sidecar};
use anyhow::{Context, Result, anyhow, ensure};
use std::path::Path;

/// The float model at `path` as the run that wrote `sidecar` quantized it: prepared, with its channel scales, corrected
/// biases and learned weights.
///
/// # Errors
/// If it is another model, or this version of the program changes it in another way; the message begins with the path.
pub fn float_model(sidecar: &Sidecar, path: &Path) -> Result<ModelProto> {
    replay(sidecar, path).with_context(|| format!("`{}`", path.display()))
}

fn replay(sidecar: &Sidecar, path: &Path) -> Result<ModelProto> {
    let found = sha256(path)?;
    ensure!(
        found == sidecar.model.sha256,
        "is not the float model of the sidecar, which was `{}`: SHA-256 is {found}, expected {}",
        sidecar.model.file,
        sidecar.model.sha256
    );
    let Loaded { model, .. } = load_whole(path)?;
    let shapes = sidecar.calibration.inputs.iter();
    let shapes = shapes.map(|input| (input.name.clone(), input.shape.clone())).collect();
    let PreparedGraph { mut model, mut value_info, changes, .. } =
        PreparedGraph::new(model, &demands_of(sidecar), &shapes)?;
    let before = sidecar.model.prepared.iter().map(|change| Change::parse(change));
    ensure!(
        changes.into_iter().map(Some).eq(before),
        anyhow!("was prepared in another way by the version that wrote the sidecar").hint(AGAIN)
    );
    let graph = model.graph.as_mut().context("model has no graph")?;
    let mut edits = match &sidecar.equalization {
        Some(equalization) => {
            apply(graph, &[ModelEdit::Insert(equalization.inserted.clone())])?;
            value_info = with_inserted(&value_info, &equalization.inserted);
            channel_scales(equalization, graph, &value_info)?
        }
        None => Vec::new(),
    };
    edits.extend(sidecar.new_biases());
    apply(graph, &edits)?;
    let learned = sidecar.learned_weights(graph)?;
    apply(graph, &learned)?;
    Ok(model)
}

const AGAIN: &str = "calibrate again with this version of mqq";

/// What the target of a sidecar wanted of the float model.
fn demands_of(sidecar: &Sidecar) -> Demands {
    let is_set = |key: &str| sidecar.scheme.resolved.get(key) == Some(&true.into());
    Demands {
        min_opset: sidecar.model.opset[1],
        static_shapes: is_set("static_shapes"),
        multiply_and_add: is_set("multiply_and_add"),
    }
}

/// The changes of the scaled channels.
///
/// # Errors
/// If the graph has no such channels.
fn channel_scales(
    equalization: &EqualizationRecord,
    graph: &GraphProto,
    value_info: &ValueInfos,
) -> Result<Vec<ModelEdit>> {
    ensure!(
        equalization.offsets.is_empty(),
        anyhow!("this version of mqq moves no channels into biases, which the sidecar does").hint(AGAIN)
    );
    if equalization.spaces.is_empty() {
        return Ok(Vec::new());
    }
    let (groups, _) = find(graph, value_info);
    let mut edits = Vec::new();
    for scaled in &equalization.spaces {
        let group = groups.iter().find(|group| group.tensor == scaled.tensor);
        let group = group.ok_or_else(|| {
            anyhow!("this version of mqq does not equalize the tensor `{}`, which the sidecar does", scaled.tensor)
                .hint(AGAIN)
        })?;
        edits.extend(group.edits(&scaled.scales)?);
    }
    Ok(edits)
}
