//! Integer tensors of every width, and the scales of Q/DQ in every float type.

use super::data_type::{DataType, TypeKind, type_name};
use super::proto::TensorProto;
use super::tensor::{is_external, shape};
use anyhow::{Result, bail, ensure};
use half::{bf16, f16};

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
    let of_type = DataType::of(data_type).filter(|of_type| match of_type.kind() {
        TypeKind::Signed => of_type.bits() <= 32,
        TypeKind::Unsigned | TypeKind::Bool => of_type.bits() <= 16,
        TypeKind::Float => of_type.bits() <= 8 && *of_type != DataType::Float8E8m0,
        TypeKind::Complex | TypeKind::String => false,
    });
    let Some(of_type) = of_type else { bail!("element type is {}, expected an integer", type_name(data_type)) };
    let (bits, signed) = (of_type.bits(), of_type.kind() == TypeKind::Signed);
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
    let mut values = Vec::with_capacity(n_values);
    for i in 0..n_values {
        let bits_of = match bits {
            32 => word(&bytes, 4 * i, 4),
            16 => word(&bytes, 2 * i, 2),
            8 => word(&bytes, i, 1),
            _ => (word(&bytes, i * bits / 8, 1) >> (i * bits % 8)) & ((1 << bits) - 1),
        };
        let unused = 32 - bits as u32;
        values.push(match of_type {
            _ if signed => (bits_of << unused).cast_signed() >> unused,
            DataType::Float8E4m3fn | DataType::Float8E5m2 => (bits_of & 0x7f).cast_signed(),
            DataType::Float4E2m1 => (bits_of & 0x7).cast_signed(),
            _ => bits_of.cast_signed(),
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
        "element type is {}, expected float32, float16 or bfloat16",
        type_name(data_type)
    );
    let bits = integer_values(&TensorProto { data_type: Some(4), ..tensor.clone() })?;
    let value = |bits: i32| match data_type {
        16 => bf16::from_bits(bits as u16).to_f32(),
        _ => f16::from_bits(bits as u16).to_f32(),
    };
    Ok(bits.into_iter().map(value).collect())
}
