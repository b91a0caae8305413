//! A model ready for placement: loaded, prepared for its target, with types and shapes of its tensors.

use super::{Change, check_float, default_opset, multiply_and_add, prepare, static_shapes};
use crate::engine::Parsed;
use crate::onnx::inputs::{Shapes, resolve_inputs};
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::onnx::{self, Loaded};
use crate::scheme::Scheme;
use anyhow::{Context, Result};
use std::path::Path;

/// A model ready for placement, with the changes that were made.
pub struct PreparedGraph {
    /// The prepared model.
    pub model: ModelProto,
    /// Types and shapes of its tensors.
    pub value_info: ValueInfos,
    /// The changes that were made, in order.
    pub changes: Vec<Change>,
    /// Version of the default operator set, before and after.
    pub opset: [i64; 2],
    /// Whether the file had external data.
    pub has_external_data: bool,
    /// The model in the engine; an error where the engine cannot run it.
    pub parsed: Result<Parsed>,
}

/// Demands of a target on a model before placement.
pub struct Demands {
    /// Minimum version of the default operator set.
    pub min_opset: i64,
    /// Whether all dimensions must be fixed.
    pub static_shapes: bool,
    /// Whether divisions, differences and squares with constants must become products and sums.
    pub multiply_and_add: bool,
}

impl Demands {
    /// The demands of a backend.
    pub fn of(scheme: &Scheme) -> Demands {
        let Scheme { min_opset, static_shapes, multiply_and_add, .. } = *scheme;
        Demands { min_opset, static_shapes, multiply_and_add }
    }
}

/// Loads and prepares a model for a backend.
///
/// # Errors
/// If the file is not a float ONNX model, or cannot be upgraded to the backend's operator set.
pub fn prepare_file(path: &Path, scheme: &Scheme, shapes: &Shapes) -> Result<PreparedGraph> {
    let Loaded { model, has_external_data } = onnx::load_whole(path)?;
    let name = || format!("`{}`", path.display());
    let prepared = PreparedGraph::new(model, &Demands::of(scheme), shapes).with_context(name)?;
    let parsed = prepared.parsed.with_context(name);
    Ok(PreparedGraph { has_external_data, parsed, ..prepared })
}

impl PreparedGraph {
    /// One line per input with fixed dimensions in place of open ones.
    pub fn fixed_shapes(&self) -> Vec<String> {
        let is_shape = |change: &&Change| matches!(change, Change::FixedShape { .. });
        self.changes.iter().filter(is_shape).map(Change::to_string).collect()
    }

    /// Prepares a loaded model; `shapes` fixes inputs with open dimensions.
    ///
    /// # Errors
    /// As [`prepare_file`].
    pub fn new(mut model: ModelProto, demands: &Demands, shapes: &Shapes) -> Result<PreparedGraph> {
        check_float(&model)?;
        let before = default_opset(&model)?;
        let mut changes = Vec::new();
        if demands.static_shapes {
            let inputs = resolve_inputs(&model, shapes)?;
            let shapes = inputs.into_iter().map(|input| (input.name, input.shape)).collect();
            changes = static_shapes::fix_inputs(&mut model, &shapes)?;
        }
        changes.extend(prepare(&mut model, demands.min_opset)?);
        if demands.multiply_and_add {
            changes.extend(multiply_and_add(&mut model)?);
        }
        let opset = [before, default_opset(&model)?];
        let mut value_info = ValueInfos::of_model(&model);
        let parsed = Parsed::new(&model, shapes).and_then(|mut parsed| {
            value_info.extend(&parsed.value_info()?);
            Ok(parsed)
        });
        if demands.static_shapes {
            static_shapes::fill_in(&mut model, &value_info);
        }
        Ok(PreparedGraph { model, value_info, changes, opset, has_external_data: false, parsed })
    }
}
