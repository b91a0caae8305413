//! Max pooling.

use super::windows::{Weights, WindowStep, Windows};
use super::{Replacement, TakenOver, float_tensor, replaced_by};
use pulp::Simd;
use tract_onnx::tract_core::ops::cnn::MaxPool;
use tract_onnx::tract_hir::internal::*;

/// A max pooling of the engine, and its windows over the planes of its input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MaxPoolOp {
    pool: MaxPool,
    windows: Windows,
}

/// Takes over max pooling of float32, channels first, without indices.
pub(super) fn taken_over(model: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(pool) = node.op_as::<MaxPool>() else { return Ok(None) };
    let x = model.outlet_fact(node.inputs[0])?;
    let spec = &pool.pool_spec;
    // The engine computes these windows in vectors, and propagates NaN differently.
    let is_dense = spec.kernel_shape[..] == [2, 2] && [spec.strides(), spec.dilations()].iter().all(|n| **n == [1, 1]);
    if x.datum_type != DatumType::F32 || pool.with_index_outputs.is_some() || is_dense {
        return Ok(None);
    }
    let windows = x.shape.as_concrete().and_then(|shape| Windows::new(spec, shape));
    Ok(windows.map(|windows| replaced_by(MaxPoolOp { pool: pool.clone(), windows })))
}

/// The step of a maximum, which starts at the lowest finite number and ignores NaN.
struct Larger;

impl WindowStep for Larger {
    const OUTSIDE: f32 = f32::MIN;

    #[inline(always)]
    fn step<S: Simd>(simd: S, so_far: S::f32s, x: S::f32s, _: S::f32s) -> S::f32s {
        simd.select_f32s(simd.less_than_f32s(so_far, x), x, so_far)
    }
}

impl Replacement for MaxPoolOp {
    fn name(&self) -> &'static str {
        "mqq.MaxPool"
    }

    fn replaced(&self) -> &dyn TypedOp {
        &self.pool
    }

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let x = args_1!(inputs);
        let shape = self.pool.pool_spec.output_shape(x.shape())?.shape;
        let taps = vec![0.0; self.windows.n_taps()];
        let (x, first) = (x.try_as_plain_ram()?.as_slice()?, f32::MIN);
        float_tensor(&shape, |y| self.windows.run::<Larger>(x, [1, 1], &[Weights { first, taps: &taps }], y))
    }
}
