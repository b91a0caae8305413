//! Trilu with a diagonal that is computed from shapes, or that is a tensor of one value.
//!
//! The engine's own operator takes only an int64 scalar (tract 0.23.9). In causal masks of decoders, the diagonal
//! follows from the length of the sequence.
//!
//! Source: ONNX `Trilu`.

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::tract_core::ops::array::Trilu;
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_hir::internal::*;

/// Replaces the engine's operator.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert("Trilu", |_: &ParsingContext, node| {
        let upper = node.get_attr_opt::<i64>("upper")?.unwrap_or(1) != 0;
        Ok((expand(TriluOp { upper, has_diagonal: node.input.len() == 2 }), vec![]))
    });
}

/// Inputs: matrices `[..., M, N]`, and optionally the diagonal, one integer (0 by default).
#[derive(Debug, Clone)]
struct TriluOp {
    upper: bool,
    has_diagonal: bool,
}

impl Expansion for TriluOp {
    fn name(&self) -> StaticName {
        "Trilu".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1 + usize::from(self.has_diagonal))?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].shape, &outputs[0].shape)?;
        s.given(&inputs[0].rank, |_, n_axes| {
            ensure!(n_axes >= 2, "the input has the rank {n_axes}, expected 2 or more");
            Ok(())
        })
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let (matrices, diagonal) = match *inputs {
            [matrices] => (matrices, target.add_const(format!("{prefix}.k"), tensor0(0i64))?),
            [matrices, diagonal] => (matrices, diagonal),
            _ => bail!("{} inputs, expected 1 or 2", inputs.len()),
        };
        let fact = target.outlet_fact(diagonal)?;
        ensure!(fact.shape.volume() == 1.to_dim(), "the diagonal has the shape {:?}, expected one value", fact.shape);
        let mut diagonal = tvec!(diagonal);
        for axis in 0..fact.rank() {
            diagonal = target.wire_node(format!("{prefix}.k.{axis}"), AxisOp::Rm(0), &diagonal)?;
        }
        let diagonal = target.wire_node(format!("{prefix}.k.cast"), cast(i64::datum_type()), &diagonal)?;
        target.wire_node(prefix, Trilu { upper: self.upper }, &[matrices, diagonal[0]])
    }
}
