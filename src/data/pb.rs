//! `TensorProto` files, the format of ONNX's test data.

use crate::foreign;
use crate::onnx::data_type::{DataType, type_name};
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::path::Path;

/// Reads a tensor and its element type. Raw data stay in the memory map. Fails if the file is not a numeric tensor, or
/// the number of values does not match the shape.
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
        .with_context(|| format!("has the element type {}, expected numbers or booleans", type_name(data_type)))?;
    ensure!(!tensor::is_external(&tensor), "data are in an external file, expected in this file");
    tensor::ensure_whole(&tensor)?;
    Ok((tensor, element))
}
