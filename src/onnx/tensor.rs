//! Reads the values of a `TensorProto` in each of its encodings, and makes tensors of values.
//!
//! Sizes are checked against the data before any allocation. Source of the encoding: `onnx.proto`, `TensorProto` (raw
//! data is little-endian; narrow types share `int32_data`).

use super::data_type::{element_bytes, type_name};
use super::mapped;
use super::proto::TensorProto;
use crate::diag::count;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use prost::Message;

pub use super::data_type::DataType;

/// Decodes the tensor of a `TensorProto` file. Its raw data shares the memory of `bytes`.
///
/// # Errors
/// If `bytes` is not a `TensorProto`.
pub fn decode(bytes: Bytes) -> Result<TensorProto> {
    TensorProto::decode(bytes).context("is not an ONNX tensor: it does not parse as `TensorProto`")
}

/// Returns the dimensions of a tensor, outermost first.
///
/// # Errors
/// If a dimension is negative, or the values do not fit in memory.
pub fn shape(tensor: &TensorProto) -> Result<Vec<usize>> {
    let dims = &tensor.dims;
    let shape: Option<Vec<usize>> = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let shape = shape.with_context(|| format!("shape is {dims:?}, expected no negative number"))?;
    let n_values = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    ensure!(n_values.is_some_and(|n| n <= isize::MAX as usize / 8), "shape is {dims:?}, too large to hold in memory");
    Ok(shape)
}

/// Returns the values of a float32 tensor, in row-major order.
///
/// # Errors
/// If the element type is another, the data is in an external file, or the number of values does not match the shape.
pub fn f32_values(tensor: &TensorProto) -> Result<Vec<f32>> {
    expect_type(tensor, DataType::Float)?;
    values(tensor, &tensor.float_data, f32::from_le_bytes)
}

/// Returns the values of an int64 tensor, in row-major order.
///
/// # Errors
/// As [`f32_values`].
pub fn i64_values(tensor: &TensorProto) -> Result<Vec<i64>> {
    expect_type(tensor, DataType::Int64)?;
    values(tensor, &tensor.int64_data, i64::from_le_bytes)
}

/// Returns the values of a float32, int32 or int64 tensor in double precision, in row-major order.
///
/// # Errors
/// As [`f32_values`].
pub fn f64_values(tensor: &TensorProto) -> Result<Vec<f64>> {
    if tensor.data_type() == DataType::Int64 as i32 {
        return Ok(i64_values(tensor)?.into_iter().map(|value| value as f64).collect());
    }
    if tensor.data_type() == DataType::Int32 as i32 {
        return Ok(values(tensor, &tensor.int32_data, i32::from_le_bytes)?.into_iter().map(f64::from).collect());
    }
    Ok(f32_values(tensor)?.into_iter().map(f64::from).collect())
}

/// Whether a bool tensor has a true value.
pub fn is_true(tensor: &TensorProto) -> bool {
    tensor.raw_data.as_deref().unwrap_or_default().contains(&1) || tensor.int32_data.contains(&1)
}

fn expect_type(tensor: &TensorProto, expected: DataType) -> Result<()> {
    let found = tensor.data_type.unwrap_or_default();
    ensure!(found == expected as i32, "element type is {}, expected {}", type_name(found), expected.name());
    Ok(())
}

fn values<T: Copy, const N: usize>(
    tensor: &TensorProto,
    typed: &[T],
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Vec<T>> {
    let n_values: usize = shape(tensor)?.iter().product();
    if is_external(tensor) {
        bail!("data are in an external file, expected them in the model");
    }
    let Some(raw) = &tensor.raw_data else {
        ensure!(typed.len() == n_values, "holds {}, expected {n_values} for its shape", count(typed.len(), "value"));
        return Ok(typed.to_vec());
    };
    ensure!(raw.len() == n_values * N, "holds {}, expected {} for its shape", count(raw.len(), "byte"), n_values * N);
    let (chunks, _) = raw.as_chunks::<N>();
    let values = chunks.iter().map(|&bytes| from_le_bytes(bytes)).collect();
    mapped::release_pages(raw);
    Ok(values)
}

/// Checks that the number of values of a tensor fits its shape. External data are not checked.
///
/// # Errors
/// If the number does not fit, or the tensor has no element type.
pub fn ensure_whole(tensor: &TensorProto) -> Result<()> {
    if is_external(tensor) {
        return Ok(());
    }
    let n: usize = shape(tensor)?.iter().product();
    let data_type = tensor.data_type();
    ensure!(data_type != 0, "has no element type");
    let of_type = DataType::of(data_type);
    let bits = of_type.map_or(8, DataType::bits);
    if let Some(raw) = &tensor.raw_data {
        ensure!(of_type != Some(DataType::String), "holds strings as raw bytes, expected `string_data`");
        let expected = if bits < 8 { (n * bits).div_ceil(8) } else { n.saturating_mul(bits / 8) };
        ensure!(raw.len() == expected, "holds {}, expected {expected} for its shape", count(raw.len(), "byte"));
        return Ok(());
    }
    let (found, expected) = match of_type {
        Some(DataType::Float) => (tensor.float_data.len(), n),
        Some(DataType::Complex64) => (tensor.float_data.len(), 2 * n),
        Some(DataType::Double) => (tensor.double_data.len(), n),
        Some(DataType::Complex128) => (tensor.double_data.len(), 2 * n),
        Some(DataType::Int64) => (tensor.int64_data.len(), n),
        Some(DataType::Uint32 | DataType::Uint64) => (tensor.uint64_data.len(), n),
        Some(DataType::String) => (tensor.string_data.len(), n),
        _ => (tensor.int32_data.len(), (n * bits.min(8)).div_ceil(8)),
    };
    ensure!(found == expected, "holds {}, expected {expected} for its shape", count(found, "value"));
    Ok(())
}

/// Returns the values of a tensor as little-endian bytes.
///
/// # Errors
/// If the number of values does not fit the shape, the data is in an external file, or an element does not take whole
/// bytes.
pub fn raw_bytes(tensor: &TensorProto) -> Result<Bytes> {
    ensure_whole(tensor)?;
    ensure!(!is_external(tensor), "data are in an external file, expected them in the model");
    if let Some(raw) = &tensor.raw_data {
        return Ok(raw.clone());
    }
    let bytes = |bytes: &dyn Fn() -> Vec<u8>| Ok(bytes().into());
    match (tensor.data_type(), element_bytes(tensor.data_type())) {
        (1, _) => bytes(&|| tensor.float_data.iter().flat_map(|v| v.to_le_bytes()).collect()),
        (11, _) => bytes(&|| tensor.double_data.iter().flat_map(|v| v.to_le_bytes()).collect()),
        (7, _) => bytes(&|| tensor.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect()),
        (12 | 13, Some(n)) => {
            bytes(&|| tensor.uint64_data.iter().flat_map(|v| v.to_le_bytes().into_iter().take(n)).collect())
        }
        (_, Some(n)) => bytes(&|| tensor.int32_data.iter().flat_map(|v| v.to_le_bytes().into_iter().take(n)).collect()),
        (other, None) => bail!("element type is {}, expected a numeric type of whole bytes", type_name(other)),
    }
}

/// Whether the data is in another file (`data_location` is EXTERNAL).
pub fn is_external(tensor: &TensorProto) -> bool {
    const EXTERNAL: i32 = 1;
    tensor.data_location == Some(EXTERNAL)
}

/// Returns a float32 tensor of `values`, stored raw.
///
/// # Errors
/// If the number of values does not match `shape`.
pub fn from_f32(name: &str, shape: &[usize], values: &[f32]) -> Result<TensorProto> {
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    from_raw(name, DataType::Float, shape, values.len(), raw)
}

/// Returns a tensor of integers with at most 32 bits, stored raw. A byte holds two 4-bit integers, the first in its low
/// half. Only the low bits of each value are used.
///
/// # Errors
/// As [`from_f32`].
pub fn from_integers(name: &str, data_type: DataType, shape: &[usize], values: &[i32]) -> Result<TensorProto> {
    let low_bytes = |n: usize| values.iter().flat_map(move |value| value.to_le_bytes().into_iter().take(n)).collect();
    let raw = match data_type {
        DataType::Uint4 | DataType::Int4 => {
            let pack = |pair: &[i32]| pair.iter().rev().fold(0, |byte, value| byte << 4 | (value & 0xf) as u8);
            values.chunks(2).map(pack).collect()
        }
        DataType::Uint8 | DataType::Int8 => low_bytes(1),
        DataType::Uint16 | DataType::Int16 => low_bytes(2),
        DataType::Int32 => low_bytes(4),
        _ => bail!("tensor `{name}`: type is {}, expected an integer type of 4, 8, 16 or 32 bits", data_type.name()),
    };
    from_raw(name, data_type, shape, values.len(), raw)
}

/// Returns an int64 tensor of `values`, stored raw.
///
/// # Errors
/// As [`from_f32`].
pub fn from_i64(name: &str, shape: &[usize], values: &[i64]) -> Result<TensorProto> {
    let raw = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    from_raw(name, DataType::Int64, shape, values.len(), raw)
}

fn from_raw(name: &str, data_type: DataType, shape: &[usize], n_values: usize, raw: Vec<u8>) -> Result<TensorProto> {
    let expected: usize = shape.iter().product();
    ensure!(
        n_values == expected,
        "tensor `{name}`: {} for shape {shape:?}, expected {expected}",
        count(n_values, "value")
    );
    Ok(TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(data_type as i32),
        dims: shape.iter().map(|&dim| dim as i64).collect(),
        raw_data: Some(raw.into()),
        ..Default::default()
    })
}
