//! Biases corrected while a walk passes by.

use super::bias::{OutChannels, Passed, Sum, calibration, correction};
use super::bias_grid::{Laid, least_changing};
use super::grid::{on_grid, out_channels};
use super::methods::Method;
use super::network::{Network, activation};
use super::variant::Variant;
use super::walk::At;
use crate::engine::Value;
use crate::onnx::graph::Edge;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::is_scaled;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor;
use crate::plan::PlannedBias;
use crate::quant::QuantParams;
use anyhow::Result;
use rayon::prelude::*;

/// Where a node takes its bias from.
pub(super) struct BiasSlot {
    /// Position among the node's inputs.
    pub input_idx: usize,
    /// One per output channel; empty where there is none yet.
    values: Vec<f32>,
}

/// Whether a bias can shift the output channels of the node: a layer, or an Add that gives a constant to a
/// MatMul.
pub fn takes_bias(node: &NodeProto, index: &GraphIndex) -> bool {
    match node.op_type() {
        "Conv" | "ConvTranspose" | "Gemm" => !is_scaled(node),
        "Add" => added_to_product(node, index).is_some(),
        _ => false,
    }
}

/// The position of the constant that an Add gives to a MatMul.
fn added_to_product(node: &NodeProto, index: &GraphIndex) -> Option<usize> {
    let slot = index.constant_operand(node)?;
    let product = index.producer(&node.input[1 - slot])?;
    (product.op_type() == "MatMul").then_some(slot)
}

impl Variant {
    /// Whether a method corrects biases.
    pub(super) fn changes_biases(&self) -> bool {
        self.methods.contains(Method::Bias) || self.methods.contains(Method::BiasCalibration)
    }

    /// The node's bias as planned, where it has a grid of its own.
    pub(super) fn bias_on_grid(&self, node_idx: usize) -> Option<&PlannedBias> {
        let mut biases = self.plan.biases.iter().filter(|bias| bias.qtype.is_some());
        biases.find(|bias| bias.quantizer.edge.0 == node_idx)
    }

    /// The node's bias: the third input of a layer, or the constant that an Add gives to a MatMul. `None`
    /// where it cannot have one or it is not plain.
    pub(super) fn bias_of(&self, net: &Network, at: &At) -> Option<BiasSlot> {
        let node = at.node;
        let plain = |name: &str| -> Option<Vec<f32>> {
            let stored = net.index.initializer(name)?;
            let n = stored.dims.iter().product::<i64>();
            let last = stored.dims.last().is_none_or(|last| *last == n);
            let values = tensor::f32_values(stored).ok().filter(|_| last)?;
            values.iter().all(|value| value.is_finite()).then_some(values)
        };
        match node.op_type() {
            "Conv" | "ConvTranspose" | "Gemm" if !is_scaled(node) => {
                let values = match node.input.get(2).filter(|name| !name.is_empty()) {
                    None => Vec::new(),
                    Some(name) => plain(name)?,
                };
                Some(BiasSlot { input_idx: 2, values })
            }
            "Add" => {
                let input_idx = added_to_product(node, &net.index)?;
                let free = !self.is_planned(net, (at.node_idx, input_idx));
                let values = plain(&node.input[input_idx]).filter(|_| free)?;
                Some(BiasSlot { input_idx, values })
            }
            _ => None,
        }
    }

    /// The `outputs`, the first with the means that it has in the float network, by another bias; and that bias where
    /// it has a grid of its own, which it is laid on.
    pub(super) fn correct(
        &mut self,
        net: &Network,
        at: &At,
        mut outputs: Vec<Vec<Value>>,
    ) -> Result<(Vec<Vec<Value>>, Option<Laid>)> {
        let slot = self.bias_of(net, at).filter(|_| self.changes_biases());
        let y = outputs.first().and_then(|outputs| outputs.first());
        let channels = y.and_then(|y| out_channels(at.node, y));
        let (Some(slot), Some(channels)) = (slot, channels) else { return Ok((outputs, None)) };
        if !slot.values.is_empty() && slot.values.len() != channels.n_out {
            return Ok((outputs, None));
        }
        let edge = (at.node_idx, slot.input_idx);
        let by = match self.methods.contains(Method::Bias) {
            true => self.by_float(net, at, &channels, &outputs),
            false => self.by_grid(net, at, &channels, &outputs),
        };
        let by: Vec<f32> = by.iter().map(|&v| v as f32).collect();
        if by.iter().any(|by| !by.is_finite()) || by.iter().all(|by| *by == 0.0) {
            // As it is, where integers of its own do not make it another.
            if let Some(planned) = self.bias_on_grid(at.node_idx) {
                rebias(&channels, &mut outputs, (&slot.values, &planned.dequantized()))?;
            }
            return Ok((outputs, None));
        }
        shift(&channels, &mut outputs, &by)?;
        let mut stored = slot.values;
        stored.resize(channels.n_out, 0.0);
        let wanted: Vec<f32> = stored.iter().zip(&by).map(|(b, by)| b + by).collect();
        let Some(grid) = grid_of(net, at, (edge, &wanted), &channels, &outputs)? else {
            self.biases.insert(edge, wanted);
            return Ok((outputs, None));
        };
        let laid = Laid { edge, channels, grid, stored, wanted };
        let values = laid.values();
        rebias(&channels, &mut outputs, (&laid.wanted, &values))?;
        self.biases.insert(edge, values);
        Ok((outputs, Some(laid)))
    }

    /// By the means of the float network's outputs.
    fn by_float(
        &self,
        net: &Network,
        at: &At,
        channels: &OutChannels,
        outputs: &[Vec<Value>],
    ) -> Vec<f64> {
        let passed = net.passed(at.node);
        // Nothing where a walk that did run the float network had nothing to correct.
        let float = at.sums.get_or_init(|| {
            let y: Vec<&Value> = at.first_outputs(net.n_tune).collect();
            y.par_iter().map(|y| channels.sums(y, passed)).collect()
        });
        let quantized: Vec<Vec<Sum>> = outputs[..float.len()]
            .par_iter()
            .map(|outputs| channels.sums(&outputs[0], passed))
            .collect();
        correction(float, &quantized)
    }

    /// By the error of the grid of the outputs, or of what a Relu or Clip makes of them; empty without one.
    fn by_grid(
        &self,
        net: &Network,
        at: &At,
        channels: &OutChannels,
        outputs: &[Vec<Value>],
    ) -> Vec<f64> {
        let activation = activation(at.node, net.graph, &net.index);
        let (node, passed) = activation.unwrap_or((at.node, Passed::ALL));
        let grid = node.output.first().and_then(|name| self.grids.get(name));
        let Some((params, _)) = grid else { return Vec::new() };
        let outputs = outputs.iter().take(net.n_tune).filter_map(|outputs| outputs.first());
        calibration(channels, outputs, passed, on_grid(params))
    }
}

/// The grid that a bias is laid on, where it has one of its own; the `outputs` have the bias as it is.
fn grid_of(
    net: &Network,
    at: &At,
    (edge, bias): (Edge, &[f32]),
    channels: &OutChannels,
    outputs: &[Vec<Value>],
) -> Result<Option<QuantParams>> {
    let grids = net.bias_grids.map(|grids| grids.of_bias(edge, bias)).transpose()?.flatten();
    Ok(grids.and_then(|grids| {
        let seen: Vec<&Value> = outputs.iter().take(net.n_tune).map(|y| &y[0]).collect();
        least_changing(grids, bias, channels, net.passed(at.node), &seen)
    }))
}

/// Adds `by` to the channels of the first output of every sample.
fn shift(channels: &OutChannels, outputs: &mut [Vec<Value>], by: &[f32]) -> Result<()> {
    outputs.par_iter_mut().try_for_each(|outputs| channels.shift(&mut outputs[0], by))
}

/// Gives the first output of every sample the second bias for the first.
pub(super) fn rebias(
    channels: &OutChannels,
    outputs: &mut [Vec<Value>],
    (from, to): (&[f32], &[f32]),
) -> Result<()> {
    let by: Vec<f32> = to.iter().zip(from).map(|(to, from)| to - from).collect();
    shift(channels, outputs, &by)
}
