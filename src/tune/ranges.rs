//! Ranges of activations by the error that they leave at the outputs of the layers that read them.
//!
//! A tensor's own squared error treats its channels alike; a layer may hardly look at the one whose outliers
//! widen the range, or depend on it. So the layers are run with several scales, and the one with the least
//! error against their float outputs stays.

use super::grid::{dequantized, fake_quantize, out_channels};
use super::methods::Method;
use super::step::Step;
use super::walk::Walk;
use crate::engine::Value;
use crate::quant::{QuantParams, Range};
use crate::scheme::ScaleName;
use anyhow::Result;
use rayon::prelude::*;

/// Shares of the scale that are tried.
const SHARES: [f32; 7] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.1];
/// The same where scales are powers of two.
const POWERS: [f32; 2] = [0.5, 2.0];
/// By how much the error must fall, as a share of it: less is chance.
const LEAST_GAIN: f64 = 0.05;
/// Samples that are run for each scale.
const N_SAMPLES: usize = 16;

/// A layer behind the tensor, and its float outputs.
struct Reader {
    step: Step,
    y: Vec<Value>,
    /// The layer's outputs lose their mean error anyway, channel by channel.
    channels: Option<super::bias::OutChannels>,
    /// Signal of the float outputs.
    signal: f64,
}

impl Walk<'_> {
    /// Changes the range of the group of the tensor `name`, whose values are `float` in the float network
    /// and `quantized` in the other before they are laid on the grid. The first tensor of a group decides.
    pub(super) fn refine_range(
        &mut self,
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
        let (params, scale) = (planned.params, planned.qtype.scale);
        let members = || self.plan.activations.iter().filter(|p| p.site.group == group);
        // A Relu or Clip that the grid stands for would be wrong on another grid.
        if members().any(|p| p.site.fixed.is_some() || p.removed_clip().is_some()) {
            return Ok(());
        }
        let n = self.n_tune.min(float.len()).min(N_SAMPLES);
        let readers = self.readers(name, &float[..n])?;
        if readers.is_empty() {
            return Ok(());
        }
        let error = |share: f32| -> Result<f64> {
            let params = QuantParams { scale: params.scale * share, ..params };
            let on_grid: Result<Vec<Value>> =
                quantized[..n].par_iter().map(|value| fake_quantize(value, &params)).collect();
            let on_grid = on_grid?;
            readers.iter().map(|reader| reader.error(&on_grid)).sum()
        };
        let shares = if scale == ScaleName::PowerOfTwo { &POWERS[..] } else { &SHARES };
        let mut best = (error(1.0)? * (1.0 - LEAST_GAIN), 1.0f32);
        for &share in shares {
            let scale = params.scale * share;
            if scale.is_normal() {
                let error = error(share)?;
                if error < best.0 {
                    best = (error, share);
                }
            }
        }
        let (_, share) = best;
        if share == 1.0 {
            return Ok(());
        }
        for planned in self.plan.activations.iter_mut().filter(|p| p.site.group == group) {
            planned.params.scale = params.scale * share;
            let Range { min, max } = planned.range;
            let share = f64::from(share);
            planned.range = Range { min: min * share, max: max * share };
            planned.observer = "layer-error";
            if let Some((params, _)) = self.grids.get_mut(&planned.site.tensor) {
                *params = planned.params;
            }
        }
        Ok(())
    }

    /// The layers that read `name` on its grid and nothing else that is no constant.
    fn readers(&self, name: &str, float: &[Value]) -> Result<Vec<Reader>> {
        let mut readers = Vec::new();
        let Some((_, edges)) = self.grids.get(name) else { return Ok(readers) };
        for &(node_idx, input_idx) in edges {
            let node = &self.graph.node[node_idx];
            let others = node.input.iter().filter(|input| *input != name && !input.is_empty());
            let alone = others.into_iter().all(|input| self.is_constant(input));
            let weight = self.weights_of(node_idx, node).filter(|_| input_idx == 0 && alone);
            let (Some(weight), Some(first)) = (weight, float.first()) else { continue };
            let run = |step: &Step, values: &[Value]| -> Result<Vec<Value>> {
                let outputs = step.run(values.len(), |sample| vec![values[sample].clone()])?;
                Ok(outputs.into_iter().filter_map(|mut outputs| outputs.drain(..).next()).collect())
            };
            let inputs = [(name, first)];
            let y = run(&self.step_for(node, &inputs, None)?, float)?;
            let weight = dequantized(&self.plan.weights[weight])?;
            let step = self.step_for(node, &inputs, Some(&weight))?;
            let centred = self.methods.contains(Method::Bias);
            let channels = y.first().and_then(|y| out_channels(node, y)).filter(|_| centred);
            let square = |x: &f32| f64::from(*x).powi(2);
            let signal: f64 = y.iter().flat_map(|y| y.f32s().unwrap_or_default()).map(square).sum();
            if signal > 0.0 {
                readers.push(Reader { step, y, channels, signal });
            }
        }
        Ok(readers)
    }
}

impl Reader {
    /// Noise at the layer's outputs over their signal, for the inputs `x`.
    fn error(&self, x: &[Value]) -> Result<f64> {
        let outputs = self.step.run(x.len(), |sample| vec![x[sample].clone()])?;
        let first = outputs.iter().filter_map(|outputs| outputs.first());
        let mut noise = 0f64;
        let mut means: Vec<f64> = Vec::new();
        let mut n = 0;
        for (y, q) in self.y.iter().zip(first) {
            let (Some(a), Some(b)) = (y.f32s(), q.f32s()) else { continue };
            noise += a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            if let Some(channels) = &self.channels {
                let of_sample = channels.mean_difference(y, q);
                means.resize(of_sample.len(), 0.0);
                means.iter_mut().zip(of_sample).for_each(|(sum, mean)| *sum += mean);
                n += a.len() / channels.n_out.max(1);
            }
        }
        let n_samples = self.y.len().max(1) as f64;
        let corrected: f64 = means.iter().map(|sum| (sum / n_samples).powi(2) * n as f64).sum();
        Ok((noise - corrected).max(0.0) / self.signal)
    }
}
