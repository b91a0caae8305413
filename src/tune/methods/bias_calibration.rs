//! TI's bias calibration.

use super::bias::{BIAS, BiasCorrector, BiasHook, BiasSlot};
use crate::engine::Value;
use crate::simulate::{ActivationBounds, Candidate, LayerHook, Network, NoHook, NodeAt, OutChannels};
use crate::tune::method::{Action, LayerContext, Method};
use anyhow::Result;

/// The method that corrects biases, in small steps, by the mean error that quantizing the layer's own output causes.
pub const BIAS_CALIBRATION: Method = Method {
    name: "bias-calibration",
    title: "bias calibration",
    about: "biases, to cancel the mean error from quantizing the layer's own output (TI's method)",
    is_tried: |_| false,
    waits: false,
    action: Action::Layer(hook),
};

/// Creates the hook; an empty one where bias correction by the float network leaves nothing to calibrate.
fn hook<'a>(context: &'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>> {
    match context.has(BIAS.name) {
        true => Ok(Box::new(NoHook)),
        false => {
            let corrector = BiasCorrector::new(context, BIAS_CALIBRATION.name)?;
            Ok(Box::new(BiasHook { corrector, rule: by_grid }))
        }
    }
}

/// Share of a sample's error by which a bias moves, as in TI's tool.
const CALIBRATION_FACTOR: f64 = 0.01;

/// Returns the correction of each output channel by TI's bias calibration. Each sample adds a share of the mean error
/// that quantizing the outputs causes. The float network is not needed.
///
/// Source: `bias_calibration_factor` of TI's edgeai-torchmodelopt, 0.001 to 0.01.
pub fn calibration<'v>(
    channels: &OutChannels,
    outputs: impl Iterator<Item = &'v Value>,
    bounds: ActivationBounds,
    fake_quantize: impl Fn(f32) -> f32,
) -> Vec<f64> {
    let mut by = vec![0.0; channels.n_out];
    for value in outputs {
        let Some(values) = value.f32s() else { continue };
        let (mut errors, mut counts) = (vec![0.0f64; by.len()], vec![0usize; by.len()]);
        for (run, part) in values.chunks(channels.inner(value)).enumerate() {
            let o = run % by.len();
            let error = |&y: &f32| {
                let x = bounds.apply(y + by[o] as f32);
                f64::from(x) - f64::from(fake_quantize(x))
            };
            errors[o] += part.iter().map(error).sum::<f64>();
            counts[o] += part.len();
        }
        for (by, (error, n)) in by.iter_mut().zip(errors.iter().zip(counts)) {
            *by += CALIBRATION_FACTOR * error / n.max(1) as f64;
        }
    }
    by
}

/// Returns the correction by the quantization error of the outputs, or of the Relu or Clip after them; empty where
/// neither tensor is quantized.
fn by_grid(net: &Network, at: &NodeAt, candidate: &Candidate, slot: &BiasSlot, outputs: &[Vec<Value>]) -> Vec<f64> {
    let (node, bounds) = net.activation_behind(at.node).unwrap_or((at.node, ActivationBounds::ALL));
    let params = node.output.first().and_then(|name| candidate.view().params(name));
    let Some(params) = params else { return Vec::new() };
    let outputs = outputs.iter().take(at.n_tune).filter_map(|outputs| outputs.first());
    calibration(&slot.channels, outputs, bounds, params.fake_quantizer())
}
