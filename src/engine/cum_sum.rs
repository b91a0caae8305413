//! CumSum of integers that a Cast to int64 produces, and along an axis that is a tensor with one number.
//!
//! The engine gives such integers a type for dimensions, which its own operator does not add up (tract 0.23.9). Decoders
//! and RoBERTa count their positions in this way.
//!
//! Source: ONNX `CumSum`.

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::tract_core::ops::array::CumSum;
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_hir::internal::*;

/// Replaces the engine's operator.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert("CumSum", |_: &ParsingContext, node| {
        let flag = |name: &str| anyhow::Ok(node.get_attr_opt::<i64>(name)? == Some(1));
        Ok((expand(CumSumOp { exclusive: flag("exclusive")?, reverse: flag("reverse")? }), vec![]))
    });
}

/// Inputs: a tensor of numbers, and the axis, one integer.
#[derive(Debug, Clone)]
struct CumSumOp {
    exclusive: bool,
    reverse: bool,
}

impl Expansion for CumSumOp {
    fn name(&self) -> StaticName {
        "CumSum".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2)?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].shape, &outputs[0].shape)
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let [mut values, axis] = *inputs else { bail!("{} inputs, expected 2", inputs.len()) };
        let axis = target.outlet_fact(axis)?.konst.as_ref().context("the axis is not constant")?;
        ensure!(axis.len() == 1, "the axis has the shape {:?}, expected one value", axis.shape());
        let axis = axis.cast_to::<i64>()?.try_as_plain_ram()?.as_slice::<i64>()?[0];
        let (rank, datum_type) = (target.outlet_fact(values)?.rank() as i64, target.outlet_fact(values)?.datum_type);
        ensure!((-rank..rank).contains(&axis), "the axis is {axis}, but the input has the rank {rank}");
        let axis = axis.rem_euclid(rank) as usize;
        let sum = CumSum { axis, exclusive: self.exclusive, reverse: self.reverse };
        if !datum_type.is_tdim() {
            return target.wire_node(prefix, sum, &[values]);
        }
        values = target.wire_node(format!("{prefix}.integers"), cast(i64::datum_type()), &[values])?[0];
        let sums = target.wire_node(format!("{prefix}.sums"), sum, &[values])?;
        target.wire_node(prefix, cast(datum_type), &sums)
    }
}
