//! Makes a model ready for placement: loads it, prepares it for its target, and finds types and shapes of its tensors.

use super::fold_shapes::fold_shapes;
use super::fuse_operators::{fuse_operators, opset_of_fused};
use super::reshape_gathers::reshape_gathers;
use super::{Change, check_float, default_opset, multiply_and_add, prepare, static_shapes};
use crate::engine::Parsed;
use crate::onnx::cut::{Cut, cut};
use crate::onnx::inputs::{Shapes, resolve_inputs};
use crate::onnx::proto::{Dimension, ModelProto, TensorShapeProto, TensorType, ValueInfoProto};
use crate::onnx::value_info::ValueInfos;
use crate::onnx::{self, Loaded};
use crate::scheme::Scheme;
use anyhow::{Context, Result};
use std::path::Path;

/// A model ready for placement, with the changes that preparation made.
pub struct PreparedGraph {
    /// The prepared model.
    pub model: ModelProto,
    /// Types and shapes of the model's tensors.
    pub value_info: ValueInfos,
    /// The changes that were made, in order.
    pub changes: Vec<Change>,
    /// Version of the default operator set, before and after preparation.
    pub opset: [i64; 2],
    /// Whether the file had external data.
    pub has_external_data: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// The part of the float model behind the tensors at which it was cut; `None` if it was not cut.
    pub tail: Option<ModelProto>,
    /// The model as the engine has parsed it, or the error of the engine.
    pub parsed: Result<Parsed>,
}

/// The demands of a target on a model before placement.
#[derive(PartialEq)]
pub struct Demands {
    /// Tensors at which the model is cut; empty for the whole model.
    pub outputs: Vec<String>,
    /// Minimum version of the default operator set.
    pub min_opset: i64,
    /// Whether all dimensions must be fixed.
    pub static_shapes: bool,
    /// Whether operators that spell out a GELU or an L2 normalization must become one.
    pub fuse_operators: bool,
    /// Whether divisions, differences and squares with constants must become products and sums.
    pub multiply_and_add: bool,
}

impl Demands {
    /// Returns the demands of a backend, for a model that is cut at the tensors `outputs`.
    pub fn of(scheme: &Scheme, outputs: &[String]) -> Demands {
        let Scheme { min_opset, static_shapes, fuse_operators, multiply_and_add, .. } = *scheme;
        Demands { outputs: outputs.to_vec(), min_opset, static_shapes, fuse_operators, multiply_and_add }
    }
}

/// Loads a float model and checks that it is valid.
///
/// # Errors
/// If the file is not a float ONNX model; the message begins with the path.
pub fn load_float(path: &Path) -> Result<Loaded> {
    let loaded = onnx::load_whole(path)?;
    let is_valid = || -> Result<()> {
        check_float(&loaded.model)?;
        default_opset(&loaded.model)?;
        onnx::check_valid(&loaded.model)
    };
    is_valid().with_context(|| format!("`{}`", path.display()))?;
    Ok(loaded)
}

/// Loads a model, cuts it at the tensors `outputs` if there are any, and prepares it for a backend.
///
/// # Errors
/// If the file is not a float ONNX model, or cannot be upgraded to the backend's operator set.
pub fn prepare_file(path: &Path, scheme: &Scheme, outputs: &[String], shapes: &Shapes) -> Result<PreparedGraph> {
    let Loaded { model, has_external_data } = load_float(path)?;
    let name = || format!("`{}`", path.display());
    let prepared = PreparedGraph::new(model, &Demands::of(scheme, outputs), shapes).with_context(name)?;
    let parsed = prepared.parsed.with_context(name);
    Ok(PreparedGraph { has_external_data, parsed, ..prepared })
}

impl PreparedGraph {
    /// Returns one line of text per input whose open dimensions were fixed.
    pub fn fixed_shapes(&self) -> Vec<String> {
        let is_shape = |change: &&Change| matches!(change, Change::FixedShape { .. });
        self.changes.iter().filter(is_shape).map(Change::to_string).collect()
    }

    /// Prepares a loaded model. `shapes` fixes inputs with open dimensions.
    ///
    /// # Errors
    /// As [`prepare_file`].
    pub fn new(mut model: ModelProto, demands: &Demands, shapes: &Shapes) -> Result<PreparedGraph> {
        check_float(&model)?;
        let before = default_opset(&model)?;
        let (mut changes, mut tail, mut warnings) = (Vec::new(), None, Vec::new());
        if !demands.outputs.is_empty() {
            let Cut { head, tail: behind, warning } = cut(&model, &demands.outputs)?;
            (model, tail) = (head, Some(behind));
            warnings.extend(warning);
            changes.push(Change::Cut(demands.outputs.clone()));
        }
        if demands.static_shapes {
            let inputs = resolve_inputs(&model, shapes)?;
            let shapes = inputs.into_iter().map(|input| (input.name, input.shape)).collect();
            changes.extend(static_shapes::fix_inputs(&mut model, &shapes)?);
        }
        let of_fused = if demands.fuse_operators { opset_of_fused(&model) } else { 0 };
        changes.extend(prepare(&mut model, demands.min_opset.max(of_fused))?);
        if demands.static_shapes {
            changes.extend(fold_shapes(&mut model)?);
            changes.extend(reshape_gathers(&mut model)?);
        }
        if demands.fuse_operators {
            changes.extend(fuse_operators(&mut model)?);
        }
        if demands.multiply_and_add {
            changes.extend(multiply_and_add(&mut model)?);
        }
        // Placement and all later stages follow tensors from node to node, and would never end in a cycle.
        onnx::check_topology(&model)?;
        let opset = [before, default_opset(&model)?];
        let mut value_info = ValueInfos::of_model(&model);
        let parsed = Parsed::new(&model, shapes).and_then(|mut parsed| {
            value_info.extend(&parsed.value_info()?);
            Ok(parsed)
        });
        if let Some(graph) = tail.as_mut().and_then(|tail| tail.graph.as_mut()) {
            add_ranks(&mut graph.input, &value_info);
            add_ranks(&mut model.graph_mut()?.output, &value_info);
        }
        if demands.static_shapes {
            static_shapes::fill_in(&mut model, &value_info);
        }
        Ok(PreparedGraph { model, value_info, changes, opset, has_external_data: false, warnings, tail, parsed })
    }
}

/// Declares the number of dimensions of values that have no shape; the dimensions stay open.
fn add_ranks(values: &mut [ValueInfoProto], value_info: &ValueInfos) {
    for value in values {
        let rank = value_info.shape(value.name()).map(<[usize]>::len);
        let tensor_type = value.r#type.as_mut().and_then(|r#type| r#type.tensor_type.as_mut());
        if let (Some(rank), Some(TensorType { shape: shape @ None, .. })) = (rank, tensor_type) {
            *shape = Some(TensorShapeProto { dim: vec![Dimension::default(); rank] });
        }
    }
}
