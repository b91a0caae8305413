//! A tensor of the engine, of any element type, shared without copying.

use super::convert;
use super::vectors::vectorized;
use crate::data::Array;
use crate::onnx::inputs::InputSpec;
use crate::onnx::proto::TensorProto;
use anyhow::{Context, Result};
use std::sync::Arc;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ndarray::ArrayD;

/// A tensor of the engine. Clones share the values.
#[derive(Clone, Debug)]
pub struct Value(pub(super) Arc<Tensor>);

impl Value {
    /// Converts `array`, after a check against its input.
    ///
    /// # Errors
    /// If the input does not accept the shape.
    pub fn of_array(array: &Array, input: &InputSpec) -> Result<Value> {
        Ok(Value(convert::to_tract(array, input)?.into_arc_tensor()))
    }

    /// Returns a float32 tensor from values in row-major order.
    ///
    /// # Errors
    /// If the number of values does not match the shape.
    pub fn from_f32(shape: &[usize], values: Vec<f32>) -> Result<Value> {
        let array = ArrayD::from_shape_vec(shape, values)?;
        Ok(Value(array.into_tensor().into_arc_tensor()))
    }

    /// Applies `f` to each value; a tensor that is not float32 is returned unchanged.
    ///
    /// # Errors
    /// If there is no memory for the result.
    pub fn map_f32(&self, f: impl Fn(f32) -> f32) -> Result<Value> {
        let Some(values) = self.f32s() else { return Ok(self.clone()) };
        // SAFETY: every value is written before any is read.
        let mut tensor = unsafe { Tensor::uninitialized::<f32>(self.shape())? };
        let mut plain = tensor.try_as_plain_ram_mut()?;
        let results = plain.as_slice_mut::<f32>()?;
        vectorized(|| results.iter_mut().zip(values).for_each(|(to, &x)| *to = f(x)));
        Ok(Value(tensor.into_arc_tensor()))
    }

    /// As [`Value::map_f32`], in place where the values are not shared.
    ///
    /// # Errors
    /// If there is no memory for a copy of shared values.
    pub fn into_mapped_f32(mut self, f: impl Fn(f32) -> f32) -> Result<Value> {
        if self.f32s().is_none() {
            return Ok(self);
        }
        let Some(tensor) = Arc::get_mut(&mut self.0) else { return self.map_f32(f) };
        let mut plain = tensor.try_as_plain_ram_mut()?;
        let values = plain.as_slice_mut::<f32>()?;
        vectorized(|| values.iter_mut().for_each(|x| *x = f(*x)));
        Ok(self)
    }

    /// Changes float32 values, in place unless they are shared.
    ///
    /// # Errors
    /// If there is no memory for a copy.
    pub fn update_f32(&mut self, f: impl FnOnce(&mut [f32])) -> Result<()> {
        if self.f32s().is_some() {
            let tensor = Arc::make_mut(&mut self.0);
            f(tensor.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?);
        }
        Ok(())
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    /// Returns the values in row-major order, where they are float32.
    pub fn f32s(&self) -> Option<&[f32]> {
        convert::as_f32(&self.0)
    }

    /// Returns the values as float32, converted from integers and booleans.
    ///
    /// # Errors
    /// If they are not numbers.
    pub fn to_f32s(&self) -> Result<Vec<f32>> {
        convert::to_f32(&self.0)
    }

    /// Returns the element type's number in `TensorProto.DataType`.
    pub fn data_type(&self) -> Option<i32> {
        convert::data_type(self.0.datum_type())
    }

    /// Whether both share the same memory.
    pub fn is(&self, other: &Value) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the tensor as an ONNX initializer.
    ///
    /// # Errors
    /// If initializers cannot have its element type.
    pub fn to_proto(&self, name: &str) -> Result<TensorProto> {
        let data_type = self.data_type();
        let data_type = data_type.with_context(|| format!("tensor `{name}` has no ONNX type"))?;
        let plain = convert::without_symbols(self.0.clone())?;
        let bytes = plain.as_plain_ram().context("internal error: a tensor without plain values")?.as_bytes().to_vec();
        Ok(TensorProto {
            name: Some(name.to_string()),
            data_type: Some(data_type),
            dims: self.shape().iter().map(|&dim| dim as i64).collect(),
            raw_data: Some(bytes.into()),
            ..Default::default()
        })
    }
}
