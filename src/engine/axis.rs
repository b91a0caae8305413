//! A check of the negative axis of a OneHot or LayerNormalization.
//!
//! The engine's own operators count endlessly if the axis is lower than the rank allows (tract 0.23.9).

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::tract_hir::internal::*;

/// Name of the operator, which [`super::dialect`] inserts in front of the input. Attribute `axis`; attribute `first`:
/// lowest axis of a tensor of rank 0.
pub const INPUT_WITH_AXIS: &str = "mqq.InputWithAxis";

/// Adds the operator.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert(INPUT_WITH_AXIS, |_: &ParsingContext, node| {
        let (axis, first) = (node.get_attr("axis")?, node.get_attr("first")?);
        Ok((expand(InputWithAxis { axis, first }), vec![]))
    });
}

/// Returns its input.
#[derive(Debug, Clone)]
struct InputWithAxis {
    axis: i64,
    first: i64,
}

impl Expansion for InputWithAxis {
    fn name(&self) -> StaticName {
        "InputWithAxis".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 1)?;
        s.given(&inputs[0].rank, |_, rank| {
            let first = self.first - rank;
            ensure!(self.axis >= first, "axis is {}, expected {first} or more", self.axis);
            Ok(())
        })?;
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].shape, &outputs[0].shape)
    }

    fn wire(&self, _: &str, _: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        Ok(inputs.into())
    }
}
