//! Ranges of activations by the error that they leave at the outputs of the layers that read them.
//!
//! A tensor's own squared error treats its channels alike; a layer may hardly look at the one whose outliers
//! widen the range, or depend on it. So the layers are run with several scales, and the one with the least
//! error against their float outputs stays. Where finders are to be chosen from, the best of their ranges is where
//! the search begins.

use super::bias::{OutChannels, Passed, Sum, difference};
use super::grid::{dequantized, fake_quantize, out_channels};
use super::methods::Method;
use super::network::Network;
use super::step::Step;
use super::variant::Variant;
use crate::decide::Alternative;
use crate::engine::Value;
use crate::quant::{QuantParams, Range};
use crate::scheme::ScaleName;
use anyhow::Result;
use rayon::prelude::*;

/// Shares of the scale that are tried, downwards and upwards, each way until one is worse than the last.
const SHARES: [&[f32]; 2] = [&[0.9, 0.8, 0.7, 0.6, 0.5], &[1.1, 1.2]];
/// The same where scales are powers of two.
const POWERS: [&[f32]; 2] = [&[0.5], &[2.0]];
/// By how much the error must fall, as a share of it: less is chance.
const LEAST_GAIN: f64 = 0.05;
/// Samples that are run for each scale.
const N_SAMPLES: usize = 16;

/// A layer behind the tensor, and its float outputs.
struct Reader {
    step: Step,
    y: Vec<Value>,
    /// What the function behind the layer lets through.
    passed: Passed,
    /// The layer's outputs lose their mean error anyway, channel by channel: their channels, and the sums of
    /// these per sample.
    corrected: Option<(OutChannels, Vec<Vec<Sum>>)>,
    /// Signal of the float outputs.
    signal: f64,
}

impl Variant {
    /// Changes the range of the group of the tensor `name`, whose values are `float` in the float network
    /// and `quantized` in the other before they are laid on the grid. The first tensor of a group decides.
    pub(super) fn refine_range(
        &mut self,
        net: &Network,
        name: &str,
        float: &[Value],
        quantized: &[Value],
    ) -> Result<()> {
        let Some(planned) = self.plan.activations.iter().find(|p| p.site.tensor == name) else {
            return Ok(());
        };
        let group = planned.site.group;
        if !self.settled.insert(group) {
            return Ok(());
        }
        let mut start = Alternative {
            observer: planned.observer,
            range: planned.range,
            params: planned.params,
        };
        let (scale, alternatives) = (planned.qtype.scale, planned.alternatives.clone());
        let min_scale = planned.qtype.min_scale() as f32;
        let members = || self.plan.activations.iter().filter(|p| p.site.group == group);
        // A Relu or Clip that the grid stands for would be wrong on another grid.
        if members().any(|p| p.site.fixed.is_some() || p.removed_clip().is_some()) {
            return Ok(());
        }
        let n = net.n_tune.min(float.len()).min(N_SAMPLES);
        let readers = self.readers(net, name, &float[..n])?;
        if readers.is_empty() {
            return Ok(());
        }
        let error = |params: QuantParams, share: f32| -> Result<f64> {
            let params = QuantParams { scale: params.scale * share, ..params };
            let on_grid: Result<Vec<Value>> = quantized[..n]
                .par_iter()
                .map(|value| fake_quantize(value.clone(), &params))
                .collect();
            let on_grid = on_grid?;
            readers.iter().map(|reader| reader.error(&on_grid)).sum()
        };
        let mut plain = error(start.params, 1.0)?;
        let as_planned = start.params;
        for other in alternatives {
            let error = error(other.params, 1.0)?;
            if error < plain {
                (plain, start) = (error, other);
            }
        }
        let Alternative { observer, range, params } = start;
        let mut best = (plain * (1.0 - LEAST_GAIN), 1.0f32);
        for shares in if scale == ScaleName::PowerOfTwo { POWERS } else { SHARES } {
            let mut last = plain;
            for &share in shares {
                let scale = params.scale * share;
                let usable = scale.is_normal() && scale >= min_scale;
                let error = if usable { error(params, share)? } else { last };
                if error >= last {
                    break;
                }
                if error < best.0 {
                    best = (error, share);
                }
                last = error;
            }
        }
        let (_, share) = best;
        if share == 1.0 && params == as_planned {
            return Ok(());
        }
        for planned in self.plan.activations.iter_mut().filter(|p| p.site.group == group) {
            planned.params = QuantParams { scale: params.scale * share, ..params };
            let by = f64::from(share);
            planned.range = Range { min: range.min * by, max: range.max * by };
            planned.observer = if share == 1.0 { observer } else { "layer-error" };
            if let Some((params, _)) = self.grids.get_mut(&planned.site.tensor) {
                *params = planned.params;
            }
        }
        Ok(())
    }

    /// The layers that read `name` on its grid and nothing else that is no constant.
    fn readers(&self, net: &Network, name: &str, float: &[Value]) -> Result<Vec<Reader>> {
        let mut readers = Vec::new();
        let Some((_, edges)) = self.grids.get(name) else { return Ok(readers) };
        for &(node_idx, input_idx) in edges {
            let node = &net.graph.node[node_idx];
            let others = node.input.iter().filter(|input| *input != name && !input.is_empty());
            let alone = others.into_iter().all(|input| net.is_constant(input));
            let weight = net.weights_of(node_idx, node).filter(|_| input_idx == 0 && alone);
            let (Some(weight), Some(first)) = (weight, float.first()) else { continue };
            let run = |step: &Step, values: &[Value]| -> Result<Vec<Value>> {
                let outputs = step.run(values.len(), |sample| vec![values[sample].clone()])?;
                Ok(outputs.into_iter().filter_map(|mut outputs| outputs.drain(..).next()).collect())
            };
            let inputs = [(name, first)];
            let y = run(&net.step(node, &inputs, &[])?, float)?;
            let weight = dequantized(&self.plan.weights[weight])?;
            let step = net.step(node, &inputs, &[weight])?;
            let passed = net.passed(node);
            let centred = self.methods.contains(Method::Bias);
            let channels = y.first().and_then(|y| out_channels(node, y)).filter(|_| centred);
            let corrected = channels.map(|channels| {
                (channels, y.par_iter().map(|y| channels.sums(y, passed)).collect())
            });
            let square = |x: &f32| f64::from(passed.of(*x)).powi(2);
            let signal: f64 = y.iter().flat_map(|y| y.f32s().unwrap_or_default()).map(square).sum();
            if signal > 0.0 {
                readers.push(Reader { step, y, passed, corrected, signal });
            }
        }
        Ok(readers)
    }
}

impl Reader {
    /// Noise at the layer's outputs over their signal, for the inputs `x`.
    fn error(&self, x: &[Value]) -> Result<f64> {
        let outputs = self.step.run(x.len(), |sample| vec![x[sample].clone()])?;
        let of = |(y, outputs): (&Value, &Vec<Value>)| -> f64 {
            let (Some(a), Some(b)) = (y.f32s(), outputs[0].f32s()) else { return 0.0 };
            let error = |(&a, &b): (&f32, &f32)| f64::from(self.passed.of(a) - self.passed.of(b));
            a.iter().zip(b).map(|pair| error(pair).powi(2)).sum()
        };
        let noise: Vec<f64> = self.y.par_iter().zip(&outputs).map(of).collect();
        let noise: f64 = noise.iter().sum();
        let corrected = self.corrected.as_ref().map_or(0.0, |(channels, float)| {
            let sums = outputs.par_iter().map(|outputs| channels.sums(&outputs[0], self.passed));
            mean_error(float, &sums.collect::<Vec<Vec<Sum>>>())
        });
        Ok((noise - corrected).max(0.0) / self.signal)
    }
}

/// The part of the noise that a correction of the means takes away.
fn mean_error(float: &[Vec<Sum>], quantized: &[Vec<Sum>]) -> f64 {
    let of_channel = |o: usize| {
        let total = difference(float, quantized, o);
        total.sum.powi(2) / total.n_passed
    };
    (0..float.first().map_or(0, Vec::len)).map(of_channel).sum()
}
