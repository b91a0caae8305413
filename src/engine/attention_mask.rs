//! The mask of an Attention as numbers that are added to the scores.
//!
//! The engine adds a boolean mask as 0 and 1 (tract 0.23.9). In ONNX, `false` excludes a position.
//!
//! Source: ONNX `Attention`, opset 23.

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_core::ops::math::{mul, sub};
use tract_onnx::tract_hir::internal::*;

/// Name of the operator, which [`super::dialect`] inserts.
pub const ADDED_MASK: &str = "mqq.AddedMask";

/// Adds the operator.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert(ADDED_MASK, |_: &ParsingContext, _| Ok((expand(AddedMask), vec![])));
}

/// Inputs: the mask, boolean or numbers, and the queries, whose type the result has. The result has the mask's shape: 0
/// for `true`, the lowest number for `false`, and numbers as they are.
#[derive(Debug, Clone)]
struct AddedMask;

impl Expansion for AddedMask {
    fn name(&self) -> StaticName {
        "AddedMask".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2)?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].shape, &outputs[0].shape)?;
        s.equals(&inputs[1].datum_type, &outputs[0].datum_type)
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let fact = target.outlet_fact(inputs[0])?;
        let (is_boolean, rank) = (fact.datum_type == bool::datum_type(), fact.rank());
        let to = cast(target.outlet_fact(inputs[1])?.datum_type);
        if !is_boolean {
            return target.wire_node(prefix, to, &inputs[..1]);
        }
        let mut number = |name: &str, value: f32| {
            let shape = vec![1; rank];
            target.add_const(format!("{prefix}.{name}"), tensor0(value).broadcast_to_shape(&shape)?)
        };
        let (one, largest) = (number("one", 1.0)?, number("largest", f32::MAX)?);
        let kept = target.wire_node(format!("{prefix}.kept"), cast(f32::datum_type()), &inputs[..1])?;
        let excluded = target.wire_node(format!("{prefix}.excluded"), sub(), &[kept[0], one])?;
        let added = target.wire_node(format!("{prefix}.added"), mul(), &[excluded[0], largest])?;
        target.wire_node(prefix, to, &added)
    }
}
