//! Bias correction during a forward pass.

use super::bias_grid::{BiasGrids, least_changing};
use crate::engine::Value;
use crate::onnx::node::is_scaled;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor;
use crate::simulate::{
    ActivationBounds, Candidate, ChannelSum, HookChanges, LayerHook, Network, NodeAt, OutChannels, QuantizedBias,
    correction,
};
use crate::tune::method::{Action, LayerContext, Method};
use anyhow::Result;
use rayon::prelude::*;

/// The method that corrects biases by the mean error of each output channel. On transformers it would absorb errors of
/// earlier layers, so it is not tried by default.
pub const BIAS: Method = Method {
    name: "bias",
    title: "bias correction",
    about: "biases, to cancel the mean error of each output channel, on inputs from the quantized network (empirical bias correction)",
    is_tried: |case| case.effort.level() > 0 && !case.transformer,
    waits: false,
    action: Action::Layer(hook),
};

fn hook<'a>(context: &'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>> {
    Ok(Box::new(BiasHook { corrector: BiasCorrector::new(context, BIAS.name)?, rule: by_float }))
}

/// Returns the correction of each output channel of a node, from its outputs in the quantized network; empty for none.
pub type BiasRule = fn(&Network, &NodeAt, &Candidate, &BiasSlot, &[Vec<Value>]) -> Vec<f64>;

/// Corrects biases by a rule.
pub struct BiasHook<'a> {
    /// Applies the correction.
    pub corrector: BiasCorrector<'a>,
    /// Computes the correction.
    pub rule: BiasRule,
}

/// Applies corrections to biases.
pub struct BiasCorrector<'a> {
    /// The method's name. Candidates with equal names have equal corrections.
    name: &'static str,
    /// Grids of biases that have quantization parameters of their own; the other biases stay float.
    grids: BiasGrids<'a>,
}

/// The bias input of a node, and the output channels that it shifts.
pub struct BiasSlot {
    /// The output channels.
    pub channels: OutChannels,
    /// Bounds of the activation function after the node.
    pub bounds: ActivationBounds,
    /// Input index of the bias.
    input_idx: usize,
    /// One value per output channel; empty where the node has no bias yet.
    values: Vec<f32>,
}

impl BiasSlot {
    /// Finds the bias of a node whose output is shaped like `y`: the third input of a layer, or the constant that an
    /// Add adds to a MatMul's output, unless `is_quantized` holds for the constant's input index. `None` where the node
    /// can have no bias, or the bias is not a finite constant vector.
    pub fn of(net: &Network, node: &NodeProto, y: &Value, is_quantized: impl Fn(usize) -> bool) -> Option<BiasSlot> {
        let plain = |name: &str| -> Option<Vec<f32>> {
            let stored = net.index.initializer(name)?;
            let n = stored.dims.iter().product::<i64>();
            let last = stored.dims.last().is_none_or(|last| *last == n);
            let values = tensor::f32_values(stored).ok().filter(|_| last)?;
            values.iter().all(|value| value.is_finite()).then_some(values)
        };
        let input_idx = match node.op_type() {
            "Conv" | "ConvTranspose" | "Gemm" if !is_scaled(node) => 2,
            "Add" => net.index.added_to_product(node).filter(|&input_idx| !is_quantized(input_idx))?,
            _ => return None,
        };
        let values = match node.input.get(input_idx).filter(|name| !name.is_empty()) {
            None => Vec::new(),
            Some(name) => plain(name)?,
        };
        let channels = OutChannels::of(node, y)?;
        let fits = values.is_empty() || values.len() == channels.n_out;
        fits.then(|| BiasSlot { bounds: net.bounds_behind(node), channels, input_idx, values })
    }

    /// Returns sums over the outputs after the activation function, per sample and channel.
    pub fn sums(&self, outputs: &[&Value]) -> Vec<Vec<ChannelSum>> {
        outputs.par_iter().map(|value| self.channels.sums(value, self.bounds)).collect()
    }
}

impl<'a> BiasCorrector<'a> {
    /// Makes a corrector for the method `name`.
    ///
    /// # Errors
    /// If the model has no graph.
    pub fn new(context: &'a LayerContext<'a>, name: &'static str) -> Result<BiasCorrector<'a>> {
        let graph = context.model.graph()?;
        let grids = BiasGrids::of(graph, context.placement, context.plan, context.table);
        Ok(BiasCorrector { name, grids })
    }

    /// Returns the changes that a hook must declare.
    pub fn changes(&self) -> HookChanges {
        HookChanges { biases: Some(self.name), ..HookChanges::default() }
    }

    /// Gives the candidate a new bias, and returns the outputs with this bias. `by` returns the shift of each output
    /// channel from the bias and the outputs; empty for none.
    ///
    /// # Errors
    /// If there is no memory for a copy of the outputs.
    pub fn correct(
        &self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        mut outputs: Vec<Vec<Value>>,
        by: impl FnOnce(&Candidate, &BiasSlot, &[Vec<Value>]) -> Vec<f64>,
    ) -> Result<Vec<Vec<Value>>> {
        let is_quantized = |input_idx| candidate.view().is_quantized((at.node_idx, input_idx));
        let y = outputs.first().and_then(|outputs| outputs.first());
        let Some(slot) = y.and_then(|y| BiasSlot::of(net, at.node, y, is_quantized)) else { return Ok(outputs) };
        let by = by(candidate, &slot, &outputs);
        let BiasSlot { channels, bounds, input_idx, values: mut stored } = slot;
        let edge = (at.node_idx, input_idx);
        let by: Vec<f32> = by.iter().map(|&v| v as f32).collect();
        if by.iter().any(|by| !by.is_finite()) || by.iter().all(|by| *by == 0.0) {
            // No correction: only the plan's own integers may move the bias.
            if let Some(planned) = candidate.quantized_bias(at.node_idx) {
                rebias(&channels, &mut outputs, &stored, &planned.dequantized())?;
            }
            return Ok(outputs);
        }
        shift(&channels, firsts(&mut outputs), &by)?;
        stored.resize(channels.n_out, 0.0);
        let wanted: Vec<f32> = stored.iter().zip(&by).map(|(b, by)| b + by).collect();
        // These outputs still have the old bias.
        let params = self.grids.of_bias(edge, &wanted)?.and_then(|grids| {
            let seen: Vec<&Value> = outputs.iter().take(at.n_tune).map(|y| &y[0]).collect();
            least_changing(grids, &wanted, &channels, bounds, &seen)
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

impl LayerHook for BiasHook<'_> {
    fn changes(&self) -> HookChanges {
        self.corrector.changes()
    }

    fn outputs(
        &mut self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        outputs: Vec<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>> {
        let by = |candidate: &Candidate, slot: &BiasSlot, outputs: &[Vec<Value>]| {
            (self.rule)(net, at, candidate, slot, outputs)
        };
        self.corrector.correct(net, at, candidate, outputs, by)
    }
}

/// Returns the correction to the means of the float network's outputs.
fn by_float(_: &Network, at: &NodeAt, _: &Candidate, slot: &BiasSlot, outputs: &[Vec<Value>]) -> Vec<f64> {
    // Empty where the pass that ran the float network had nothing to correct.
    let float = at.float_sums(|| slot.sums(&at.float_outputs().collect::<Vec<_>>()));
    let quantized: Vec<&Value> = outputs[..float.len()].iter().map(|outputs| &outputs[0]).collect();
    correction(float, &slot.sums(&quantized))
}

/// Returns the first output of every sample.
fn firsts(outputs: &mut [Vec<Value>]) -> impl ParallelIterator<Item = &mut Value> {
    outputs.par_iter_mut().map(|outputs| &mut outputs[0])
}

/// Adds `by` to the channels of every value.
pub fn shift<'v>(
    channels: &OutChannels,
    values: impl ParallelIterator<Item = &'v mut Value>,
    by: &[f32],
) -> Result<()> {
    values.try_for_each(|value| channels.shift(value, by))
}

/// Replaces the bias `from` by `to` in the first output of every sample.
pub fn rebias(channels: &OutChannels, outputs: &mut [Vec<Value>], from: &[f32], to: &[f32]) -> Result<()> {
    let by: Vec<f32> = to.iter().zip(from).map(|(to, from)| to - from).collect();
    shift(channels, firsts(outputs), &by)
}
