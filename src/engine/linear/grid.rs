//! Which scale is for which value, and what it makes of it.

use crate::quant::{Codes, QuantParams};
use anyhow::{Context, Result, ensure};
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

/// Which of the scales is for which value of a tensor in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub enum Layout {
    /// One scale.
    Single,
    /// A scale for each position along an axis of `n`, with `inner` values behind each.
    Axis { n: usize, inner: usize },
    /// A scale for every `block_size` values along the axis; `n_blocks` of them.
    Blocks { n: usize, inner: usize, block_size: usize, n_blocks: usize },
}

impl Layout {
    /// For a tensor of shape `x` and scales of shape `scales`.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn new(x: &[usize], scales: &[usize], axis: i64, block_size: usize) -> Result<Layout> {
        let n_scales: usize = scales.iter().product();
        if block_size == 0 && n_scales == 1 {
            return Ok(Layout::Single);
        }
        let position = if axis < 0 { axis + x.len() as i64 } else { axis };
        let position = usize::try_from(position).ok().filter(|&position| position < x.len());
        let position = position
            .with_context(|| format!("axis is {axis}, expected one of a tensor of shape {x:?}"))?;
        let (n, inner) = (x[position], x[position + 1..].iter().product());
        if block_size == 0 {
            ensure!(
                n_scales == n,
                "{n_scales} scales, expected {n} for axis {axis} of a tensor of shape {x:?}"
            );
            return Ok(Layout::Axis { n, inner });
        }
        let mut expected = x.to_vec();
        expected[position] = n.div_ceil(block_size);
        ensure!(
            scales == expected,
            "scales have the shape {scales:?}, expected {expected:?} for blocks of {block_size}"
        );
        Ok(Layout::Blocks { n, inner, block_size, n_blocks: expected[position] })
    }

    /// Position of the scale for the value at `i`.
    fn scale_of(&self, i: usize) -> usize {
        match *self {
            Layout::Single => 0,
            Layout::Axis { n, inner } => i / inner % n,
            Layout::Blocks { n, inner, block_size, n_blocks } => {
                let (outer, at) = (i / inner / n, i / inner % n);
                (outer * n_blocks + at / block_size) * inner + i % inner
            }
        }
    }
}

/// Scales and zero points.
pub struct Grid {
    params: Vec<QuantParams>,
}

impl Grid {
    /// Zero points are 0 where there are none; `bounds` are the lowest and the highest integer.
    ///
    /// # Errors
    /// If there are not as many zero points as scales, or none at all.
    pub fn new(scales: &[f32], zero_points: Option<&[i32]>, bounds: [i32; 2]) -> Result<Grid> {
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
        Ok(Grid { params: params.collect() })
    }

    /// The integers for `x`, each as `narrow` gives it.
    pub fn quantize<T>(&self, layout: &Layout, x: &[f32], narrow: impl Fn(i32) -> T) -> Vec<T> {
        match (layout, &self.params[..]) {
            (Layout::Single, [params, ..]) => {
                x.iter().map(|x| narrow(nearest(params, *x))).collect()
            }
            (_, params) => {
                let q = |(i, x): (usize, &f32)| narrow(nearest(&params[layout.scale_of(i)], *x));
                x.iter().enumerate().map(q).collect()
            }
        }
    }

    /// The values of the integers that `widen` gives for `q`.
    pub fn dequantize<T: Copy>(
        &self,
        layout: &Layout,
        q: &[T],
        widen: impl Fn(T) -> i32,
    ) -> Vec<f32> {
        match (layout, &self.params[..]) {
            (Layout::Single, [params, ..]) => {
                q.iter().map(|q| params.dequantize(widen(*q))).collect()
            }
            (_, params) => {
                let x = |(i, q): (usize, &T)| params[layout.scale_of(i)].dequantize(widen(*q));
                q.iter().enumerate().map(x).collect()
            }
        }
    }
}

/// As [`QuantParams::quantize`], in steps that vectorize.
fn nearest(params: &QuantParams, x: f32) -> i32 {
    /// Adding and taking it away again rounds half to even, for numbers below 2^22.
    const ROUND: f32 = 12_582_912.0;
    let QuantParams { scale, zero_point, q_min, q_max, .. } = *params;
    let steps = if x.is_nan() { 0.0 } else { x / scale };
    let low = q_min.saturating_sub(zero_point) as f32;
    let high = q_max.saturating_sub(zero_point) as f32;
    (steps.max(low).min(high) + ROUND - ROUND) as i32 + zero_point
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn scales_lie_along_their_axis() {
        let positions = |x: &[usize], scales: &[usize], axis, block_size| -> Vec<usize> {
            let layout = Layout::new(x, scales, axis, block_size).unwrap();
            (0..x.iter().product()).map(|i| layout.scale_of(i)).collect()
        };
        assert_eq!(positions(&[2, 2], &[], 1, 0), [0; 4]);
        assert_eq!(positions(&[2, 3], &[3], 1, 0), [0, 1, 2, 0, 1, 2]);
        assert_eq!(positions(&[2, 3], &[3], -1, 0), [0, 1, 2, 0, 1, 2]);
        assert_eq!(positions(&[2, 3], &[2], 0, 0), [0, 0, 0, 1, 1, 1]);
        assert_eq!(positions(&[1, 2, 2], &[2], 1, 0), [0, 0, 1, 1]);
        assert_eq!(positions(&[2, 3], &[2, 2], 1, 2), [0, 0, 1, 2, 2, 3]);
        assert_eq!(positions(&[3, 2], &[2, 2], 0, 2), [0, 1, 0, 1, 2, 3]);
        assert_eq!(positions(&[3], &[1], 0, 3), [0, 0, 0]);
    }

    #[test]
    fn scales_that_do_not_fit_are_errors() {
        for (x, scales, axis, block_size) in [
            (&[2, 3][..], &[2][..], 1, 0),
            (&[2, 3], &[3], 2, 0),
            (&[2, 3], &[3], -3, 0),
            (&[], &[2], 0, 0),
            (&[2, 4], &[2], 1, 2),
            (&[2, 4], &[2, 3], 1, 2),
        ] {
            assert!(Layout::new(x, scales, axis, block_size).is_err(), "{x:?} {scales:?}");
        }
        assert!(Grid::new(&[1.0, 2.0], Some(&[0]), [0, 255]).is_err());
        assert!(Grid::new(&[], None, [0, 255]).is_err());
    }

    #[test]
    fn values_are_divided_rounded_half_to_even_and_saturated() {
        let grid = Grid::new(&[0.5], Some(&[3]), [0, 15]).unwrap();
        let x = [0.25, 0.75, -0.25, -1e9, 1e9, f32::INFINITY, 6.0, f32::NAN];
        let q = grid.quantize(&Layout::Single, &x, |q| q as u8);
        assert_eq!(q, [3, 5, 3, 0, 15, 15, 15, 3]);
        let y = grid.dequantize(&Layout::Single, &q, i32::from);
        assert_eq!(y, [0.0, 1.0, 0.0, -1.5, 6.0, 6.0, 6.0, 0.0]);
        let widest = Grid::new(&[1.0], Some(&[1]), [i32::MIN, i32::MAX]).unwrap();
        assert!(widest.dequantize(&Layout::Single, &[i32::MIN], |q| q)[0] < -2e9);
    }

    proptest! {
        #[test]
        fn the_fast_way_gives_the_same_integers(
            scale in 1e-3f32..1e3, zero_point in 0i32..65536, steps in -70_000i32..70_000, off in -1i32..2
        ) {
            // Half-way between two integers, and the floats on both sides.
            let tie = (steps as f32 + 0.5) * scale;
            let x = f32::from_bits((tie.to_bits() as i32 + off) as u32);
            let (q_min, q_max) = (0, 65535);
            let params = QuantParams { scale, zero_point, q_min, q_max, codes: Codes::Affine };
            prop_assert_eq!(nearest(&params, x), params.quantize(x));
        }
    }
}
