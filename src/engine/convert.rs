//! Conversion between our arrays and tract's tensors.

use crate::data::{Array, Values};
use crate::onnx::inputs::InputSpec;
use anyhow::{Result, bail, ensure};
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ndarray::ArrayD;

fn tensor<T: Datum>(shape: &[usize], values: &[T]) -> Result<TValue> {
    let array = ArrayD::from_shape_vec(shape, values.to_vec())?;
    Ok(array.into_tensor().into_tvalue())
}

/// Converts `array` to a tract tensor, after a check against its input.
pub fn to_tract(array: &Array, input: &InputSpec) -> Result<TValue> {
    ensure!(
        input.accepts(&array.shape),
        "input `{}`: shape {:?}, expected {}",
        input.name,
        array.shape,
        input.expected()
    );
    match &array.values {
        Values::F32(values) => tensor(&array.shape, values),
        Values::I64(values) => tensor(&array.shape, values),
        Values::I32(values) => tensor(&array.shape, values),
        Values::I8(values) => tensor(&array.shape, values),
        Values::U8(values) => tensor(&array.shape, values),
        Values::Bool(values) => tensor(&array.shape, values),
    }
}

/// Returns the values of a tensor as float32, converted from integers and booleans.
pub fn to_f32(value: &Tensor) -> Result<Vec<f32>> {
    if let Some(values) = as_f32(value) {
        return Ok(values.to_vec());
    }
    let dt = value.datum_type();
    if dt == TDim::datum_type() {
        return to_f32(&*value.cast_to::<i64>()?);
    }
    if !(dt.is_number() || dt == bool::datum_type()) {
        bail!("element type is {dt:?}, expected a number");
    }
    let cast = value.cast_to::<f32>()?;
    Ok(cast.try_as_plain_ram()?.as_slice::<f32>()?.to_vec())
}

/// Returns the tensor with plain numbers. The engine holds dimensions, and any integers cast to int64, as expressions,
/// which it does not accept as inputs.
pub fn without_symbols(value: Arc<Tensor>) -> Result<Arc<Tensor>> {
    if value.datum_type() != TDim::datum_type() {
        return Ok(value);
    }
    Ok(value.cast_to::<i64>()?.into_owned().into_arc_tensor())
}

/// Returns the values; `None` where they are not float32.
pub fn as_f32(value: &Tensor) -> Option<&[f32]> {
    if value.datum_type() != f32::datum_type() {
        return None;
    }
    value.as_plain_ram()?.as_slice::<f32>().ok()
}

/// Returns the number in `TensorProto.DataType` of a tract type, where it has one.
pub fn data_type(dt: DatumType) -> Option<i32> {
    Some(match dt {
        DatumType::F32 => 1,
        DatumType::U8 => 2,
        DatumType::I8 => 3,
        DatumType::U16 => 4,
        DatumType::I16 => 5,
        DatumType::I32 => 6,
        DatumType::I64 | DatumType::TDim => 7,
        DatumType::String => 8,
        DatumType::Bool => 9,
        DatumType::F16 => 10,
        DatumType::F64 => 11,
        DatumType::U32 => 12,
        DatumType::U64 => 13,
        _ => return None,
    })
}

/// Returns the engine's type of a number in `TensorProto.DataType`, where it has one.
pub fn datum_type(data_type: i32) -> Option<DatumType> {
    use DatumType::{Bool, F16, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
    [F32, U8, I8, U16, I16, I32, I64, String, Bool, F16, F64, U32, U64]
        .into_iter()
        .find(|dt| self::data_type(*dt) == Some(data_type))
}
