//! Integer tensors of every width, and the scales of Q/DQ in every float type.

use super::proto::TensorProto;
use super::tensor::{is_external, shape};
use anyhow::{Result, bail, ensure};
use half::{bf16, f16};

/// Names of `TensorProto.DataType`, by number.
const NAMES: [&str; 27] = [
    "undefined", "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "double",
    "uint32", "uint64", "complex64", "complex128", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2",
    "float8e5m2fnuz", "uint4", "int4", "float4e2m1", "float8e8m0", "uint2", "int2",
];

/// Returns the ONNX name of an element type, in lower case.
pub fn type_name(data_type: i32) -> &'static str {
    usize::try_from(data_type).ok().and_then(|n| NAMES.get(n)).copied().unwrap_or("unknown")
}

/// Returns the number of the element type with this name, in lower case.
pub fn type_number(name: &str) -> Option<i32> {
    NAMES.iter().position(|known| *known == name).map(|n| n as i32)
}

/// Returns the names of all element types, without `undefined`.
pub fn type_names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().skip(1).copied()
}

/// Returns the least and the largest value of an integer type with 2 to 16 bits; `None` for other types.
pub fn integer_range(data_type: i32) -> Option<[i32; 2]> {
    let (bits, signed) = match data_type {
        2 => (8, false),
        3 => (8, true),
        4 => (16, false),
        5 => (16, true),
        21 => (4, false),
        22 => (4, true),
        25 => (2, false),
        26 => (2, true),
        _ => return None,
    };
    Some(if signed { [-(1 << (bits - 1)), (1 << (bits - 1)) - 1] } else { [0, (1 << bits) - 1] })
}

/// Returns the values of an integer tensor with 2 to 32 bits, in row-major order. For 8-bit and 4-bit floats it returns
/// the bits. The sign bit of formats with a negative zero is cleared, so that both zeros are 0.
///
/// Source of the packing: `onnx.proto`, `TensorProto.raw_data` and `int32_data` (two 4-bit values per
/// byte, the first in the low bits).
///
/// # Errors
/// If the type is another, the data is in an external file, or the number of values does not match the shape.
pub fn integer_values(tensor: &TensorProto) -> Result<Vec<i32>> {
    let n_values: usize = shape(tensor)?.iter().product();
    ensure!(!is_external(tensor), "data are in an external file, expected them in the model");
    let data_type = tensor.data_type();
    let bits = match data_type {
        25 | 26 => 2,
        21..=23 => 4,
        2 | 3 | 9 | 17..=20 => 8,
        4 | 5 => 16,
        6 => 32,
        _ => bail!("element type is {}, expected an integer", type_name(data_type)),
    };
    let n_bytes = n_values.saturating_mul(bits).div_ceil(8);
    let bytes: Vec<u8> = match &tensor.raw_data {
        Some(raw) => raw.to_vec(),
        None => {
            let width = bits.div_ceil(8);
            let stored = tensor.int32_data.iter();
            stored.flat_map(|value| value.to_le_bytes().into_iter().take(width)).collect()
        }
    };
    ensure!(bytes.len() == n_bytes, "holds {} bytes, expected {n_bytes} for its shape", bytes.len());
    let signed = matches!(data_type, 3 | 5 | 6 | 22 | 26);
    let mut values = Vec::with_capacity(n_values);
    for i in 0..n_values {
        let bits_of = match bits {
            32 => word(&bytes, 4 * i, 4),
            16 => word(&bytes, 2 * i, 2),
            8 => word(&bytes, i, 1),
            _ => (word(&bytes, i * bits / 8, 1) >> (i * bits % 8)) & ((1 << bits) - 1),
        };
        let unused = 32 - bits as u32;
        values.push(match (signed, data_type) {
            (true, _) => (bits_of << unused).cast_signed() >> unused,
            (false, 17 | 19) => (bits_of & 0x7f).cast_signed(),
            (false, 23) => (bits_of & 0x7).cast_signed(),
            (false, _) => bits_of.cast_signed(),
        });
    }
    Ok(values)
}

fn word(bytes: &[u8], at: usize, n_bytes: usize) -> u32 {
    let part = bytes.iter().skip(at).take(n_bytes).rev();
    part.fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// Returns the values of a float32, float16 or bfloat16 tensor, in row-major order. The conversion is exact.
///
/// # Errors
/// As [`integer_values`].
pub fn scale_values(tensor: &TensorProto) -> Result<Vec<f32>> {
    let data_type = tensor.data_type();
    if data_type == 1 {
        return super::tensor::f32_values(tensor);
    }
    ensure!(
        matches!(data_type, 10 | 16),
        "element type is {}, expected float, float16 or bfloat16",
        type_name(data_type)
    );
    let bits = integer_values(&TensorProto { data_type: Some(4), ..tensor.clone() })?;
    let value = |bits: i32| match data_type {
        16 => bf16::from_bits(bits as u16).to_f32(),
        _ => f16::from_bits(bits as u16).to_f32(),
    };
    Ok(bits.into_iter().map(value).collect())
}
