//! Values as the target will see them, in float32.

use super::bias::OutChannels;
use crate::engine::Value;
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::onnx::tensor;
use crate::plan::PlannedWeight;
use crate::quant::QuantParams;
use anyhow::Result;

/// How the outputs of a layer are laid out.
pub fn out_channels(node: &NodeProto, y: &Value) -> Option<OutChannels> {
    let planes = matches!(node.op_type(), "Conv" | "ConvTranspose");
    let n_out = if planes { y.shape().get(1) } else { y.shape().last() };
    n_out.filter(|n| **n > 0).map(|&n_out| OutChannels { n_out, planes })
}

/// The weight as the target will see it.
pub fn dequantized(planned: &PlannedWeight) -> Result<TensorProto> {
    tensor::from_f32(&planned.quantizer.tensor, &planned.shape, &planned.dequantized())
}

/// `value` laid on a grid: divided by the scale, saturated, rounded half to even, multiplied again; in place where nobody
/// else holds it.
pub fn fake_quantize(value: Value, params: &QuantParams) -> Result<Value> {
    value.into_mapped_f32(on_grid(params))
}

/// The same for one value.
pub fn on_grid(params: &QuantParams) -> impl Fn(f32) -> f32 + Copy + use<> {
    /// Adding and taking it away again rounds half to even, for numbers below 2^22.
    const ROUND: f32 = 12_582_912.0;
    let low = (params.q_min - params.zero_point) as f32;
    let high = (params.q_max - params.zero_point) as f32;
    let scale = params.scale;
    move |x| ((x / scale).max(low).min(high) + ROUND - ROUND) * scale
}
