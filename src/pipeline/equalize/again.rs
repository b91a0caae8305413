//! The channels of a prepared model, scaled as a sidecar says.

use crate::diag::WithHint;
use crate::engine::Parsed;
use crate::equalize::{find, scale};
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::sidecar::{ChannelScalesRecord, EqualizationRecord, InputRecord};
use anyhow::{Context, Result, anyhow};

/// Scales the channels of a prepared model as a sidecar says.
///
/// # Errors
/// If the model has no such channels.
pub(in crate::pipeline) fn again(
    model: &mut ModelProto,
    equalization: &EqualizationRecord,
    inputs: &[InputRecord],
) -> Result<()> {
    let EqualizationRecord { spaces: scaled, offsets, .. } = equalization;
    if !offsets.is_empty() {
        return Err(anyhow!(
            "this version of mqq moves no channels into biases, which the sidecar does"
        )
        .hint("calibrate again with this version of mqq"));
    }
    if scaled.is_empty() {
        return Ok(());
    }
    let shapes: Shapes = inputs.iter().map(|i| (i.name.clone(), i.shape.clone())).collect();
    let mut value_info = ValueInfos::of_model(model);
    value_info.extend(&Parsed::new(model, &shapes)?.value_info()?);
    let graph = model.graph.as_mut().context("model has no graph")?;
    let (spaces, _) = find(graph, &value_info);
    let other = |tensor: &str| {
        anyhow!(
            "this version of mqq does not equalize the tensor `{tensor}`, which the sidecar does"
        )
        .hint("calibrate again with this version of mqq")
    };
    for ChannelScalesRecord { tensor, factors, .. } in scaled {
        let space = spaces.iter().find(|space| space.tensor == *tensor);
        let space = space.ok_or_else(|| other(tensor))?;
        scale(graph, space, factors)?;
    }
    Ok(())
}
