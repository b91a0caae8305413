//! Sums, differences, products and quotients with a tensor of equal shape or a smaller one, such as a number for each channel.

use super::{Replacement, TakenOver, float_tensor, replaced_by};
use crate::engine::vectors::{ValueLoop, vectorized};
use std::ops::Range;
use tract_onnx::tract_core::ops::binary::TypedBinOp;
use tract_onnx::tract_core::ops::einsum::EinSum;
use tract_onnx::tract_core::ops::math::{Add, Div, Mul, Sub};
use tract_onnx::tract_hir::internal::*;

/// Number of values that are copied and then changed at a time: they stay in the first-level cache.
const BLOCK: usize = 4096;

/// An operator of the engine, where one operand has the shape of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BroadcastOp {
    op: TypedBinOp,
    operation: Operation,
    /// Position of the operand with the shape of the result.
    whole: usize,
    /// The axes that the other operand spans.
    axes: Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add,
    Sub,
    Mul,
    Div,
}

/// Takes over Add, Sub, Mul and Div of float32, where one operand has all axes of the other or some adjacent ones.
pub(super) fn taken_over(model: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(op) = node.op_as::<TypedBinOp>() else { return Ok(None) };
    let operation = match &*op.0 {
        bin if bin.is::<Add>() => Operation::Add,
        bin if bin.is::<Sub>() => Operation::Sub,
        bin if bin.is::<Mul>() => Operation::Mul,
        bin if bin.is::<Div>() => Operation::Div,
        _ => return Ok(None),
    };
    let facts = model.node_input_facts(node.id)?;
    let is_float = |fact: &&TypedFact| fact.datum_type == DatumType::F32 && !fact.is_exotic();
    let [a, b] = facts[..] else { return Ok(None) };
    if !facts.iter().all(is_float) || op.1.is_some_and(|of_result| of_result != DatumType::F32) {
        return Ok(None);
    }
    let whole = match [axes_of(a, b), axes_of(b, a)] {
        [Some(axes), _] => Some((0, axes)),
        [None, Some(axes)] => Some((1, axes)),
        [None, None] => None,
    };
    // The engine fuses a constant operand into a product of matrices.
    let is_fused = |&(whole, _): &(usize, Range<usize>)| {
        let producer = model.node(node.inputs[whole].node);
        let of_constant = facts[1 - whole].konst.is_some();
        let is_alone = producer.outputs[0].successors.len() == 1
            && !model.output_outlets().is_ok_and(|outputs| outputs.contains(&OutletId::new(producer.id, 0)));
        producer.op_is::<EinSum>() && of_constant && is_alone
    };
    let whole = whole.filter(|whole| !is_fused(whole));
    Ok(whole.map(|(whole, axes)| replaced_by(BroadcastOp { op: op.clone(), operation, whole, axes })))
}

/// Returns the axes of `whole` that `part` spans; `None` where `part` is a single number or does not fit.
fn axes_of(whole: &TypedFact, part: &TypedFact) -> Option<Range<usize>> {
    let has = |axis: &usize| part.shape[*axis] != 1.to_dim();
    let start = (0..part.rank()).find(has)?;
    let end = (0..part.rank()).rfind(has)? + 1;
    let is_like = |axis: usize| part.shape[axis] == whole.shape[axis];
    let is_part = whole.rank() == part.rank() && (start..end).all(is_like);
    is_part.then_some(start..end)
}

/// Values that an operation changes in place, and the other operand. Each value of the other operand applies to `inner`
/// adjacent values.
struct Runs<'a, F> {
    values: &'a mut [f32],
    others: &'a [f32],
    inner: usize,
    operation: F,
}

impl<F: Fn(f32, f32) -> f32> ValueLoop for Runs<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Runs { values, others, inner, operation } = self;
        if inner == 1 {
            for run in values.chunks_exact_mut(others.len()) {
                run.iter_mut().zip(others).for_each(|(value, other)| *value = operation(*value, *other));
            }
        } else {
            for (run, other) in values.chunks_exact_mut(inner).zip(others.iter().cycle()) {
                run.iter_mut().for_each(|value| *value = operation(*value, *other));
            }
        }
    }
}

impl BroadcastOp {
    fn apply(&self, values: &mut [f32], others: &[f32], inner: usize) {
        match (self.operation, self.whole) {
            (Operation::Add, _) => vectorized(Runs { values, others, inner, operation: |x, y| x + y }),
            (Operation::Mul, _) => vectorized(Runs { values, others, inner, operation: |x, y| x * y }),
            (Operation::Sub, 0) => vectorized(Runs { values, others, inner, operation: |x, y| x - y }),
            (Operation::Sub, _) => vectorized(Runs { values, others, inner, operation: |x, y| y - x }),
            (Operation::Div, 0) => vectorized(Runs { values, others, inner, operation: |x, y| x / y }),
            (Operation::Div, _) => vectorized(Runs { values, others, inner, operation: |x, y| y / x }),
        }
    }
}

impl Replacement for BroadcastOp {
    fn name(&self) -> &'static str {
        "mqq.Broadcast"
    }

    fn replaced(&self) -> &dyn TypedOp {
        &self.op
    }

    fn eval(&self, _: &EvalContext, mut inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let whole = inputs.remove(self.whole);
        let part = inputs.remove(0);
        let others: &[f32] = part.try_as_plain_ram()?.as_slice()?;
        let inner: usize = whole.shape()[self.axes.end..].iter().product();
        if whole.len() == 0 {
            return Ok(tvec!(whole));
        }
        match Arc::try_unwrap(whole.into_arc_tensor()) {
            Ok(mut values) => {
                self.apply(values.try_as_plain_ram_mut()?.as_slice_mut()?, others, inner);
                Ok(tvec!(values.into_tvalue()))
            }
            Err(shared) => {
                let values: &[f32] = shared.try_as_plain_ram()?.as_slice()?;
                let len = others.len() * inner;
                let len = len * (BLOCK / len).max(1);
                float_tensor(shared.shape(), |to| {
                    for (to, values) in to.chunks_mut(len).zip(values.chunks(len)) {
                        to.copy_from_slice(values);
                        self.apply(to, others, inner);
                    }
                })
            }
        }
    }
}
