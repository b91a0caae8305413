//! A model ready for placement: loaded, taken through the passes that its target wants, its tensors known.

use super::{Change, check_float, default_opset, multiply_and_add, prepare, static_shapes};
use crate::engine::Parsed;
use crate::onnx::inputs::{Shapes, resolve_inputs};
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::onnx::{self, Loaded};
use crate::scheme::Scheme;
use anyhow::{Context, Result};
use std::path::Path;

/// A model ready for placement, and what was done to it.
pub struct PreparedGraph {
    /// The prepared model.
    pub model: ModelProto,
    /// Types and shapes of its tensors.
    pub value_info: ValueInfos,
    /// What was done, in this order.
    pub changes: Vec<Change>,
    /// Version of the default operator set, before and after.
    pub opset: [i64; 2],
    /// Whether the file kept tensors in other files.
    pub has_external_data: bool,
    /// The engine's view; why there is none where it cannot run the model.
    pub parsed: Result<Parsed>,
}

/// What a target wants of a model before anything is placed.
pub struct Demands {
    /// Lowest version of the default operator set that will do.
    pub min_opset: i64,
    /// Whether all dimensions are to be numbers.
    pub static_shapes: bool,
    /// Whether divisions, differences and squares by constants are to be products and sums.
    pub multiply_and_add: bool,
}

impl Demands {
    /// Those of a backend.
    pub fn of(scheme: &Scheme) -> Demands {
        let Scheme { min_opset, static_shapes, multiply_and_add, .. } = *scheme;
        Demands { min_opset, static_shapes, multiply_and_add }
    }
}

/// Loads and prepares a model for a backend.
///
/// # Errors
/// If the file is no float ONNX model, or cannot be brought to the backend's operator set.
pub fn prepare_file(path: &Path, scheme: &Scheme, shapes: &Shapes) -> Result<PreparedGraph> {
    let Loaded { model, has_external_data } = onnx::load_whole(path)?;
    let name = || format!("`{}`", path.display());
    let prepared = PreparedGraph::new(model, &Demands::of(scheme), shapes).with_context(name)?;
    let parsed = prepared.parsed.with_context(name);
    Ok(PreparedGraph { has_external_data, parsed, ..prepared })
}

impl PreparedGraph {
    /// A line per input whose open dimensions got numbers.
    pub fn fixed_shapes(&self) -> Vec<String> {
        let is_shape = |change: &&Change| matches!(change, Change::FixedShape { .. });
        self.changes.iter().filter(is_shape).map(Change::to_string).collect()
    }

    /// Prepares a model that was loaded whole, with these `shapes` of inputs that it leaves open.
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
