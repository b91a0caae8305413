//! Biases corrected while a forward pass goes by.

use super::bias_grid::{BiasGrids, least_changing};
use crate::engine::Value;
use crate::onnx::node::is_scaled;
use crate::onnx::tensor;
use crate::simulate::{
    Candidate, ChannelSum, LayerHook, Network, NodeAt, OutChannels, QuantizedBias, Touched, added_to_product,
    correction,
};
use crate::tune::method::{Action, LayerContext, Method};
use anyhow::{Context, Result};
use rayon::prelude::*;

/// Biases by the mean error of each output channel.
pub const BIAS: Method = Method {
    name: "bias",
    title: "bias correction",
    about: "biases by the mean error of each output channel",
    is_tried: |case| case.effort.level() > 0,
    needs: &[],
    action: Action::Layer(hook),
};

fn hook<'a>(context: &'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>> {
    Ok(Box::new(BiasCorrector::new(context, BIAS.name, by_float)?))
}

/// By how much each output channel of a node is to be moved, for its outputs in the quantized network; empty where not.
pub type BiasRule = fn(&Network, &NodeAt, &Candidate, &OutChannels, &[Vec<Value>]) -> Vec<f64>;

/// Corrects biases.
pub struct BiasCorrector<'a> {
    /// The method's name: equal names stand for equal changes.
    name: &'static str,
    rule: BiasRule,
    /// Of biases that have quantization parameters of their own; others stay float.
    grids: BiasGrids<'a>,
}

/// Where a node takes its bias from.
pub struct BiasSlot {
    /// Position among the node's inputs.
    pub input_idx: usize,
    /// One per output channel; empty where there is none yet.
    values: Vec<f32>,
}

impl BiasSlot {
    /// The node's bias: the third input of a layer, or the constant that an Add gives to a MatMul. `None`
    /// where it cannot have one or it is not plain.
    pub fn of(net: &Network, at: &NodeAt, candidate: &Candidate) -> Option<BiasSlot> {
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
                let free = !candidate.view().is_quantized((at.node_idx, input_idx));
                let values = plain(&node.input[input_idx]).filter(|_| free)?;
                Some(BiasSlot { input_idx, values })
            }
            _ => None,
        }
    }
}

impl<'a> BiasCorrector<'a> {
    /// By a rule.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn new(context: &'a LayerContext<'a>, name: &'static str, rule: BiasRule) -> Result<BiasCorrector<'a>> {
        let graph = context.model.graph.as_ref().context("model has no graph")?;
        let grids = BiasGrids::of(graph, context.placement, context.plan, context.table);
        Ok(BiasCorrector { name, rule, grids })
    }
}

impl LayerHook for BiasCorrector<'_> {
    fn touched(&self) -> Touched {
        Touched { biases: Some(self.name), ..Touched::default() }
    }

    /// Gives the candidate another bias, with the channel means that the rule asks for.
    fn outputs(
        &mut self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        mut outputs: Vec<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>> {
        let slot = BiasSlot::of(net, at, candidate);
        let y = outputs.first().and_then(|outputs| outputs.first());
        let channels = y.and_then(|y| OutChannels::of(at.node, y));
        let (Some(slot), Some(channels)) = (slot, channels) else { return Ok(outputs) };
        if !slot.values.is_empty() && slot.values.len() != channels.n_out {
            return Ok(outputs);
        }
        let edge = (at.node_idx, slot.input_idx);
        let by = (self.rule)(net, at, candidate, &channels, &outputs);
        let by: Vec<f32> = by.iter().map(|&v| v as f32).collect();
        if by.iter().any(|by| !by.is_finite()) || by.iter().all(|by| *by == 0.0) {
            // As it is, where integers of its own do not make it another.
            if let Some(planned) = candidate.quantized_bias(at.node_idx) {
                rebias(&channels, &mut outputs, &slot.values, &planned.dequantized())?;
            }
            return Ok(outputs);
        }
        shift(&channels, &mut outputs, &by)?;
        let mut stored = slot.values;
        stored.resize(channels.n_out, 0.0);
        let wanted: Vec<f32> = stored.iter().zip(&by).map(|(b, by)| b + by).collect();
        // The outputs have the bias as it is.
        let params = self.grids.of_bias(edge, &wanted)?.and_then(|grids| {
            let seen: Vec<&Value> = outputs.iter().take(at.n_tune).map(|y| &y[0]).collect();
            least_changing(grids, &wanted, &channels, net.bounds_behind(at.node), &seen)
        });
        let Some(params) = params else {
            candidate.biases.insert(edge, wanted);
            return Ok(outputs);
        };
        let bias = QuantizedBias { edge, channels, params, stored, wanted };
        let values = bias.values();
        rebias(&channels, &mut outputs, &bias.wanted, &values)?;
        candidate.biases.insert(edge, values);
        candidate.new_bias = Some(bias);
        Ok(outputs)
    }
}

/// By the means of the float network's outputs.
fn by_float(
    net: &Network,
    at: &NodeAt,
    _candidate: &Candidate,
    channels: &OutChannels,
    outputs: &[Vec<Value>],
) -> Vec<f64> {
    let bounds = net.bounds_behind(at.node);
    // Nothing where a pass that did run the float network had nothing to correct.
    let float = at.float_sums(|| {
        let y: Vec<&Value> = at.float_outputs().collect();
        y.par_iter().map(|y| channels.sums(y, bounds)).collect()
    });
    let quantized: Vec<Vec<ChannelSum>> =
        outputs[..float.len()].par_iter().map(|outputs| channels.sums(&outputs[0], bounds)).collect();
    correction(float, &quantized)
}

/// Adds `by` to the channels of the first output of every sample.
fn shift(channels: &OutChannels, outputs: &mut [Vec<Value>], by: &[f32]) -> Result<()> {
    outputs.par_iter_mut().try_for_each(|outputs| channels.shift(&mut outputs[0], by))
}

/// Gives the first output of every sample the bias `to` in place of `from`.
pub fn rebias(channels: &OutChannels, outputs: &mut [Vec<Value>], from: &[f32], to: &[f32]) -> Result<()> {
    let by: Vec<f32> = to.iter().zip(from).map(|(to, from)| to - from).collect();
    shift(channels, outputs, &by)
}
