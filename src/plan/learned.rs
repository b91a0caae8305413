//! Learned integers, by how far they are from the nearest ones.

use super::slices::Slices;
use super::weight::values_of;
use super::{PlannedWeight, QuantPlan};
use crate::onnx::edit::ModelEdit;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::GraphProto;
use crate::quant::QuantParams;
use anyhow::{Result, ensure};

/// How the values of a weight are laid on grids.
pub struct OnGrids<'a> {
    /// Dimensions.
    pub shape: &'a [usize],
    /// Axis of the scales.
    pub axis: Option<usize>,
    /// Values per scale along the axis, where there is a scale per block.
    pub block: Option<usize>,
    /// One per slice of the axis, one per block in row-major order, or one.
    pub params: &'a [QuantParams],
}

impl OnGrids<'_> {
    /// The parameters of each value.
    fn params(&self, n_values: usize) -> Result<Vec<&QuantParams>> {
        let rank = self.shape.len();
        ensure!(
            self.axis.is_none_or(|axis| axis < rank),
            "axis is {:?}, expected below {rank}",
            self.axis
        );
        let slices = Slices::of(self.shape, self.axis, self.block);
        let n = self.shape.iter().product::<usize>();
        ensure!(
            n == n_values,
            "has {n_values} values, expected {n} for the shape {:?}",
            self.shape
        );
        let n_scales = self.params.len();
        ensure!(n_scales == slices.n, "has {n_scales} scales, expected {}", slices.n);
        Ok((0..n).map(|position| &self.params[slices.of_value(position)]).collect())
    }

    /// The nearest integers.
    ///
    /// # Errors
    /// If there are not as many values and scales as the shape says.
    pub fn nearest(&self, values: &[f32]) -> Result<Vec<i32>> {
        let params = self.params(values.len())?.into_iter().zip(values);
        Ok(params.map(|(params, &value)| params.quantize(value)).collect())
    }

    /// What the nearest integers of `values` stand for when each is moved by its difference.
    ///
    /// # Errors
    /// If there are not as many values, scales and differences as the shape says.
    pub fn moved(&self, values: &[f32], differences: &[i32]) -> Result<Vec<f32>> {
        let n = differences.len();
        ensure!(n == values.len(), "has {n} differences, expected {}", values.len());
        let nearest = self.nearest(values)?;
        let moved = self.params(values.len())?.into_iter().zip(nearest.iter().zip(differences));
        let moved = moved.map(|(params, (nearest, &by))| {
            params.dequantize(nearest.saturating_add(by).clamp(params.q_min, params.q_max))
        });
        Ok(moved.collect())
    }
}

impl PlannedWeight {
    /// The nearest integers of the weight's values in `graph`.
    ///
    /// # Errors
    /// If the graph has no such weight.
    pub(super) fn nearest(&self, graph: &GraphProto) -> Result<Vec<i32>> {
        let (shape, values) = values_of(graph, &self.quantizer)?;
        let (axis, block) = (self.quantizer.axis, self.quantizer.block);
        OnGrids { shape: &shape, axis, block, params: &self.params }.nearest(&values)
    }

    /// By how much each integer differs from the nearest one of the weight's value in `graph`.
    ///
    /// # Errors
    /// If the graph has no such weight.
    pub fn differences(&self, graph: &GraphProto) -> Result<Vec<i32>> {
        let nearest = self.nearest(graph)?;
        Ok(self.integers.iter().zip(nearest).map(|(q, nearest)| q - nearest).collect())
    }
}

impl QuantPlan {
    /// What gives every weight of learned rounding the values that its integers stand for, so that rounding them again
    /// gives these; `graph` is the one that is quantized. A weight that other nodes read as it is stays so.
    pub fn learned_weights(&self, graph: &GraphProto) -> Vec<ModelEdit> {
        let index = GraphIndex::new(graph);
        let learned = self.weights.iter().filter(|weight| {
            let quantizer = &weight.quantizer;
            weight.learned && index.has_only(&quantizer.tensor, quantizer.edges.len())
        });
        let edit = |weight: &PlannedWeight| ModelEdit::ReplaceValues {
            tensor: weight.quantizer.tensor.clone(),
            values: weight.dequantized(),
        };
        learned.map(edit).collect()
    }
}
