//! The layers that read a tensor, and their output error for given quantization parameters.

use crate::engine::Value;
use crate::onnx::graph::Edge;
use crate::plan::QuantPlan;
use crate::simulate::{
    ActivationBounds, ChannelSum, Network, OutChannels, PlanView, SingleNode, dequantized, difference,
};
use anyhow::Result;
use rayon::prelude::*;

/// A layer that reads the tensor, and its float outputs.
pub(super) struct LayerReader {
    single: SingleNode,
    /// The group of each sample, by its shapes.
    groups: Vec<usize>,
    y: Vec<Value>,
    /// Bounds of the activation function after the layer.
    bounds: ActivationBounds,
    /// Output channels and their sums per sample, where bias correction will remove the mean error of each channel.
    corrected: Option<(OutChannels, Vec<Vec<ChannelSum>>)>,
    /// Signal of the float outputs.
    signal: f64,
}

/// The quantized network whose layers read a tensor.
#[derive(Clone, Copy)]
pub(super) struct Quantized<'a> {
    /// The network's plan.
    pub plan: &'a QuantPlan,
    /// The plan's quantizers by tensor and use.
    pub view: &'a PlanView,
    /// Whether biases are corrected by the float network.
    pub corrects: bool,
}

/// Finds the layers among the uses `edges` of the tensor `name` whose other inputs are all constant, with their
/// quantized weights. `float` is the tensor in the float network. Fails if a layer cannot be run by itself.
pub(super) fn readers<'e>(
    net: &Network,
    quantized: Quantized,
    name: &str,
    edges: impl IntoIterator<Item = &'e Edge>,
    float: &[Value],
) -> Result<Vec<LayerReader>> {
    let Quantized { plan, view, corrects } = quantized;
    let mut readers = Vec::new();
    for &(node_idx, input_idx) in edges {
        let node = &net.graph.node[node_idx];
        let others = node.input.iter().filter(|input| *input != name && !input.is_empty());
        let alone = others.into_iter().all(|input| net.is_constant(input));
        let weight = view.weight_of(node_idx, node).filter(|_| input_idx == 0 && alone);
        let Some(weight) = weight.filter(|_| !float.is_empty()) else { continue };
        let groups = &net.groups()[..float.len()];
        let run = |single: &SingleNode, values: &[Value]| -> Result<Vec<Value>> {
            let outputs = single.run(groups, |sample| vec![values[sample].clone()])?;
            Ok(outputs.into_iter().filter_map(|mut outputs| outputs.drain(..).next()).collect())
        };
        let inputs = net.examples(&[name], |_, sample| float.get(sample));
        let y = run(&net.single_node(node, &inputs, &[])?, float)?;
        let weight = dequantized(&plan.weights[weight])?;
        let single = net.single_node(node, &inputs, &[weight])?;
        let bounds = net.bounds_behind(node);
        let channels = y.first().and_then(|y| OutChannels::of(node, y)).filter(|_| corrects);
        let corrected = channels.map(|channels| (channels, y.par_iter().map(|y| channels.sums(y, bounds)).collect()));
        let square = |x: &f32| f64::from(bounds.apply(*x)).powi(2);
        let signal: f64 = y.iter().flat_map(|y| y.f32s().unwrap_or_default()).map(square).sum();
        if signal > 0.0 && signal.is_finite() {
            readers.push(LayerReader { single, groups: groups.to_vec(), y, bounds, corrected, signal });
        }
    }
    Ok(readers)
}

impl LayerReader {
    /// Returns the error at the layer's outputs relative to their signal, for the inputs `x`; infinite where a value is
    /// NaN. Fails if the layer cannot be run on the inputs.
    pub fn error(&self, x: &[Value]) -> Result<f64> {
        let outputs = self.single.run(&self.groups[..x.len()], |sample| vec![x[sample].clone()])?;
        let of = |(y, outputs): (&Value, &Vec<Value>)| -> f64 {
            let (Some(a), Some(b)) = (y.f32s(), outputs[0].f32s()) else { return 0.0 };
            let error = |(&a, &b): (&f32, &f32)| f64::from(self.bounds.apply(a) - self.bounds.apply(b));
            a.iter().zip(b).map(|pair| error(pair).powi(2)).sum()
        };
        let errors: Vec<f64> = self.y.par_iter().zip(&outputs).map(of).collect();
        let error: f64 = errors.iter().sum();
        let corrected = self.corrected.as_ref().map_or(0.0, |(channels, float)| {
            let sums = outputs.par_iter().map(|outputs| channels.sums(&outputs[0], self.bounds));
            mean_error(float, &sums.collect::<Vec<Vec<ChannelSum>>>())
        });
        Ok(relative_error(error - corrected, self.signal))
    }
}

/// Returns the error divided by signal; infinite where the error is NaN or infinite, so that it is never the least.
pub fn relative_error(error: f64, signal: f64) -> f64 {
    if error.is_finite() { error.max(0.0) / signal } else { f64::INFINITY }
}

/// Returns the part of the error that mean correction removes.
fn mean_error(float: &[Vec<ChannelSum>], quantized: &[Vec<ChannelSum>]) -> f64 {
    let of_channel = |o: usize| {
        let total = difference(float, quantized, o);
        total.sum.powi(2) / total.n_passed
    };
    (0..float.first().map_or(0, Vec::len)).map(of_channel).sum()
}
