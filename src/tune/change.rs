//! A layer's weight, changed while its quantized input is known and its output is not.

use super::bias_grid::Laid;
use super::correct::rebias;
use super::grid::dequantized;
use super::layer::Layer;
use super::methods::Method;
use super::network::Network;
use super::rounding::{self, Learned, MAX_ROW};
use super::scales::{self, Bounds, Problem, Rows};
use super::variant::{Variant, run};
use super::walk::At;
use crate::engine::Value;
use crate::onnx::node::node_name;
use crate::onnx::tensor;
use crate::plan::{PlannedBias, PlannedWeight};
use crate::quant::QuantParams;
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
        let mut learned = None;
        if self.methods.contains(Method::Rounding) || self.methods.contains(Method::Clip) {
            let name = || format!("node `{}`", node_name(at.node));
            learned = self.change_weight(net, at, weight_idx).with_context(name)?;
        }
        let outputs = self.run_layer(net, at, weight_idx)?;
        let (outputs, laid) = self.correct(net, at, outputs)?;
        match (learned, laid) {
            (Some(learned), Some(laid)) => self.make_up(net, at, weight_idx, learned, &laid),
            _ => Ok(outputs),
        }
    }

    /// Other integers, which make up for what the grid of the bias leaves, but not where it saturates; and what the
    /// layer makes with them.
    fn make_up(
        &mut self,
        net: &Network,
        at: &At,
        weight_idx: usize,
        (problem, mut learned): (Problem, Learned),
        laid: &Laid,
    ) -> Result<Vec<Vec<Value>>> {
        let around: Vec<Vec<f32>> = (0..laid.wanted.len()).map(|o| laid.around(o)).collect();
        let errors = around.iter().zip(&laid.wanted).map(|(around, wanted)| -> Vec<f64> {
            let errors = around.iter().map(|value| f64::from(value - wanted));
            errors.filter(|error| error.abs() <= f64::from(laid.grid.scale)).collect()
        });
        let chosen = learned.make_up(&problem, &errors.collect::<Vec<_>>());
        self.keep(weight_idx, &problem.layer, &learned.rows);
        let bias: Vec<f32> = around.iter().zip(chosen).map(|(around, i)| around[i]).collect();
        let mut outputs = self.run_layer(net, at, weight_idx)?;
        rebias(&laid.channels, &mut outputs, (&laid.stored, &bias))?;
        self.biases.insert(laid.edge, bias);
        Ok(outputs)
    }

    /// Runs a layer with its quantized weight; with the bias of the float network where a method is to correct it,
    /// else with the one on its grid.
    fn run_layer(&self, net: &Network, at: &At, weight_idx: usize) -> Result<Vec<Vec<Value>>> {
        let mut constants = vec![dequantized(&self.plan.weights[weight_idx])?];
        if !self.changes_biases() {
            let bias = self.bias_on_grid(at.node_idx);
            let stored = |bias: &PlannedBias| {
                tensor::from_f32(&bias.quantizer.tensor, &bias.shape, &bias.dequantized())
            };
            constants.extend(bias.map(stored).transpose()?);
        }
        let inputs: Vec<&[Value]> = at.runtime.iter().map(|name| self.read(at, name)).collect();
        let names = at.runtime.iter().zip(&inputs);
        let first: Vec<(&str, &Value)> =
            names.filter_map(|(name, values)| Some((*name, values.first()?))).collect();
        let step = net.step(at.node, &first, &constants)?;
        run(&step, &inputs, at.n_samples - self.first)
    }

    /// Other scales and integers for the weight of a layer; a weight that several layers share is changed
    /// for the first. Gives what was learned.
    fn change_weight(
        &mut self,
        net: &Network,
        at: &At,
        weight_idx: usize,
    ) -> Result<Option<(Problem, Learned)>> {
        let node = at.node;
        let centred = self.methods.contains(Method::Bias) && self.bias_of(net, at).is_some();
        let planned = &self.plan.weights[weight_idx];
        let input = node.input.first().map_or("", String::as_str);
        let second = node.input.get(1).is_some_and(|name| *name == planned.quantizer.tensor);
        if !second || self.changed.contains(&weight_idx) || net.is_constant(input) {
            return Ok(None);
        }
        let y: Vec<Value> = at.first_outputs(net.n_tune).cloned().collect();
        let b = &self.read(at, input)[..y.len()];
        let Some(layer) = b.first().and_then(|x| Layer::of(node, &planned.shape, x)) else {
            return Ok(None);
        };
        let Some(scale_idx) = scale_indices(planned, &layer) else { return Ok(None) };
        let initializer = net.index.initializer(&planned.quantizer.tensor);
        let Some(initializer) = initializer else { return Ok(None) };
        let values = tensor::f32_values(initializer)?;
        let w = (0..values.len()).map(|i| values[layer.at(i / layer.n_in, i % layer.n_in)]);
        // The integers of the problem are counted from the zero point.
        let QuantParams { q_min, q_max, zero_point, .. } = planned.params[0];
        let (low, high) = (q_min - zero_point, q_max - zero_point);
        let problem = Problem {
            w: w.collect(),
            scales: planned.params.iter().map(|params| params.scale).collect(),
            scale_idx,
            bounds: Bounds { low, high, pairs: planned.pairs },
            free: planned.qtype.scale == ScaleName::Float,
            layer,
        };
        let data = (b, &y[..]);
        if self.methods.contains(Method::Rounding) && problem.layer.n_in <= MAX_ROW {
            let learned = rounding::round(&problem, data, centred)?;
            self.keep(weight_idx, &problem.layer, &learned.rows);
            self.plan.weights[weight_idx].learned = true;
            return Ok(Some((problem, learned)));
        }
        let clipped = problem.free.then(|| scales::clip(&problem, data, centred)).flatten();
        if let Some(rows) = clipped {
            self.keep(weight_idx, &problem.layer, &rows);
        }
        Ok(None)
    }

    /// Takes integers and scales over.
    fn keep(&mut self, weight_idx: usize, layer: &Layer, Rows { integers, scales }: &Rows) {
        let planned = &mut self.plan.weights[weight_idx];
        let zero_point = planned.params[0].zero_point;
        let stored = Arc::make_mut(&mut planned.integers);
        for (i, &q) in integers.iter().enumerate() {
            stored[layer.at(i / layer.n_in, i % layer.n_in)] = q + zero_point;
        }
        for (params, &scale) in planned.params.iter_mut().zip(scales) {
            params.scale = scale;
        }
        self.changed.insert(weight_idx);
    }
}

/// The index of the scale of each weight, row by row; empty where each row has its own. `None` where rows
/// share scales in part, or zero points differ.
fn scale_indices(planned: &PlannedWeight, layer: &Layer) -> Option<Vec<u32>> {
    let zero_point = planned.params.first()?.zero_point;
    let differ = planned.params.iter().any(|params| params.zero_point != zero_point);
    if differ || zero_point != 0 && planned.pairs.is_some() {
        return None;
    }
    let n = layer.n_out * layer.n_in;
    match (planned.quantizer.axis, planned.quantizer.block) {
        (Some(axis), None) if axis == layer.out_axis() => Some(Vec::new()),
        (Some(axis), Some(_)) if axis != layer.out_axis() => {
            let of_value = planned.scale_of_value();
            let at = |i: usize| layer.at(i / layer.n_in, i % layer.n_in);
            Some((0..n).map(|i| of_value(at(i)) as u32).collect())
        }
        _ => (planned.params.len() == 1).then(|| vec![0; n]),
    }
}
