//! The quantization parameters of a tensor, in the forms that export formats need.

use super::schema::{Encoding, OneOrMany};
use crate::diag::{count, none_of};
use crate::onnx::graph::Edge;
use crate::onnx::node::node_name;
use crate::onnx::proto::GraphProto;
use crate::quant::{Codes, QuantParams, ScaleLayout, scale_shape};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// Name of HiSilicon NNIE's logarithmic codes. Their scale is the largest value.
pub(super) const NNIE_CODES: &str = "nnie8";

/// Integer types of quantized values: name, bits, signed.
const DTYPES: [(&str, u32, bool); 8] = [
    ("int4", 4, true),
    ("uint4", 4, false),
    ("int8", 8, true),
    ("uint8", 8, false),
    ("int16", 16, true),
    ("uint16", 16, false),
    ("int32", 32, true),
    (NNIE_CODES, 8, true),
];

impl Encoding {
    /// Checks that the numbers are consistent, before other functions compute with them.
    ///
    /// # Errors
    /// If the numbers are not consistent. The message names the key.
    pub fn check(&self) -> Result<()> {
        ensure!(
            DTYPES.iter().any(|(name, ..)| *name == self.output_dtype),
            none_of(
                format_args!("output_dtype is `{}`", self.output_dtype),
                &self.output_dtype,
                DTYPES.map(|(name, ..)| name)
            )
        );
        let scales = self.y_scale.as_slice();
        ensure!(
            !scales.is_empty() && scales.iter().all(|scale| scale.is_normal() && *scale > 0.0),
            "y_scale is not one or more positive numbers"
        );
        let n_zero_points = self.y_zero_point.as_slice().len();
        ensure!(
            n_zero_points == 1 || n_zero_points == scales.len(),
            "y_zero_point has {}, expected 1 or {}",
            count(n_zero_points, "number"),
            scales.len()
        );
        ensure!(
            self.is_per_channel() == self.axis.is_some(),
            "y_scale is a list without an axis, or one number with an axis"
        );
        let [q_min, q_max] = self.q_range;
        ensure!(q_min < q_max, "q_range is [{q_min}, {q_max}], expected two numbers in ascending order");
        Ok(())
    }

    /// Returns the map from the values of a tensor of `shape` to their scales.
    ///
    /// # Errors
    /// If the scales do not fit the shape.
    pub fn layout_of(&self, shape: &[usize]) -> Result<ScaleLayout> {
        let (axis, n) = (self.axis, self.n_scales());
        let fits = axis.is_none_or(|axis| axis < shape.len());
        let slices = fits.then(|| ScaleLayout::of(shape, axis, self.block_size));
        slices.filter(|slices| slices.n == n).with_context(|| {
            let along = axis.map_or(String::new(), |axis| format!(" along axis {axis}"));
            format!("shape is {shape:?}, expected one for {n} scales{along}")
        })
    }

    /// Returns the shape of the scales for a tensor of `shape`.
    pub fn scale_shape(&self, shape: &[usize]) -> Vec<usize> {
        scale_shape(shape, self.axis, self.block_size)
    }

    /// Returns the uses that read the quantized tensor: node and input positions.
    ///
    /// # Errors
    /// If the model lacks a use, or the node names are ambiguous.
    pub fn uses(&self, graph: &GraphProto) -> Result<Vec<Edge>> {
        let wanted: BTreeSet<&str> = self.consumers.iter().map(String::as_str).collect();
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        let mut edges = Vec::new();
        for (node_idx, node) in graph.node.iter().enumerate() {
            let name = node_name(node);
            if !wanted.contains(name) || !node.input.contains(&self.name) {
                continue;
            }
            *found.entry(name).or_default() += 1;
            let inputs = node.input.iter().enumerate();
            edges.extend(inputs.filter(|(_, i)| **i == self.name).map(|(slot, _)| (node_idx, slot)));
        }
        for name in wanted {
            let n = found.get(name).copied().unwrap_or(0);
            ensure!(
                n > 0,
                "tensor `{}`: the model has no node `{name}` that reads it, but the sidecar lists one",
                self.name
            );
            let listed = self.consumers.iter().filter(|consumer| *consumer == name).count();
            ensure!(
                n <= listed,
                "tensor `{}`: {n} nodes with this input are called `{name}`, expected unique names",
                self.name
            );
        }
        Ok(edges)
    }

    /// Returns the number of scales.
    pub fn n_scales(&self) -> usize {
        self.y_scale.as_slice().len()
    }

    /// Whether the scales lie along an axis.
    pub fn is_per_channel(&self) -> bool {
        matches!(self.y_scale, OneOrMany::Many(_))
    }

    /// Whether the integers are NNIE's codes.
    pub fn is_nnie(&self) -> bool {
        self.output_dtype == NNIE_CODES
    }

    /// Whether the integers are int32, as for biases.
    pub fn is_int32(&self) -> bool {
        self.output_dtype == "int32"
    }

    /// Returns the zero point of slice `channel`.
    pub fn zero_point_of(&self, channel: usize) -> i32 {
        let zero_points = self.y_zero_point.as_slice();
        zero_points.get(channel).or(zero_points.first()).copied().unwrap_or(0)
    }

    /// Returns scale (real units per step) and zero point of every slice.
    pub fn slices(&self) -> impl Iterator<Item = (f64, i32)> + '_ {
        let scales = self.y_scale.as_slice().iter().enumerate();
        scales.map(|(channel, &scale)| (f64::from(scale), self.zero_point_of(channel)))
    }

    /// Returns the quantization parameters of every slice.
    pub fn params(&self) -> Vec<QuantParams> {
        let ([q_min, q_max], scales) = (self.q_range, self.y_scale.as_slice().iter().enumerate());
        let codes = if self.is_nnie() { Codes::Nnie } else { Codes::Affine };
        let params = |(channel, &scale): (usize, &f32)| {
            let zero_point = self.zero_point_of(channel);
            QuantParams { scale, zero_point, q_min, q_max, codes }
        };
        scales.map(params).collect()
    }

    /// Returns the scale and the zero point of a tensor with one scale.
    ///
    /// # Errors
    /// If the tensor has several scales.
    pub fn per_tensor(&self) -> Result<(f64, i32)> {
        let mut slices = self.slices();
        match (slices.next(), slices.next(), self.is_per_channel()) {
            (Some(only), None, false) => Ok(only),
            _ => anyhow::bail!(
                "tensor `{}`: has {} scales along axis {}, expected one for the tensor",
                self.name,
                self.n_scales(),
                self.axis.unwrap_or(0)
            ),
        }
    }

    /// Returns the real values of the lowest and highest integer, one pair per slice.
    pub fn bounds(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let [q_min, q_max] = self.q_range.map(i64::from);
        self.slices().map(move |(scale, zero_point)| {
            if self.is_nnie() {
                return (-scale, scale);
            }
            let zero_point = i64::from(zero_point);
            (scale * (q_min - zero_point) as f64, scale * (q_max - zero_point) as f64)
        })
    }

    /// Returns [`Encoding::bounds`] of a tensor with one scale.
    ///
    /// # Errors
    /// As [`Encoding::per_tensor`].
    pub fn per_tensor_bounds(&self) -> Result<(f64, f64)> {
        self.per_tensor()?;
        Ok(self.bounds().next().unwrap_or((0.0, 0.0)))
    }

    /// Returns the scales of a symmetric int8 grid.
    ///
    /// # Errors
    /// If the integers are not int8, or a zero point is not 0.
    pub fn symmetric_int8(&self) -> Result<Vec<f64>> {
        let zero_point = self.slices().map(|(_, zero_point)| zero_point).find(|&zero| zero != 0);
        ensure!(
            self.output_dtype == "int8" && zero_point.is_none(),
            "tensor `{}`: is {} with zero point {}, expected int8 with zero point 0",
            self.name,
            self.output_dtype,
            zero_point.unwrap_or(0)
        );
        Ok(self.slices().map(|(scale, _)| scale).collect())
    }

    /// Returns the largest absolute value of a symmetric int8 grid with one scale: `127 * scale`.
    ///
    /// # Errors
    /// As [`Encoding::symmetric_int8`] and [`Encoding::per_tensor`].
    pub fn amax_int8(&self) -> Result<f64> {
        self.symmetric_int8()?;
        Ok(self.per_tensor()?.0 * 127.0)
    }

    /// Returns the bits of the stored integer, and whether it is signed.
    pub fn storage(&self) -> (u32, bool) {
        let dtype = DTYPES.iter().find(|(name, ..)| *name == self.output_dtype);
        dtype.map_or((u32::from(self.bits), true), |(_, bits, signed)| (*bits, *signed))
    }
}
