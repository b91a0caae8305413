//! Values of a `TensorProto`, wherever they are stored, and tensors from values.
//!
//! Sizes are checked against the data before anything is allocated. Source of the encoding: `onnx.proto`,
//! `TensorProto` (raw data are little-endian; narrow types share `int32_data`).

use super::proto::TensorProto;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use prost::Message;

/// Element types of ONNX that mqq computes with, by their number in `TensorProto.DataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum DataType {
    /// 32-bit float.
    Float = 1,
    /// Unsigned 8-bit integer.
    Uint8 = 2,
    /// Signed 8-bit integer.
    Int8 = 3,
    /// Unsigned 16-bit integer.
    Uint16 = 4,
    /// Signed 16-bit integer.
    Int16 = 5,
    /// Signed 32-bit integer.
    Int32 = 6,
    /// Signed 64-bit integer.
    Int64 = 7,
    /// Unsigned 4-bit integer, two to a byte.
    Uint4 = 21,
    /// Signed 4-bit integer, two to a byte.
    Int4 = 22,
}

/// Bytes of one element by its number in `TensorProto.DataType`; `None` for text and for types that share
/// bytes.
pub fn element_bytes(data_type: i32) -> Option<usize> {
    Some(match data_type {
        2 | 3 | 9 => 1,
        4 | 5 | 10 | 16 => 2,
        1 | 6 | 12 => 4,
        7 | 11 | 13 => 8,
        _ => return None,
    })
}

/// The tensor of a `TensorProto` file; raw data stay in `bytes`.
///
/// # Errors
/// If it is none.
pub fn decode(bytes: Bytes) -> Result<TensorProto> {
    TensorProto::decode(bytes).context("is no ONNX tensor: it does not parse as `TensorProto`")
}

/// Dimensions, outermost first.
///
/// # Errors
/// If one is negative, or their product does not fit in memory.
pub fn shape(tensor: &TensorProto) -> Result<Vec<usize>> {
    let dims = &tensor.dims;
    let shape: Result<Vec<usize>, _> = dims.iter().map(|&dim| usize::try_from(dim)).collect();
    let shape = shape.with_context(|| format!("shape is {dims:?}, expected no negative number"))?;
    let n_values = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    ensure!(n_values.is_some_and(|n| n <= isize::MAX as usize / 8), "shape is {dims:?}, too large to hold in memory");
    Ok(shape)
}

/// The values of a float32 tensor, in row-major order.
///
/// # Errors
/// If the type is another, the data lie in an external file, or their number does not match the shape.
pub fn f32_values(tensor: &TensorProto) -> Result<Vec<f32>> {
    expect_type(tensor, DataType::Float)?;
    values(tensor, &tensor.float_data, f32::from_le_bytes)
}

/// The values of an int64 tensor, in row-major order.
///
/// # Errors
/// As [`f32_values`].
pub fn i64_values(tensor: &TensorProto) -> Result<Vec<i64>> {
    expect_type(tensor, DataType::Int64)?;
    values(tensor, &tensor.int64_data, i64::from_le_bytes)
}

fn expect_type(tensor: &TensorProto, expected: DataType) -> Result<()> {
    let found = tensor.data_type.unwrap_or_default();
    ensure!(found == expected as i32, "element type is {found}, expected {} ({expected:?})", expected as i32);
    Ok(())
}

fn values<T: Copy, const N: usize>(
    tensor: &TensorProto,
    typed: &[T],
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Vec<T>> {
    let n_values: usize = shape(tensor)?.iter().product();
    if is_external(tensor) {
        bail!("data lie in an external file, expected them in the model");
    }
    let Some(raw) = &tensor.raw_data else {
        ensure!(typed.len() == n_values, "holds {} values, expected {n_values} for its shape", typed.len());
        return Ok(typed.to_vec());
    };
    ensure!(raw.len() == n_values * N, "holds {} bytes, expected {} for its shape", raw.len(), n_values * N);
    let (chunks, _) = raw.as_chunks::<N>();
    Ok(chunks.iter().map(|&bytes| from_le_bytes(bytes)).collect())
}

/// Whether the data lie in another file (`data_location` is EXTERNAL).
pub fn is_external(tensor: &TensorProto) -> bool {
    const EXTERNAL: i32 = 1;
    tensor.data_location == Some(EXTERNAL)
}

/// A float32 tensor of `values`, stored raw.
///
/// # Errors
/// If the number of values does not match `shape`.
pub fn from_f32(name: &str, shape: &[usize], values: &[f32]) -> Result<TensorProto> {
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    from_raw(name, DataType::Float, shape, values.len(), raw)
}

/// An int8 tensor of `values`, stored raw.
///
/// # Errors
/// As [`from_f32`].
pub fn from_i8(name: &str, shape: &[usize], values: &[i8]) -> Result<TensorProto> {
    let raw = values.iter().map(|value| value.cast_unsigned()).collect();
    from_raw(name, DataType::Int8, shape, values.len(), raw)
}

/// A uint8 tensor of `values`, stored raw.
///
/// # Errors
/// As [`from_f32`].
pub fn from_u8(name: &str, shape: &[usize], values: &[u8]) -> Result<TensorProto> {
    from_raw(name, DataType::Uint8, shape, values.len(), values.to_vec())
}

/// An int4 tensor of `values` (-8 to 7), stored raw: two to a byte, the first in the low half.
///
/// # Errors
/// As [`from_f32`].
pub fn from_i4(name: &str, shape: &[usize], values: &[i8]) -> Result<TensorProto> {
    let nibbles: Vec<u8> = values.iter().map(|value| value.cast_unsigned()).collect();
    from_raw(name, DataType::Int4, shape, values.len(), pack_nibbles(&nibbles))
}

/// A uint4 tensor of `values` (0 to 15), stored as [`from_i4`] does.
///
/// # Errors
/// As [`from_f32`].
pub fn from_u4(name: &str, shape: &[usize], values: &[u8]) -> Result<TensorProto> {
    from_raw(name, DataType::Uint4, shape, values.len(), pack_nibbles(values))
}

fn pack_nibbles(nibbles: &[u8]) -> Vec<u8> {
    let pack = |pair: &[u8]| match pair {
        [low, high] => (low & 0xf) | (high << 4),
        [low, ..] => low & 0xf,
        [] => 0,
    };
    nibbles.chunks(2).map(pack).collect()
}

/// An int16 tensor of `values`, stored raw.
///
/// # Errors
/// As [`from_f32`].
pub fn from_i16(name: &str, shape: &[usize], values: &[i16]) -> Result<TensorProto> {
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    from_raw(name, DataType::Int16, shape, values.len(), raw)
}

/// A uint16 tensor of `values`, stored raw.
///
/// # Errors
/// As [`from_f32`].
pub fn from_u16(name: &str, shape: &[usize], values: &[u16]) -> Result<TensorProto> {
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    from_raw(name, DataType::Uint16, shape, values.len(), raw)
}

/// An int32 tensor of `values`, stored raw.
///
/// # Errors
/// As [`from_f32`].
pub fn from_i32(name: &str, shape: &[usize], values: &[i32]) -> Result<TensorProto> {
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    from_raw(name, DataType::Int32, shape, values.len(), raw)
}

/// An int64 tensor of `values`, stored raw.
///
/// # Errors
/// As [`from_f32`].
pub fn from_i64(name: &str, shape: &[usize], values: &[i64]) -> Result<TensorProto> {
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    from_raw(name, DataType::Int64, shape, values.len(), raw)
}

fn from_raw(name: &str, data_type: DataType, shape: &[usize], n_values: usize, raw: Vec<u8>) -> Result<TensorProto> {
    let expected: usize = shape.iter().product();
    ensure!(n_values == expected, "tensor `{name}`: {n_values} values for shape {shape:?}, expected {expected}");
    Ok(TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(data_type as i32),
        dims: shape.iter().map(|&dim| dim as i64).collect(),
        raw_data: Some(raw.into()),
        ..Default::default()
    })
}
