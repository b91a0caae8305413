//! Softmax along an axis that is not the last one.
//!
//! The engine is fast along the last axis only. This kernel moves the axis there and back.

use super::{Replacement, TakenOver, replaced_by};
use tract_onnx::tract_core::ops::nn::Softmax;
use tract_onnx::tract_hir::internal::*;

/// A Softmax of the engine along one axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SoftmaxOp {
    softmax: Softmax,
    axis: usize,
}

/// Takes over Softmax and LogSoftmax of float32 along one axis that is not the last one.
pub(super) fn taken_over(model: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(softmax) = node.op_as::<Softmax>() else { return Ok(None) };
    let x = model.outlet_fact(node.inputs[0])?;
    let &[axis] = &softmax.axes[..] else { return Ok(None) };
    let is_taken = x.datum_type == DatumType::F32 && axis + 1 < x.rank();
    Ok(is_taken.then(|| replaced_by(SoftmaxOp { softmax: softmax.clone(), axis })))
}

impl Replacement for SoftmaxOp {
    fn name(&self) -> &'static str {
        "mqq.Softmax"
    }

    fn replaced(&self) -> &dyn TypedOp {
        &self.softmax
    }

    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let x = args_1!(inputs).into_tensor();
        let last = x.rank() - 1;
        let mut order: TVec<usize> = (0..=last).collect();
        order.remove(self.axis);
        order.push(self.axis);
        let along_last = Softmax { axes: tvec!(last), ..self.softmax.clone() };
        let y = args_1!(along_last.eval(ctx, tvec!(x.permute_axes(&order)?.into_tvalue()))?).into_tensor();
        let mut back: TVec<usize> = (0..last).collect();
        back.insert(self.axis, last);
        Ok(tvec!(y.permute_axes(&back)?.into_tvalue()))
    }
}
