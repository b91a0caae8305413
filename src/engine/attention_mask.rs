//! The mask of an Attention as numbers that are added to the scores, and the rows whose mask excludes all keys.
//!
//! The engine adds a boolean mask as 0 and 1, and gives NaN for a row without keys (tract 0.23.9). In ONNX, `false`
//! excludes a position, and a row without keys gives 0.
//!
//! Source: ONNX `Attention`, opset 23. As in ONNX Runtime, the lowest number of a mask excludes as minus infinity does.

use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_core::ops::math::{max, mul, sub};
use tract_onnx::tract_core::{as_op, op_as_typed_op, op_out_of_plan};
use tract_onnx::tract_hir::internal::*;

/// Names of the operators, which [`super::dialect`] inserts.
pub const ADDED_MASK: &str = "mqq.AddedMask";
pub const ROWS_WITH_KEYS: &str = "mqq.RowsWithKeys";

/// Adds the operators.
pub fn register(ops: &mut OnnxOpRegister) {
    ops.insert(ADDED_MASK, |_: &ParsingContext, _| Ok((expand(AddedMask), vec![])));
    ops.insert(ROWS_WITH_KEYS, |_: &ParsingContext, node| {
        let is_causal = node.get_attr_opt::<i64>("is_causal")?.unwrap_or(0) != 0;
        let n_heads = node.get_attr_opt("q_num_heads")?.unwrap_or(1);
        Ok((expand(RowsWithKeys { is_causal, n_heads }), vec![]))
    });
}

/// Returns the lowest number that an added mask of this type has.
fn lowest(data_type: DatumType) -> f32 {
    if data_type == DatumType::F16 { -65_504.0 } else { f32::MIN }
}

/// Inputs: the mask, boolean or numbers, and the queries, whose type the result has. The result has the mask's shape: 0
/// for `true`, the lowest finite number for `false` and minus infinity, and other numbers as they are.
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
        let to = target.outlet_fact(inputs[1])?.datum_type;
        let mut number = |name: &str, value: f32, data_type: DatumType| {
            let value = tensor0(value).cast_to_dt(data_type)?.broadcast_to_shape(&vec![1; rank])?;
            target.add_const(format!("{prefix}.{name}"), value)
        };
        let (one, largest) = (number("one", 1.0, DatumType::F32)?, number("largest", f32::MAX, DatumType::F32)?);
        let lowest = number("lowest", lowest(to), to)?;
        let mut added = inputs[0];
        if is_boolean {
            let kept = target.wire_node(format!("{prefix}.kept"), cast(f32::datum_type()), &[added])?;
            let excluded = target.wire_node(format!("{prefix}.excluded"), sub(), &[kept[0], one])?;
            added = target.wire_node(format!("{prefix}.number"), mul(), &[excluded[0], largest])?[0];
        }
        let added = target.wire_node(format!("{prefix}.cast"), cast(to), &[added])?;
        target.wire_node(prefix, max(), &[added[0], lowest])
    }
}

/// Inputs: the result of an Attention, `[batch, heads, queries, size]` or `[batch, queries, heads * size]`, and its added
/// mask. Output: the result with 0 for the queries that see no key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RowsWithKeys {
    is_causal: bool,
    /// Number of heads of a result of rank 3.
    n_heads: usize,
}

impl RowsWithKeys {
    fn compute(&self, result: &Tensor, mask: &Tensor) -> TractResult<Tensor> {
        let lowest = lowest(mask.datum_type());
        let cast = mask.cast_to::<f32>()?;
        let keys: &[f32] = cast.try_as_plain_ram()?.as_slice()?;
        let mut sizes = [1; 4];
        ensure!(mask.rank() <= 4, "the mask has rank {}, expected at most 4", mask.rank());
        sizes[4 - mask.rank()..].copy_from_slice(mask.shape());
        let [batches, heads, queries, n_keys] = sizes;
        let (n_heads, n_queries) = match result.shape() {
            [_, n_heads, n_queries, _] => (*n_heads, *n_queries),
            [_, n_queries, _] => (self.n_heads, *n_queries),
            shape => bail!("the result has the shape {shape:?}, expected rank 3 or 4"),
        };
        let n_batches = result.shape()[0];
        let fits = |size: usize, n: usize| size == 1 || size == n;
        ensure!(
            fits(batches, n_batches) && fits(heads, n_heads) && fits(queries, n_queries),
            "the mask has the shape {:?}, expected one that fits {n_batches} x {n_heads} x {n_queries} x keys",
            mask.shape()
        );
        let sees = |batch: usize, head: usize, query: usize| {
            let at = |size: usize, i: usize| if size == 1 { 0 } else { i };
            let row = (at(batches, batch) * heads + at(heads, head)) * queries + at(queries, query);
            let n_seen = if self.is_causal { n_keys.min(query + 1) } else { n_keys };
            keys[row * n_keys..][..n_seen].iter().any(|key| *key > lowest)
        };
        let mut output = result.cast_to::<f32>()?.into_owned();
        let n_rows = n_batches * n_heads * n_queries;
        let mut plain = output.try_as_plain_ram_mut()?;
        let values = plain.as_slice_mut::<f32>()?;
        let size = (values.len() / n_rows.max(1)).max(1);
        for (i, row) in values.chunks_exact_mut(size).enumerate() {
            let (batch, rest) = (i / (n_heads * n_queries), i % (n_heads * n_queries));
            let (head, query) = match result.rank() {
                4 => (rest / n_queries, rest % n_queries),
                _ => (rest % n_heads, rest / n_heads),
            };
            if !sees(batch, head, query) {
                row.fill(0.0);
            }
        }
        Ok(output.cast_to_dt(result.datum_type())?.into_owned())
    }
}

impl Expansion for RowsWithKeys {
    fn name(&self) -> StaticName {
        "RowsWithKeys".into()
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
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)
    }

    fn wire(&self, prefix: &str, target: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        target.wire_node(prefix, self.clone(), inputs)
    }
}

impl Op for RowsWithKeys {
    fn name(&self) -> StaticName {
        "mqq.RowsWithKeys".into()
    }

    op_as_typed_op!();
}

impl EvalOp for RowsWithKeys {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (result, mask) = args_2!(inputs);
        Ok(tvec!(self.compute(&result, &mask)?.into_tvalue()))
    }
}

impl TypedOp for RowsWithKeys {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].datum_type.fact(inputs[0].shape.clone())))
    }

    as_op!();
}
