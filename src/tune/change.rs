//! A layer's weight, changed while its quantized input is known and its output is not.

use super::grid::dequantized;
use super::layer::Layer;
use super::methods::Method;
use super::network::Network;
use super::rounding::{self, MAX_ROW};
use super::scales::{self, Bounds, Problem, Rows};
use super::variant::{Variant, run};
use super::walk::At;
use crate::decide::PlannedWeight;
use crate::engine::Value;
use crate::onnx::tensor;
use crate::place::node_name;
use crate::scheme::ScaleName;
use anyhow::{Context, Result};
use std::sync::Arc;

impl Variant {
    /// A node with a quantized weight: changes weight and bias as asked, and runs it.
    pub(super) fn layer(
        &mut self,
        net: &Network,
        at: &At,
        weight_idx: usize,
    ) -> Result<Vec<Vec<Value>>> {
        if self.methods.contains(Method::Rounding) || self.methods.contains(Method::Clip) {
            let name = || format!("node `{}`", node_name(at.node));
            self.change_weight(net, at, weight_idx).with_context(name)?;
        }
        let weight = dequantized(&self.plan.weights[weight_idx])?;
        let inputs: Vec<&[Value]> = at.runtime.iter().map(|name| self.read(at, name)).collect();
        let names = at.runtime.iter().zip(&inputs);
        let first: Vec<(&str, &Value)> =
            names.filter_map(|(name, values)| Some((*name, values.first()?))).collect();
        let step = net.step(at.node, &first, Some(&weight))?;
        let outputs = run(&step, &inputs, at.float.len() - self.first)?;
        self.correct(net, at, outputs)
    }

    /// Other scales and integers for the weight of a layer; a weight that several layers share is changed
    /// for the first.
    fn change_weight(&mut self, net: &Network, at: &At, weight_idx: usize) -> Result<()> {
        let node = at.node;
        let centred = self.methods.contains(Method::Bias) && self.bias_of(net, at).is_some();
        let planned = &self.plan.weights[weight_idx];
        let input = node.input.first().map_or("", String::as_str);
        let second = node.input.get(1).is_some_and(|name| *name == planned.site.tensor);
        if !second || self.changed.contains(&weight_idx) || net.is_constant(input) {
            return Ok(());
        }
        let y: Vec<Value> = at.first_outputs(net.n_tune).cloned().collect();
        let b = &self.read(at, input)[..y.len()];
        let Some(layer) = b.first().and_then(|x| Layer::of(node, &planned.shape, x)) else {
            return Ok(());
        };
        let Some(scale_idx) = scale_indices(planned, &layer) else { return Ok(()) };
        let Some(initializer) = net.index.initializer(&planned.site.tensor) else { return Ok(()) };
        let values = tensor::f32_values(initializer)?;
        let position = |i: usize| layer.at(i / layer.n_in, i % layer.n_in);
        let w: Vec<f32> = (0..values.len()).map(|i| values[position(i)]).collect();
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
        let data = (b, &y[..]);
        let learned = self.methods.contains(Method::Rounding) && layer.n_in <= MAX_ROW;
        let rows = match learned {
            true => Some(rounding::round(&problem, data, centred)?),
            false if problem.free => scales::clip(&problem, data, centred),
            false => None,
        };
        let Some(Rows { integers, scales }) = rows else { return Ok(()) };
        let planned = &mut self.plan.weights[weight_idx];
        let stored = Arc::make_mut(&mut planned.integers);
        integers.iter().enumerate().for_each(|(i, &q)| stored[position(i)] = q);
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
