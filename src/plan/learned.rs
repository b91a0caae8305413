//! Learned integers, as differences from the nearest integers.

use super::weight::values_of;
use super::{PlannedWeight, QuantPlan};
use crate::onnx::edit::{ModelEdit, NewValues};
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::GraphProto;
use crate::quant::{ScaleLayout, TensorParams};
use anyhow::Result;

impl PlannedWeight {
    /// Returns the nearest integers of the weight's values in `graph`. Fails if the graph has no such weight.
    pub(super) fn nearest(&self, graph: &GraphProto) -> Result<Vec<i32>> {
        let (shape, values) = values_of(graph, &self.quantizer)?;
        let layout = ScaleLayout::of(&shape, self.quantizer.axis, self.quantizer.block);
        TensorParams::new(layout, &self.params)?.quantize(&values)
    }

    /// Returns the difference of each integer from the nearest integer of the weight's value in `graph`.
    ///
    /// # Errors
    /// If the graph has no such weight.
    pub fn differences(&self, graph: &GraphProto) -> Result<Vec<i32>> {
        let nearest = self.nearest(graph)?;
        Ok(self.integers.iter().zip(nearest).map(|(q, nearest)| q - nearest).collect())
    }
}

impl QuantPlan {
    /// Returns edits that give each weight with learned rounding its dequantized values, so that nearest rounding gives
    /// the same integers. `graph` is the graph to quantize. A weight that other nodes read in float keeps its values.
    pub fn learned_weights(&self, graph: &GraphProto) -> Vec<ModelEdit> {
        let index = GraphIndex::new(graph);
        let learned = self.weights.iter().filter(|weight| {
            let quantizer = &weight.quantizer;
            weight.learned && index.has_only(&quantizer.tensor, quantizer.edges.len())
        });
        let edit = |weight: &PlannedWeight| NewValues {
            tensor: weight.quantizer.tensor.clone(),
            values: weight.dequantized(),
        };
        learned.map(edit).map(ModelEdit::ReplaceValues).collect()
    }
}
