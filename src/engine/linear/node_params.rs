//! Scales and zero points of a node, and what they make of values.

use crate::quant::{Codes, QuantParams, ScaleLayout};
use anyhow::{Result, ensure};
use tract_onnx::prelude::DatumType;

/// Lowest and highest value of an integer type that QuantizeLinear makes.
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
    /// Zero points are 0 where there are none; `bounds` are the lowest and the highest integer.
    ///
    /// # Errors
    /// If there are not as many zero points as scales, or none at all.
    pub fn new(scales: &[f32], zero_points: Option<&[i32]>, bounds: [i32; 2]) -> Result<NodeParams> {
        let n_zero_points = zero_points.map_or(scales.len(), <[i32]>::len);
        ensure!(
            n_zero_points == scales.len() && !scales.is_empty(),
            "{} scales and {n_zero_points} zero points, expected as many of both",
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

    /// The integers for `x`, each as `narrow` gives it.
    pub fn quantize<T>(&self, layout: &ScaleLayout, x: &[f32], narrow: impl Fn(i32) -> T) -> Vec<T> {
        match &self.params[..] {
            [params] => x.iter().map(|x| narrow(params.quantize_fast(*x))).collect(),
            params => {
                let params = |i: usize| &params[layout.scale_of(i)];
                x.iter().enumerate().map(|(i, x)| narrow(params(i).quantize_fast(*x))).collect()
            }
        }
    }

    /// The values of the integers that `widen` gives for `q`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_and_zero_points_are_as_many() {
        assert!(NodeParams::new(&[1.0, 2.0], Some(&[0]), [0, 255]).is_err());
        assert!(NodeParams::new(&[], None, [0, 255]).is_err());
    }

    #[test]
    fn values_are_divided_rounded_half_to_even_and_saturated() {
        let node_params = NodeParams::new(&[0.5], Some(&[3]), [0, 15]).unwrap();
        let single = ScaleLayout::of(&[8], None, None);
        let x = [0.25, 0.75, -0.25, -1e9, 1e9, f32::INFINITY, 6.0, f32::NAN];
        let q = node_params.quantize(&single, &x, |q| q as u8);
        assert_eq!(q, [3, 5, 3, 0, 15, 15, 15, 3]);
        let y = node_params.dequantize(&single, &q, i32::from);
        assert_eq!(y, [0.0, 1.0, 0.0, -1.5, 6.0, 6.0, 6.0, 0.0]);
        let widest = NodeParams::new(&[1.0], Some(&[1]), [i32::MIN, i32::MAX]).unwrap();
        assert!(widest.dequantize(&single, &[i32::MIN], |q| q)[0] < -2e9);
    }
}
