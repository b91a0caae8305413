//! Scales and zero points of a node, and their arithmetic.

use crate::quant::{Codes, QuantParams, ScaleLayout};
use anyhow::{Result, ensure};
use tract_onnx::prelude::DatumType;

/// Returns the smallest and largest value of an integer type of QuantizeLinear.
pub fn bounds(integers: DatumType) -> Option<[i32; 2]> {
    Some(match integers {
        DatumType::U8 => [0, u8::MAX.into()],
        DatumType::I8 => [i8::MIN.into(), i8::MAX.into()],
        DatumType::U16 => [0, u16::MAX.into()],
        DatumType::I16 => [i16::MIN.into(), i16::MAX.into()],
        _ => return None,
    })
}

/// Scales and zero points.
pub struct NodeParams {
    params: Vec<QuantParams>,
}

impl NodeParams {
    /// Combines scales and zero points, which default to 0. `bounds` are the smallest and the largest integer. Fails if
    /// the numbers of scales and zero points differ, or there are none.
    pub fn new(scales: &[f32], zero_points: Option<&[i32]>, bounds: [i32; 2]) -> Result<NodeParams> {
        let n_zero_points = zero_points.map_or(scales.len(), <[i32]>::len);
        ensure!(
            n_zero_points == scales.len() && !scales.is_empty(),
            "{} scales and {n_zero_points} zero points, expected the same number of both",
            scales.len()
        );
        let [q_min, q_max] = bounds;
        let params = scales.iter().enumerate().map(|(i, &scale)| QuantParams {
            scale,
            zero_point: zero_points.and_then(|z| z.get(i)).copied().unwrap_or(0),
            q_min,
            q_max,
            codes: Codes::Affine,
        });
        Ok(NodeParams { params: params.collect() })
    }

    /// Quantizes `x`; `narrow` converts each integer.
    pub fn quantize<T>(&self, layout: &ScaleLayout, x: &[f32], narrow: impl Fn(i32) -> T) -> Vec<T> {
        match &self.params[..] {
            [params] => x.iter().map(|x| narrow(params.quantize_fast(*x))).collect(),
            params => {
                let params = |i: usize| &params[layout.scale_of(i)];
                x.iter().enumerate().map(|(i, x)| narrow(params(i).quantize_fast(*x))).collect()
            }
        }
    }

    /// Dequantizes `q`; `widen` converts each integer.
    pub fn dequantize<T: Copy>(&self, layout: &ScaleLayout, q: &[T], widen: impl Fn(T) -> i32) -> Vec<f32> {
        match &self.params[..] {
            [params] => q.iter().map(|q| params.dequantize(widen(*q))).collect(),
            params => {
                let params = |i: usize| &params[layout.scale_of(i)];
                q.iter().enumerate().map(|(i, q)| params(i).dequantize(widen(*q))).collect()
            }
        }
    }
}
