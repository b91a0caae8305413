//! The largest or smallest values along an axis.
//!
//! The engine sorts all values. This kernel selects the `k` values first, and sorts only these.

use super::{Replacement, TakenOver, replaced_by};
use tract_onnx::tract_core::ops::array::Topk;
use tract_onnx::tract_hir::internal::*;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TopKOp(Topk);

/// Takes over the largest or smallest values of float32 along an axis.
pub(super) fn taken_over(model: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(top_k) = node.op_as::<Topk>() else { return Ok(None) };
    let (x, k) = (model.outlet_fact(node.inputs[0])?, model.outlet_fact(node.inputs[1])?);
    let is_taken = x.datum_type == DatumType::F32 && k.konst.is_some();
    Ok(is_taken.then(|| replaced_by(TopKOp(top_k.clone()))))
}

impl TopKOp {
    /// Returns a sort key: by value in the higher 32 bits, then by position in the lower 32 bits. Lower keys come
    /// first.
    fn order(&self, value: f32, position: usize) -> u64 {
        // Adding 0 makes both zeros equal.
        let bits = (value + 0.0).to_bits();
        let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        let by_value = if self.0.largest { !ascending } else { ascending };
        u64::from(by_value) << 32 | position as u64
    }
}

impl Replacement for TopKOp {
    fn name(&self) -> &'static str {
        "mqq.TopK"
    }

    fn replaced(&self) -> &dyn TypedOp {
        &self.0
    }

    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let k = inputs[1].cast_to_scalar::<i64>()?;
        let (shape, axis) = (inputs[0].shape(), self.0.axis);
        let x = inputs[0].try_as_plain_ram()?.as_slice::<f32>()?;
        let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let k = usize::try_from(k).ok().filter(|k| (1..=n).contains(k) && inner > 0 && n <= u32::MAX as usize);
        // The place of NaN depends on the sorting of the engine.
        let Some(k) = k.filter(|_| !x.iter().any(|value| value.is_nan())) else { return self.0.eval(ctx, inputs) };
        let mut to: TVec<usize> = shape.into();
        to[axis] = k;
        let (mut values, mut positions) = (Tensor::zero::<f32>(&to)?, Tensor::zero::<i64>(&to)?);
        let (mut plain_values, mut plain_positions) =
            (values.try_as_plain_ram_mut()?, positions.try_as_plain_ram_mut()?);
        let to_values = plain_values.as_slice_mut::<f32>()?.chunks_exact_mut(k * inner);
        let to_positions = plain_positions.as_slice_mut::<i64>()?.chunks_exact_mut(k * inner);
        let mut orders = Vec::with_capacity(n);
        for ((x, values), positions) in x.chunks_exact(n * inner).zip(to_values).zip(to_positions) {
            for lane in 0..inner {
                let along = x[lane..].iter().step_by(inner).enumerate();
                orders.clear();
                orders.extend(along.map(|(position, &value)| self.order(value, position)));
                let (first, last, _) = orders.select_nth_unstable(k - 1);
                first.sort_unstable();
                for (rank, &order) in first.iter().chain([&*last]).enumerate() {
                    let position = order as u32 as usize;
                    values[rank * inner + lane] = x[position * inner + lane];
                    positions[rank * inner + lane] = position as i64;
                }
            }
        }
        Ok(tvec!(values.into_tvalue(), positions.into_tvalue()))
    }
}
