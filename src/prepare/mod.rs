//! Prepares a model for placement. Its outputs change by float rounding at most.
//!
//! In: a float model as loaded. Out: constants as initializers, copies bypassed, the backend's operator set, batch
//! normalization and arithmetic with constants folded. Graph inputs and outputs keep their names. [`PASSES`] lists all
//! passes in the order in which they run. The file of each pass says what the pass does and where it must not act.
//! Fixed input shapes, `fold_shapes`, `reshape_gathers`, [`fuse_operators`] and [`multiply_and_add`] are not passes, as
//! only some targets need them. [`PreparedGraph`] does all of this for one target, and each step reports a [`Change`].

mod bypass_copies;
mod cancel_transposes;
mod change;
mod einsum_to_matmul;
mod fold_arithmetic;
mod fold_constants;
mod fold_pads;
mod fold_shapes;
mod fuse_operators;
mod graph;
mod inline_branches;
mod lift_constants;
mod merge_bounds;
mod multiply_and_add;
mod pool_means;
mod ranks;
mod renamed_tensors;
mod reshape_gathers;
mod static_shapes;
mod upgrade_opset;
mod values_of_shapes;

pub use change::Change;
pub use fuse_operators::fuse_operators;
pub use graph::{Demands, PreparedGraph, load_float, prepare_file};
pub use multiply_and_add::multiply_and_add;

use crate::diag::WithHint;
use crate::onnx::data_type::type_name;
use crate::onnx::node::{self, node_name};
use crate::onnx::proto::{ModelProto, NodeProto, ValueInfoProto};
use crate::onnx::tensor::DataType;
use anyhow::{Context, Result, anyhow};
use std::collections::BTreeMap;

/// A step of preparation that changes a model, but not its outputs. The number is the minimum version of the default
/// operator set. Returns the changes, or an empty list without any. Fails if a node cannot be changed as needed; the
/// message names the node.
pub type Pass = fn(&mut ModelProto, i64) -> Result<Vec<Change>>;

/// All passes, in their order. Branches are inlined first and constants are lifted next, so that the other passes find
/// the nodes and constants of branches. Copies are bypassed
/// before the upgrade, which needs some inputs as initializers. Nodes are folded last, because the upgrade may change
/// the meaning of a node.
pub const PASSES: &[Pass] = &[
    inline_branches::run,
    lift_constants::run,
    bypass_copies::run,
    upgrade_opset::run,
    einsum_to_matmul::run,
    fold_constants::run,
    merge_bounds::run,
    cancel_transposes::run,
    fold_arithmetic::run,
    fold_pads::run,
    pool_means::run,
];

/// Runs every pass. `min_opset` is the minimum version of the default operator set.
///
/// # Errors
/// If a [`Pass`] fails.
pub fn prepare(model: &mut ModelProto, min_opset: i64) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for pass in PASSES {
        changes.extend(pass(model, min_opset)?);
    }
    Ok(changes)
}

/// Runs only the passes that the engine needs. Batch normalizations are not folded.
///
/// # Errors
/// If a [`Pass`] fails.
pub fn prepare_unfolded(model: &mut ModelProto) -> Result<()> {
    const OPSET: i64 = 13;
    let passes: [Pass; 4] = [inline_branches::run, lift_constants::run, bypass_copies::run, upgrade_opset::run];
    passes.iter().try_for_each(|pass| pass(model, OPSET).map(drop))
}

/// Raises the version of the default operator set to at least `min_opset`.
///
/// # Errors
/// If a node has no equivalent in that version; the message names the node.
pub fn raise_opset(model: &mut ModelProto, min_opset: i64) -> Result<()> {
    upgrade_opset::run(model, min_opset).map(drop)
}

/// Returns the version of the default operator set.
///
/// # Errors
/// If the model does not import the default operator set.
pub fn default_opset(model: &ModelProto) -> Result<i64> {
    let import = model.opset_import.iter().find(|set| node::plain_domain(set.domain()).is_empty());
    Ok(import.context("imports no ONNX opset, expected one")?.version())
}

/// Refuses models that are not float32: models with quantized operators, float16 or bfloat16 weights, or inputs of
/// float16, bfloat16 or float64.
///
/// # Errors
/// If the model is refused; the message names the operators or the tensor.
pub fn check_float(model: &ModelProto) -> Result<()> {
    let graph = model.graph()?;
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &graph.node {
        if node::is_qdq(node) || node::is_integer_operator(node) {
            *found.entry(node.op_type()).or_default() += 1;
        }
    }
    if !found.is_empty() {
        let list: Vec<String> = found.iter().map(|(op, n)| format!("{n} {op}")).collect();
        return Err(anyhow!("is already quantized ({}), expected a float32 model", list.join(", "))
            .hint("quantize the float model that it comes from"));
    }
    let weights: BTreeMap<&str, i32> = graph.initializer.iter().map(|t| (t.name(), t.data_type())).collect();
    let type_of = |input: &ValueInfoProto| input.tensor_type().map_or(0, |tensor| tensor.elem_type());
    let is_half = |found: i32| matches!(found, FLOAT16 | BFLOAT16);
    let is_other_float = |found: i32| is_half(found) || found == DOUBLE;
    let hint = "export it in float32";
    let mut inputs = graph.input.iter().filter(|input| !weights.contains_key(input.name()));
    if let Some(input) = inputs.find(|input| is_other_float(type_of(input))) {
        let (name, found) = (input.name(), type_name(type_of(input)));
        return Err(anyhow!("input `{name}` is {found}, expected a float32 model").hint(hint));
    }
    for node in &graph.node {
        // A weight that is cast to float32 is a float32 weight.
        let is_refused = |found: i32| is_half(found) && !(found == FLOAT16 && is_cast_to_float(node));
        let mut read = node.input.iter().filter_map(|name| weights.get_key_value(name.as_str()));
        if let Some((weight, found)) = read.find(|(_, found)| is_refused(**found)) {
            let (name, op, found) = (node_name(node), node.op_type(), type_name(*found));
            return Err(
                anyhow!("node `{name}` ({op}): weight `{weight}` is {found}, expected a float32 model").hint(hint)
            );
        }
    }
    Ok(())
}

const FLOAT16: i32 = DataType::Float16 as i32;
const DOUBLE: i32 = DataType::Double as i32;
const BFLOAT16: i32 = DataType::Bfloat16 as i32;

/// Whether the node casts to float32.
fn is_cast_to_float(node: &NodeProto) -> bool {
    node::is_standard(node) && node.op_type() == "Cast" && node::int(node, "to", 0) == DataType::Float as i64
}
