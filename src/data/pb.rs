//! `TensorProto` files, the format of ONNX's test data.

use crate::diag::count;
use crate::foreign;
use crate::onnx::data_type::{DataType, type_name};
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::path::Path;

/// Reads a tensor and its element type. Raw data stay in the memory map.
///
/// # Errors
/// If the file is not a numeric tensor, or the number of values does not match the shape.
pub fn read(path: &Path) -> Result<(TensorProto, DataType)> {
    let file = foreign::open(path)?;
    ensure!(file.metadata()?.len() > 0, "is empty, expected an ONNX tensor");
    // SAFETY: the map is read-only and private to this process; as with every memory map, nobody else may truncate the
    // file while it is in use.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let tensor = tensor::decode(Bytes::from_owner(map))?;
    let data_type = tensor.data_type.unwrap_or_default();
    ensure!(data_type != 0, "is not an ONNX tensor: it has no element type");
    let element = DataType::of(data_type)
        .filter(|element| element.is_plain())
        .with_context(|| format!("tensor holds {}, expected numbers or booleans", type_name(data_type)))?;
    ensure!(!tensor::is_external(&tensor), "data are in an external file, expected in this file");
    let n_values: usize = tensor::shape(&tensor)?.iter().product();
    let held = match &tensor.raw_data {
        Some(raw) => {
            ensure!(
                raw.len() % element.size() == 0,
                "tensor holds {}, expected a multiple of {}",
                count(raw.len(), "byte"),
                element.size()
            );
            raw.len() / element.size()
        }
        None => match element {
            DataType::Float => tensor.float_data.len(),
            DataType::Double => tensor.double_data.len(),
            DataType::Int64 => tensor.int64_data.len(),
            DataType::Uint32 | DataType::Uint64 => tensor.uint64_data.len(),
            _ => tensor.int32_data.len(),
        },
    };
    ensure!(
        held == n_values,
        "tensor holds {}, expected {n_values} for its shape {:?}",
        count(held, "value"),
        tensor.dims
    );
    Ok((tensor, element))
}

/// Returns the little-endian bytes of `len` elements from element `first` on.
pub fn slice(tensor: &TensorProto, element: DataType, first: usize, len: usize) -> Bytes {
    fn pack<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N]) -> Bytes {
        values.iter().flat_map(|&value| bytes(value)).collect::<Vec<u8>>().into()
    }
    let (size, end) = (element.size(), first + len);
    if let Some(raw) = &tensor.raw_data {
        return raw.slice(first * size..end * size);
    }
    match element {
        DataType::Float => pack(&tensor.float_data[first..end], f32::to_le_bytes),
        DataType::Double => pack(&tensor.double_data[first..end], f64::to_le_bytes),
        DataType::Int64 => pack(&tensor.int64_data[first..end], i64::to_le_bytes),
        DataType::Uint64 => pack(&tensor.uint64_data[first..end], u64::to_le_bytes),
        DataType::Uint32 => pack(&tensor.uint64_data[first..end], |x| (x as u32).to_le_bytes()),
        DataType::Int32 => pack(&tensor.int32_data[first..end], i32::to_le_bytes),
        _ if size == 2 => pack(&tensor.int32_data[first..end], |x| (x as u16).to_le_bytes()),
        _ => pack(&tensor.int32_data[first..end], |x| (x as u8).to_le_bytes()),
    }
}
