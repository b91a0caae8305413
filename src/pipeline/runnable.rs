//! Models of any tool in the engine.

use crate::engine::Parsed;
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::prepare::{prepare, spell_out};
use anyhow::Result;

/// The model in the engine; upgraded to operator set `opset`, as calibration does, where the engine does not know an
/// older operator.
pub(super) fn parsed(model: &ModelProto, opset: i64, shapes: &Shapes) -> Result<Parsed> {
    let mut spelled = model.clone();
    spell_out(spelled.graph_mut()?);
    Parsed::new(&spelled, shapes).or_else(|error| match prepare(&mut spelled, opset) {
        Ok(changes) if !changes.is_empty() => Parsed::new(&spelled, shapes),
        _ => Err(error),
    })
}
