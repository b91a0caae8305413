//! A layer's weight and bias, changed while its quantized input is known and its output is not.

use super::bias::correction;
use super::grid::{dequantized, out_channels};
use super::layer::Layer;
use super::methods::Method;
use super::rounding::{self, MAX_ROW};
use super::scales::{self, Bounds, Problem, Rows};
use super::walk::Walk;
use crate::decide::PlannedWeight;
use crate::engine::Value;
use crate::onnx::node::is_scaled;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor;
use crate::place::node_name;
use crate::scheme::ScaleName;
use anyhow::{Context, Result};
use rayon::prelude::*;

/// How far a mean error must stand out before it is corrected, in variances. With 1, squeezenet1_1 loses
/// 0.7 dB to corrections that a few samples asked for.
const DOUBT: f64 = 4.0;

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
        let y: Vec<Value> = float.iter().filter_map(|outputs| outputs.first().cloned()).collect();
        let with_bias = self.bias_of(node);
        let corrected = self.methods.contains(Method::Bias);
        if self.methods.contains(Method::Rounding) || self.methods.contains(Method::Clip) {
            let centred = corrected && with_bias.is_some();
            self.change_weight(node_idx, node, weight_idx, &y, centred).with_context(name)?;
        }
        let weight = dequantized(&self.plan.weights[weight_idx])?;
        let step = self.step(node, runtime, Some(&weight))?;
        let inputs: Vec<&[Value]> =
            runtime.iter().map(|name| self.read(node_idx, node, name)).collect();
        let mut outputs =
            step.run(float.len(), |sample| inputs.iter().map(|v| v[sample].clone()).collect())?;
        let channels = y.first().and_then(|y| out_channels(node, y));
        let (true, Some(bias), Some(channels)) = (corrected, with_bias, channels) else {
            return Ok(outputs);
        };
        let quantized: Vec<Value> =
            outputs.iter().filter_map(|outputs| outputs.first().cloned()).collect();
        let n = self.n_tune.min(y.len());
        // What rounding left to the bias is no matter of chance.
        let doubt = if self.methods.contains(Method::Rounding) { 1.0 } else { DOUBT };
        let by = correction(&channels, &y[..n], &quantized[..n], doubt);
        let by: Vec<f32> = by.iter().map(|&v| v as f32).collect();
        let bias = if bias.is_empty() { vec![0.0; channels.n_out] } else { bias };
        if bias.len() != channels.n_out || by.iter().any(|by| !by.is_finite()) {
            return Ok(outputs);
        }
        let shifted: Result<Vec<Value>> =
            quantized.par_iter().map(|value| channels.shift(value, &by)).collect();
        for (outputs, shifted) in outputs.iter_mut().zip(shifted?) {
            outputs[0] = shifted;
        }
        self.biases.insert(node_idx, bias.iter().zip(&by).map(|(b, by)| b + by).collect());
        Ok(outputs)
    }

    /// The node's bias, empty where it has none; `None` where it cannot have one or it is not plain.
    fn bias_of(&self, node: &NodeProto) -> Option<Vec<f32>> {
        if !matches!(node.op_type(), "Conv" | "ConvTranspose" | "Gemm") || is_scaled(node) {
            return None;
        }
        match node.input.get(2).filter(|name| !name.is_empty()) {
            None => Some(Vec::new()),
            Some(name) => {
                let values = tensor::f32_values(self.index.initializer(name)?).ok()?;
                values.iter().all(|value| value.is_finite()).then_some(values)
            }
        }
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
