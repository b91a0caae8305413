//! A model ready for placement: loaded, taken through the passes that its target wants, its tensors known.

use crate::emit::Sidecar;
use crate::engine::{Parsed, Shapes, resolve_inputs};
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::onnx::{self, Loaded};
use crate::prepare::{self, default_opset, prepare};
use crate::scheme::Scheme;
use anyhow::{Context, Result};
use std::path::Path;

/// A model ready for placement, and what was done to it.
pub struct Prepared {
    /// The prepared model.
    pub model: ModelProto,
    /// Types and shapes of its tensors.
    pub value_info: ValueInfos,
    /// A line per input whose open dimensions got numbers.
    pub fixed: Vec<String>,
    /// A line per other change.
    pub changes: Vec<String>,
    /// Version of the default operator set, before and after.
    pub opset: [i64; 2],
    /// Whether the file kept tensors in other files.
    pub has_external_data: bool,
    /// The engine's view; why there is none where it cannot run the model.
    pub parsed: Result<Parsed>,
}

/// Loads and prepares a model for a backend.
///
/// # Errors
/// If the file is no float ONNX model, or cannot be brought to the backend's operator set.
pub fn prepare_file(path: &Path, scheme: &Scheme, shapes: &Shapes) -> Result<Prepared> {
    let demands = Demands {
        min_opset: scheme.min_opset,
        static_shapes: scheme.static_shapes,
        multiply_and_add: scheme.multiply_and_add,
    };
    let Loaded { mut model, has_external_data } = onnx::load_whole(path)?;
    let name = || format!("`{}`", path.display());
    let Done { fixed, changes, opset } = demands.meet(&mut model, shapes).with_context(name)?;
    let (value_info, parsed) = known(&model, shapes);
    if demands.static_shapes {
        prepare::fill_in(&mut model, &value_info);
    }
    let parsed = parsed.with_context(name);
    Ok(Prepared { model, value_info, fixed, changes, opset, has_external_data, parsed })
}

/// Prepares a model as it was for a sidecar, and says what was done, a line each.
///
/// # Errors
/// As [`prepare_file`].
pub(super) fn prepare_again(model: &mut ModelProto, sidecar: &Sidecar) -> Result<Vec<String>> {
    let is_set = |key: &str| sidecar.scheme.resolved.get(key) == Some(&true.into());
    let demands = Demands {
        min_opset: sidecar.model.opset[1],
        static_shapes: is_set("static_shapes"),
        multiply_and_add: is_set("multiply_and_add"),
    };
    let inputs = sidecar.calibration.inputs.iter();
    let shapes = inputs.map(|input| (input.name.clone(), input.shape.clone())).collect();
    let Done { mut fixed, changes, .. } = demands.meet(model, &shapes)?;
    if demands.static_shapes {
        let (value_info, _) = known(model, &shapes);
        prepare::fill_in(model, &value_info);
    }
    fixed.extend(changes);
    Ok(fixed)
}

/// What a target wants of a model before anything is placed.
struct Demands {
    min_opset: i64,
    static_shapes: bool,
    multiply_and_add: bool,
}

/// What was done to a model; the fields are those of [`Prepared`].
struct Done {
    fixed: Vec<String>,
    changes: Vec<String>,
    opset: [i64; 2],
}

impl Demands {
    fn meet(&self, model: &mut ModelProto, shapes: &Shapes) -> Result<Done> {
        prepare::check_float(model)?;
        let before = default_opset(model)?;
        let mut fixed = Vec::new();
        if self.static_shapes {
            let inputs = resolve_inputs(model, shapes)?;
            let shapes = inputs.into_iter().map(|input| (input.name, input.shape)).collect();
            fixed = prepare::fix_inputs(model, &shapes)?;
        }
        let mut changes = prepare(model, self.min_opset)?;
        if self.multiply_and_add {
            changes.extend(prepare::multiply_and_add(model)?);
        }
        Ok(Done { fixed, changes, opset: [before, default_opset(model)?] })
    }
}

/// What is known of the tensors, by the engine too where it takes the model.
fn known(model: &ModelProto, shapes: &Shapes) -> (ValueInfos, Result<Parsed>) {
    let mut value_info = ValueInfos::of_model(model);
    let parsed = Parsed::new(model, shapes).and_then(|mut parsed| {
        value_info.extend(&parsed.value_info()?);
        Ok(parsed)
    });
    (value_info, parsed)
}
