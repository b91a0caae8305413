//! The mapping from values of a tensor to scales.

use super::QuantParams;
use crate::diag::count;
use anyhow::{Context, Result, ensure};
use std::ops::Range;

/// The division of a tensor into parts with one scale each: the whole tensor, the slices of an axis, or blocks along an
/// axis. Parts are in row-major order of the tensor of scales.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleLayout {
    /// Number of scales.
    pub n: usize,
    /// Number of values in the tensor.
    n_values: usize,
    /// Length of the axis.
    dim: usize,
    /// Values per position of the axis.
    inner: usize,
    block: Option<usize>,
}

/// Returns the shape of the scales for a tensor of `shape`. The last block along the axis may be shorter.
pub fn scale_shape(shape: &[usize], axis: Option<usize>, block: Option<usize>) -> Vec<usize> {
    match (axis, block) {
        (None, _) => Vec::new(),
        (Some(axis), None) => shape.get(axis).copied().into_iter().collect(),
        (Some(axis), Some(block)) => {
            let blocks = |(i, &dim): (usize, &usize)| {
                if i == axis { dim.div_ceil(block.max(1)) } else { dim }
            };
            shape.iter().enumerate().map(blocks).collect()
        }
    }
}

impl ScaleLayout {
    /// Returns the layout for a tensor of `shape` with one scale per `block` values along `axis`. Without `axis` there
    /// is one scale; without `block`, one scale per position of the axis.
    ///
    /// # Panics
    /// If the tensor has no such axis.
    pub fn of(shape: &[usize], axis: Option<usize>, block: Option<usize>) -> ScaleLayout {
        let n = scale_shape(shape, axis, block).iter().product();
        let (dim, inner) = match axis {
            Some(axis) => (shape[axis].max(1), shape[axis + 1..].iter().product::<usize>().max(1)),
            None => (1, usize::MAX),
        };
        let block = axis.and(block).map(|block| block.max(1));
        ScaleLayout { n, n_values: shape.iter().product(), dim, inner, block }
    }

    /// Returns the layout for a Q/DQ node: a tensor of `shape`, scales of shape `scales`, and the node's `axis` and
    /// `block_size`.
    ///
    /// # Errors
    /// If the shapes and attributes do not fit together.
    pub fn of_node(shape: &[usize], scales: &[usize], axis: i64, block_size: usize) -> Result<ScaleLayout> {
        let n_scales: usize = scales.iter().product();
        if block_size == 0 && n_scales == 1 {
            return Ok(ScaleLayout::of(shape, None, None));
        }
        let position = if axis < 0 { axis + shape.len() as i64 } else { axis };
        let position = usize::try_from(position).ok().filter(|&position| position < shape.len());
        let position =
            position.with_context(|| format!("axis is {axis}, expected an axis of a tensor of shape {shape:?}"))?;
        let block = (block_size > 0).then_some(block_size);
        let expected = scale_shape(shape, Some(position), block);
        match block {
            None => ensure!(
                n_scales == shape[position],
                "{n_scales} scales, expected {} for axis {axis} of a tensor of shape {shape:?}",
                shape[position]
            ),
            Some(_) => ensure!(
                scales == expected,
                "scales have the shape {scales:?}, expected {expected:?} for blocks of {block_size}"
            ),
        }
        Ok(ScaleLayout::of(shape, Some(position), block))
    }

    /// Calls `f` for each run of consecutive values with one scale, in order. Its arguments are the index of the scale
    /// and the positions of the values.
    pub fn for_each_run(&self, mut f: impl FnMut(usize, Range<usize>)) {
        let inner = self.inner.min(self.n_values.max(1));
        if self.block.is_some() {
            return (0..self.n_values).for_each(|position| f(self.scale_of(position), position..position + 1));
        }
        for start in (0..self.n_values).step_by(self.dim * inner) {
            (0..self.dim).for_each(|along| f(along, start + along * inner..start + (along + 1) * inner));
        }
    }

    /// Returns the values of each scale, in the order of the tensor.
    pub fn by_scale(&self, values: &[f32]) -> Vec<Vec<f32>> {
        let mut by_scale = vec![Vec::with_capacity(values.len() / self.n.max(1)); self.n];
        self.for_each_run(|scale, run| by_scale[scale].extend_from_slice(&values[run]));
        by_scale
    }

    /// Returns the index of the scale of the value at `position`.
    pub fn scale_of(&self, position: usize) -> usize {
        let along = position / self.inner % self.dim;
        match self.block {
            None => along,
            Some(block) => {
                let outer = position / self.inner / self.dim;
                (outer * self.dim.div_ceil(block) + along / block) * self.inner + position % self.inner
            }
        }
    }
}

/// The quantization parameters of a tensor, one per scale.
pub struct TensorParams<'a> {
    layout: ScaleLayout,
    params: &'a [QuantParams],
}

impl<'a> TensorParams<'a> {
    /// Assigns `params` to the scales of `layout`.
    ///
    /// # Errors
    /// If the numbers of parameters and scales differ.
    pub fn new(layout: ScaleLayout, params: &'a [QuantParams]) -> Result<TensorParams<'a>> {
        ensure!(params.len() == layout.n, "has {} scales, expected {}", params.len(), layout.n);
        Ok(TensorParams { layout, params })
    }

    /// Quantizes `values` in row-major order.
    ///
    /// # Errors
    /// If the number of values is not the tensor's.
    pub fn quantize(&self, values: &[f32]) -> Result<Vec<i32>> {
        let (n, expected) = (values.len(), self.layout.n_values);
        ensure!(n == expected, "has {}, expected {expected}", count(n, "value"));
        let mut integers = Vec::with_capacity(n);
        self.layout.for_each_run(|scale, run| {
            let params = &self.params[scale];
            integers.extend(values[run].iter().map(|x| params.quantize(*x)));
        });
        Ok(integers)
    }

    /// Dequantizes integers in row-major order. Integers outside the grid are clamped.
    pub fn dequantize(&self, integers: &[i32]) -> Vec<f32> {
        let mut values = Vec::with_capacity(integers.len());
        self.layout.for_each_run(|scale, run| {
            let params = &self.params[scale];
            values.extend(integers[run].iter().map(|q| params.dequantize((*q).clamp(params.q_min, params.q_max))));
        });
        values
    }
}
