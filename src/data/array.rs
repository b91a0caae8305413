//! Arrays, and the elements of stored arrays with their conversion to an input's element type.
//!
//! Values are never rescaled. A value that the target type cannot hold is an error.

use crate::diag::WithHint;
use crate::onnx::data_type::{DataType, type_name};
use crate::onnx::inputs::InputSpec;
use crate::statistics::KeptArray;
use anyhow::{Result, anyhow, bail, ensure};
use half::{bf16, f16};

/// Element types of inputs that arrays can feed.
const TYPES: [DataType; 6] =
    [DataType::Float, DataType::Uint8, DataType::Int8, DataType::Int32, DataType::Int64, DataType::Bool];
/// Their names.
const TYPE_NAMES: &str = "float32, uint8, int8, int32, int64 or bool";

/// Values of an array, in row-major order.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Values {
    F32(Vec<f32>),
    I64(Vec<i64>),
    I32(Vec<i32>),
    I8(Vec<i8>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

/// A dense array.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The values, as many as the shape has elements.
    pub values: Values,
}

impl Array {
    /// Converts the array to the form in which statistics keep it.
    pub fn to_kept_array(&self) -> KeptArray {
        fn bytes<T: Copy, const N: usize>(values: &[T], of: fn(T) -> [u8; N]) -> Vec<u8> {
            values.iter().flat_map(|value| of(*value)).collect()
        }
        let (data_type, bytes) = match &self.values {
            Values::F32(values) => (DataType::Float, bytes(values, f32::to_le_bytes)),
            Values::I64(values) => (DataType::Int64, bytes(values, i64::to_le_bytes)),
            Values::I32(values) => (DataType::Int32, bytes(values, i32::to_le_bytes)),
            Values::I8(values) => (DataType::Int8, bytes(values, i8::to_le_bytes)),
            Values::U8(values) => (DataType::Uint8, values.clone()),
            Values::Bool(values) => (DataType::Bool, bytes(values, |value| [u8::from(value)])),
        };
        KeptArray { data_type: data_type as i32, shape: self.shape.clone(), bytes }
    }

    /// Converts a kept array back: the inverse of [`Array::to_kept_array`].
    ///
    /// # Errors
    /// If the element type is not one of [`Values`].
    pub fn from_kept_array(kept: &KeptArray) -> Result<Array> {
        fn values<T, const N: usize>(bytes: &[u8], of: fn([u8; N]) -> T) -> Vec<T> {
            bytes.as_chunks::<N>().0.iter().map(|bytes| of(*bytes)).collect()
        }
        let KeptArray { data_type, shape, bytes } = kept;
        let values = match DataType::of(*data_type) {
            Some(DataType::Float) => Values::F32(values(bytes, f32::from_le_bytes)),
            Some(DataType::Int64) => Values::I64(values(bytes, i64::from_le_bytes)),
            Some(DataType::Int32) => Values::I32(values(bytes, i32::from_le_bytes)),
            Some(DataType::Int8) => Values::I8(values(bytes, i8::from_le_bytes)),
            Some(DataType::Uint8) => Values::U8(bytes.clone()),
            Some(DataType::Bool) => Values::Bool(bytes.iter().map(|byte| *byte != 0).collect()),
            _ => bail!("a saved sample is {}, expected {TYPE_NAMES}", type_name(*data_type)),
        };
        Ok(Array { shape: shape.clone(), values })
    }
}

/// The bytes of some elements, of a type that [`DataType::is_plain`].
pub struct Raw<'a> {
    pub element: DataType,
    pub is_big_endian: bool,
    pub bytes: &'a [u8],
}

/// An element's value.
enum ElementValue {
    Int(i128),
    Float(f64),
}

/// Returns the value in the low bits of `word`.
fn number(element: DataType, word: u64) -> ElementValue {
    match element {
        DataType::Bool => ElementValue::Int(i128::from(word != 0)),
        DataType::Int8 => ElementValue::Int(i128::from(word as i8)),
        DataType::Int16 => ElementValue::Int(i128::from(word as i16)),
        DataType::Int32 => ElementValue::Int(i128::from(word as i32)),
        DataType::Int64 => ElementValue::Int(i128::from(word as i64)),
        DataType::Float16 => ElementValue::Float(f16::from_bits(word as u16).to_f64()),
        DataType::Bfloat16 => ElementValue::Float(bf16::from_bits(word as u16).to_f64()),
        DataType::Float => ElementValue::Float(f64::from(f32::from_bits(word as u32))),
        DataType::Double => ElementValue::Float(f64::from_bits(word)),
        _ => ElementValue::Int(i128::from(word)),
    }
}

impl Raw<'_> {
    fn numbers(&self) -> impl Iterator<Item = ElementValue> + '_ {
        self.bytes.chunks_exact(self.element.size()).map(|bytes| {
            let mut word = [0u8; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            if self.is_big_endian {
                word[..bytes.len()].reverse();
            }
            number(self.element, u64::from_le_bytes(word))
        })
    }

    fn ints<T: TryFrom<i128>>(&self, type_name: &str) -> Result<Vec<T>> {
        let convert = |(idx, number): (usize, ElementValue)| {
            let (whole, shown) = match number {
                ElementValue::Int(value) => (Some(value), value.to_string()),
                // A float beyond i128 saturates; no target type holds it either.
                ElementValue::Float(value) => ((value.fract() == 0.0).then_some(value as i128), format!("{value:?}")),
            };
            match whole.and_then(|value| T::try_from(value).ok()) {
                Some(value) => Ok(value),
                None => bail!("value {shown} at position {idx}, expected a whole number in the range of {type_name}"),
            }
        };
        self.numbers().enumerate().map(convert).collect()
    }

    fn floats(&self) -> Result<Vec<f32>> {
        if self.element == DataType::Float && !self.is_big_endian {
            let (chunks, _) = self.bytes.as_chunks::<4>();
            return Ok(chunks.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect());
        }
        let convert = |(idx, number): (usize, ElementValue)| match number {
            ElementValue::Int(value) => Ok(value as f32),
            ElementValue::Float(value) => {
                let narrow = value as f32;
                ensure!(
                    narrow.is_finite() || !value.is_finite(),
                    "value {value:?} at position {idx}, expected a number in the range of float32"
                );
                Ok(narrow)
            }
        };
        self.numbers().enumerate().map(convert).collect()
    }

    /// Converts the values to the element type of an input. Fails if the type cannot hold a value: a fraction in an
    /// integer type, or a number out of range.
    pub fn convert(&self, data_type: i32) -> Result<Values> {
        Ok(match DataType::of(data_type) {
            Some(DataType::Float) => Values::F32(self.floats()?),
            Some(DataType::Uint8) if self.element == DataType::Uint8 => Values::U8(self.bytes.to_vec()),
            Some(DataType::Uint8) => Values::U8(self.ints("uint8")?),
            Some(DataType::Int8) => Values::I8(self.ints("int8")?),
            Some(DataType::Int32) => Values::I32(self.ints("int32")?),
            Some(DataType::Int64) => Values::I64(self.ints("int64")?),
            Some(DataType::Bool) => {
                let values: Vec<u8> = self.ints("bool")?;
                let beyond = values.iter().position(|&value| value > 1);
                if let Some(idx) = beyond {
                    bail!("value {} at position {idx}, expected 0 or 1 for bool", values[idx]);
                }
                Values::Bool(values.into_iter().map(|value| value == 1).collect())
            }
            _ => bail!("internal error: element type {data_type} is checked at opening"),
        })
    }
}

/// Fails if the element type of the input is not supported.
pub fn ensure_supported(input: &InputSpec) -> Result<()> {
    if TYPES.iter().any(|known| *known as i32 == input.data_type) {
        return Ok(());
    }
    let hint = if input.data_type == DataType::Float16 as i32 { "convert the model to float32 first" } else { "" };
    Err(anyhow!("input `{}` takes {}, expected {TYPE_NAMES}", input.name, type_name(input.data_type)).hint(hint))
}

/// Returns the shape of one sample, if the data for an input are an array of shape `found`; `None` if the array does
/// not fit the input.
pub fn sample_shape(found: &[usize], input: &InputSpec) -> Option<Vec<usize>> {
    let expected = &input.shape[..];
    let fits = |found: &[usize], first: usize| {
        let fits = |(axis, &n): (usize, &usize)| {
            expected.get(axis).is_some_and(|&expected| n == expected || n > 0 && input.is_open(axis))
        };
        found.len() + first == expected.len() && (first..).zip(found).all(fits)
    };
    match (found, expected) {
        ([_, rest @ ..], _) if fits(rest, 0) => Some(rest.to_vec()),
        ([], []) => Some(Vec::new()),
        (rest, [1, ..]) if fits(rest, 1) => Some([&[1], rest].concat()),
        ([_, rest @ ..], [batch, ..]) if fits(rest, 1) => Some([&[*batch], rest].concat()),
        _ => None,
    }
}

/// Returns the number of samples for an input in an array of shape `found`, and the shape of one sample.
///
/// # Errors
/// If the array does not fit: the message says what was found and expected. A hint says how to move a channel axis that
/// is in another place.
pub fn samples(found: &[usize], input: &InputSpec) -> Result<(usize, Vec<usize>)> {
    let mismatch = || {
        anyhow!(
            "array has shape {found:?}, expected for input `{}`: {}, or several samples along the first axis",
            input.name,
            input.expected()
        )
        .hint(transpose_hint(found, &input.shape))
    };
    let shape = sample_shape(found, input).ok_or_else(mismatch)?;
    let n_samples = match (found.len(), &shape[..]) {
        (rank, shape) if rank > shape.len() => found[0],
        (rank, shape) if rank < shape.len() => 1,
        (_, []) => 1,
        (_, [batch, ..]) => {
            let left_over = found[0].checked_rem(*batch).unwrap_or(found[0]);
            if left_over > 0 || *batch == 0 {
                return Err(anyhow!(
                    "array has {} entries along the first axis, input `{}` takes {batch} at a time: the last batch has {left_over}",
                    found[0],
                    input.name
                )
                .hint(format!(
                    "use a multiple of {batch}, or set another batch size with --shape if the model allows it"
                )));
            }
            found[0] / batch
        }
    };
    ensure!(n_samples > 0, "array has shape {found:?}, expected at least one sample");
    Ok((n_samples, shape))
}

/// Returns a hint to transpose an array whose channels are at the other end.
fn transpose_hint(found: &[usize], expected: &[usize]) -> &'static str {
    let (Some(image), [_, c, h, w]) = (found.get(found.len().saturating_sub(3)..), expected) else {
        return "";
    };
    match (image.len() == 3, found.len()) {
        (true, 4) if *image == [*h, *w, *c] => "numpy.transpose(array, (0, 3, 1, 2))",
        (true, 4) if *image == [*w, *c, *h] => "numpy.transpose(array, (0, 2, 3, 1))",
        _ => "",
    }
}
