//! Resizing of planes.
//!
//! The engine resizes the whole tensor along one axis after the other, and value by value along the last one. This
//! kernel makes each row of the result from rows of its plane, then resizes that row, by the same steps.

use super::{Replacement, TakenOver, float_tensor, replaced_by};
use tract_onnx::tract_core::ops::nn::resize::{AxisPlan, Resize};
use tract_onnx::tract_hir::internal::*;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ResizeOp(Resize);

/// Takes over resizing of float32 along the last two axes.
pub(super) fn taken_over(model: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(resize) = node.op_as::<Resize>() else { return Ok(None) };
    let x = model.outlet_fact(node.inputs[0])?;
    let is_taken = x.datum_type == DatumType::F32 && x.rank() >= 2;
    Ok(is_taken.then(|| replaced_by(ResizeOp(resize.clone()))))
}

/// The resizing of a tensor's planes. An axis without a plan keeps its values.
struct Planes {
    height: usize,
    width: usize,
    rows: Option<AxisPlan>,
    columns: Option<AxisPlan>,
}

impl ResizeOp {
    /// Returns the shape of the result, and the resizing of the planes; `None` where other axes are resized or there
    /// are no values.
    fn planes(&self, inputs: &[TValue]) -> TractResult<(TVec<usize>, Option<Planes>)> {
        let shape = inputs[0].shape();
        let given = |input: Option<usize>| input.and_then(|input| inputs.get(input)).map(|tensor| &**tensor);
        let (scales, sizes) = (given(self.0.optional_scales_input), given(self.0.optional_sizes_input));
        let to = self.0.compute_output_shape(shape, scales, sizes)?;
        let scales: TVec<f32> = match scales.filter(|scales| scales.len() == shape.len()) {
            Some(scales) => scales.try_as_plain_ram()?.as_slice::<f32>()?.into(),
            None => to.iter().zip(shape).map(|(to, from)| *to as f32 / *from as f32).collect(),
        };
        let is_kept = |axis: &usize| to[*axis] == shape[*axis] && scales[*axis] == 1.0;
        let plan = |axis: usize| (!is_kept(&axis)).then(|| self.0.plan_axis(scales[axis], shape[axis], to[axis]));
        let rank = shape.len();
        let has_values = !shape.contains(&0) && !to.contains(&0);
        let planes = (has_values && (0..rank - 2).all(|axis| is_kept(&axis))).then(|| Planes {
            height: shape[rank - 2],
            width: shape[rank - 1],
            rows: plan(rank - 2),
            columns: plan(rank - 1),
        });
        Ok((to, planes))
    }
}

impl Planes {
    /// Writes the planes of `x`, resized to `height` rows and `width` columns each, to `y`.
    fn resize(&self, x: &[f32], [height, width]: [usize; 2], y: &mut [f32]) {
        let mut mixed = vec![0.0; self.width];
        let planes = x.chunks_exact(self.height * self.width).zip(y.chunks_exact_mut(height * width));
        for (x, y) in planes {
            for (at, y) in y.chunks_exact_mut(width).enumerate() {
                let row = match &self.rows {
                    None => &x[at * self.width..][..self.width],
                    Some(plan) => {
                        mix(x, plan, at, &mut mixed);
                        &mixed
                    }
                };
                match &self.columns {
                    None => y.copy_from_slice(row),
                    Some(plan) if plan.window == 2 => resize_row::<2>(row, plan, y),
                    Some(plan) => resize_row::<4>(row, plan, y),
                }
            }
        }
    }
}

/// Writes the weighted sum of the rows of `plane` that row `at` of the result depends on to `row`.
fn mix(plane: &[f32], plan: &AxisPlan, at: usize, row: &mut [f32]) {
    row.fill(0.0);
    let taps = at * plan.window..(at + 1) * plan.window;
    for (&from, &weight) in plan.indices[taps.clone()].iter().zip(&plan.weights[taps]) {
        // The engine leaves out zero weights as well: their values may be infinite or NaN.
        if weight != 0.0 {
            let from = &plane[from * row.len()..][..row.len()];
            row.iter_mut().zip(from).for_each(|(to, x)| *to += weight * x);
        }
    }
}

/// Writes weighted sums of `N` values of `row` each to `y`.
fn resize_row<const N: usize>(row: &[f32], plan: &AxisPlan, y: &mut [f32]) {
    let taps = plan.indices.as_chunks::<N>().0.iter().zip(plan.weights.as_chunks::<N>().0);
    for (y, (from, weights)) in y.iter_mut().zip(taps) {
        let taps = from.iter().zip(weights);
        *y = taps.fold(0.0, |sum, (&from, &weight)| if weight == 0.0 { sum } else { sum + weight * row[from] });
    }
}

impl Replacement for ResizeOp {
    fn name(&self) -> &'static str {
        "mqq.Resize"
    }

    fn replaced(&self) -> &dyn TypedOp {
        &self.0
    }

    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (shape, planes) = self.planes(&inputs)?;
        let Some(planes) = planes else { return self.0.eval(ctx, inputs) };
        let (x, rank) = (inputs[0].try_as_plain_ram()?.as_slice::<f32>()?, shape.len());
        float_tensor(&shape, |y| planes.resize(x, [shape[rank - 2], shape[rank - 1]], y))
    }
}
