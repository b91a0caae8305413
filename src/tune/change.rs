//! A layer's weight, changed while its quantized input is known and its output is not.

use super::correct::DOUBT;
use super::grid::dequantized;
use super::layer::Layer;
use super::methods::Method;
use super::rounding::{self, MAX_ROW};
use super::scales::{self, Bounds, Problem, Rows};
use super::walk::Walk;
use crate::decide::PlannedWeight;
use crate::engine::Value;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor;
use crate::place::node_name;
use crate::scheme::ScaleName;
use anyhow::{Context, Result};

impl Walk<'_> {
    /// A node with a quantized weight: changes weight and bias as asked, and runs it. `runtime` are its
    /// inputs that are no constants, `float` its outputs in the float network.
    pub(super) fn layer(
        &mut self,
        node_idx: usize,
        node: &NodeProto,
        runtime: &[&str],
        weight_idx: usize,
        float: &[Vec<Value>],
    ) -> Result<Vec<Vec<Value>>> {
        let name = || format!("node `{}`", node_name(node));
        if self.methods.contains(Method::Rounding) || self.methods.contains(Method::Clip) {
            let bias = self.bias_of(node_idx, node);
            let centred = self.methods.contains(Method::Bias) && bias.is_some();
            let y: Vec<Value> = float.iter().filter_map(|y| y.first().cloned()).collect();
            self.change_weight(node_idx, node, weight_idx, &y, centred).with_context(name)?;
        }
        let weight = dequantized(&self.plan.weights[weight_idx])?;
        let step = self.step(node, runtime, Some(&weight))?;
        let inputs: Vec<&[Value]> =
            runtime.iter().map(|name| self.read(node_idx, node, name)).collect();
        let mut outputs =
            step.run(float.len(), |sample| inputs.iter().map(|v| v[sample].clone()).collect())?;
        // What rounding left to the bias is no matter of chance.
        let doubt = if self.plan.weights[weight_idx].learned { 1.0 } else { DOUBT };
        self.correct(node_idx, node, (float, &mut outputs), doubt)?;
        Ok(outputs)
    }

    /// Other scales and integers for the weight of a layer with the float outputs `y`; a weight that
    /// several layers share is changed for the first.
    fn change_weight(
        &mut self,
        node_idx: usize,
        node: &NodeProto,
        weight_idx: usize,
        y: &[Value],
        centred: bool,
    ) -> Result<()> {
        let planned = &self.plan.weights[weight_idx];
        let input = node.input.first().map_or("", String::as_str);
        let second = node.input.get(1).is_some_and(|name| *name == planned.site.tensor);
        if !second || self.changed.contains(&weight_idx) || self.is_constant(input) {
            return Ok(());
        }
        let n = self.n_tune.min(y.len());
        let b = &self.read(node_idx, node, input)[..n];
        let Some(layer) = b.first().and_then(|x| Layer::of(node, &planned.shape, x)) else {
            return Ok(());
        };
        let Some(scale_idx) = scale_indices(planned, &layer) else { return Ok(()) };
        let Some(initializer) = self.index.initializer(&planned.site.tensor) else { return Ok(()) };
        let values = tensor::f32_values(initializer)?;
        let at = |i: usize| layer.at(i / layer.n_in, i % layer.n_in);
        let w: Vec<f32> = (0..values.len()).map(|i| values[at(i)]).collect();
        let scales: Vec<f32> = planned.params.iter().map(|params| params.scale).collect();
        let (low, high) = (planned.params[0].q_min, planned.params[0].q_max);
        let problem = Problem {
            layer: &layer,
            w: &w,
            scales: &scales,
            scale_idx: &scale_idx,
            bounds: Bounds { low, high, pairs: planned.pairs },
            free: planned.qtype.scale == ScaleName::Float,
        };
        let data = (b, &y[..n]);
        let learned = self.methods.contains(Method::Rounding) && layer.n_in <= MAX_ROW;
        let rows = match learned {
            true => Some(rounding::round(&problem, data, centred)?),
            false if problem.free => scales::clip(&problem, data, centred),
            false => None,
        };
        let Some(Rows { integers, scales }) = rows else { return Ok(()) };
        let planned = &mut self.plan.weights[weight_idx];
        integers.iter().enumerate().for_each(|(i, &q)| planned.integers[at(i)] = q);
        for (params, scale) in planned.params.iter_mut().zip(scales) {
            params.scale = scale;
        }
        planned.learned |= learned;
        self.changed.insert(weight_idx);
        Ok(())
    }
}

/// The index of the scale of each weight, row by row; empty where each row has its own. `None` where rows
/// share scales in part, or 0 does not stand for 0.
fn scale_indices(planned: &PlannedWeight, layer: &Layer) -> Option<Vec<u32>> {
    if planned.params.is_empty() || planned.params.iter().any(|params| params.zero_point != 0) {
        return None;
    }
    let n = layer.n_out * layer.n_in;
    match (planned.site.axis, planned.site.block) {
        (Some(axis), None) if axis == layer.out_axis() => Some(Vec::new()),
        (Some(axis), Some(_)) if axis != layer.out_axis() => {
            let of_value = planned.scale_of_value();
            let at = |i: usize| layer.at(i / layer.n_in, i % layer.n_in);
            Some((0..n).map(|i| of_value(at(i)) as u32).collect())
        }
        _ => (planned.params.len() == 1).then(|| vec![0; n]),
    }
}
