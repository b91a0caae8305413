//! Loads models of any tool into the engine.

use crate::engine::Parsed;
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::prepare::prepare;
use anyhow::Result;

/// Loads a model into the engine. Where the engine does not know an older operator, the model is first upgraded to
/// operator set `opset`, as in calibration.
pub(super) fn parsed(model: &ModelProto, opset: i64, shapes: &Shapes) -> Result<Parsed> {
    Parsed::new(model, shapes).or_else(|error| {
        let mut prepared = model.clone();
        match prepare(&mut prepared, opset) {
            Ok(changes) if !changes.is_empty() => Parsed::new(&prepared, shapes),
            _ => Err(error),
        }
    })
}
