//! GatherND and ScatterND with indices from the end of an axis, and outside an axis.
//!
//! The engine's operators refuse an index below 0, or read it as a huge one (tract 0.23.9). PyTorch writes `x[:, -1] = y`
//! as a ScatterND.
//!
//! Source: ONNX `GatherND`, `ScatterND`: an index from `-length` to `length - 1`.

use tract_onnx::model::OnnxOpRegister;
use tract_onnx::tract_core::ops::array::ScatterReduction;
use tract_onnx::tract_core::{as_op, op_as_typed_op, op_out_of_plan};
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::array::{GatherNd, ScatterNd};

/// Replaces the engine's operators.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert("GatherND", |_, node| {
        let batch_dims = node.get_attr_opt("batch_dims")?.unwrap_or(0);
        Ok((expand(NdOp::Gather(GatherNd::new(batch_dims))), vec![]))
    });
    ops.insert("ScatterND", |_, node| {
        let reduction = ScatterReduction::parse(node.get_attr_opt("reduction")?.unwrap_or("none"))?;
        Ok((expand(NdOp::Scatter(ScatterNd::new(reduction))), vec![]))
    });
}

/// The engine's operators. Inputs: the data, the indices, and the updates of a ScatterND.
#[derive(Debug, Clone)]
enum NdOp {
    Gather(GatherNd),
    Scatter(ScatterNd),
}

impl Expansion for NdOp {
    fn name(&self) -> StaticName {
        match self {
            NdOp::Gather(_) => "GatherND".into(),
            NdOp::Scatter(_) => "ScatterND".into(),
        }
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        match self {
            NdOp::Gather(op) => op.rules(s, inputs, outputs),
            NdOp::Scatter(op) => op.rules(s, inputs, outputs),
        }
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let first_axis = match self {
            NdOp::Gather(op) => op.batch_dims,
            NdOp::Scatter(_) => 0,
        };
        let indices = from_start(&format!("{prefix}.indices"), target, inputs, first_axis)?;
        match self {
            NdOp::Gather(op) => target.wire_node(prefix, op.clone(), &[inputs[0], indices]),
            NdOp::Scatter(op) => op.wire(prefix, target, &[inputs[0], indices, inputs[2]]),
        }
    }
}

/// Returns the indices of a node as positions from the start of their axes.
fn from_start(prefix: &str, target: &mut TypedModel, inputs: &[OutletId], first_axis: usize) -> TractResult<OutletId> {
    let (data, indices) = (target.outlet_fact(inputs[0])?, target.outlet_fact(inputs[1])?);
    if let (Some(constant), Some(shape)) = (&indices.konst, data.shape.as_concrete())
        && let Ok(constant) = constant.cast_to::<i64>()
    {
        let positions = positions(&constant, shape, first_axis)?;
        return target.add_const(prefix, positions);
    }
    Ok(target.wire_node(prefix, FromStart { first_axis }, &inputs[..2])?[0])
}

/// Returns the positions of `indices` (int64, `[..., n]`) along the `n` axes of the shape from `first_axis` on. Fails
/// if an index lies outside its axis, or the indices have more entries than the shape has axes.
fn positions(indices: &Tensor, shape: &[usize], first_axis: usize) -> TractResult<Tensor> {
    let n = indices.shape().last().copied().unwrap_or(0);
    let lengths = shape.get(first_axis..).and_then(|rest| rest.get(..n));
    let lengths = lengths.with_context(|| {
        format!("indices of {n} axes from axis {first_axis} on, expected at most the {} of the data", shape.len())
    })?;
    let mut positions = indices.clone();
    for entry in positions.try_as_plain_ram_mut()?.as_slice_mut::<i64>()?.chunks_exact_mut(n.max(1)) {
        for ((index, &length), axis) in entry.iter_mut().zip(lengths).zip(first_axis..) {
            let found = *index;
            *index += if found < 0 { length as i64 } else { 0 };
            ensure!(
                (0..length as i64).contains(index),
                "index {found} of axis {axis}, expected -{length} to {}",
                length as i64 - 1
            );
        }
    }
    Ok(positions)
}

/// Inputs: the data, of which only the shape is read, and the indices. Output: [`positions`].
#[derive(Debug, Clone, PartialEq, Eq)]
struct FromStart {
    first_axis: usize,
}

impl Op for FromStart {
    fn name(&self) -> StaticName {
        "mqq.FromStart".into()
    }

    op_as_typed_op!();
}

impl EvalOp for FromStart {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (data, indices) = args_2!(inputs);
        Ok(tvec!(positions(&*indices.cast_to::<i64>()?, data.shape(), self.first_axis)?.into_tvalue()))
    }
}

impl TypedOp for FromStart {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(i64::fact(inputs[1].shape.clone())))
    }

    as_op!();
}
