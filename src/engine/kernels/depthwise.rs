//! Depthwise convolution: each output channel reads one input channel.

use super::windows::{Weights, WindowStep, Windows};
use super::{OpKernel, TakenOver};
use pulp::Simd;
use tract_onnx::tract_core::ops::cnn::{Conv, KernelFormat};
use tract_onnx::tract_core::{as_op, op_as_typed_op, op_out_of_plan};
use tract_onnx::tract_hir::internal::*;

/// Convolutions of float32 with a group for each input channel, channels first, and constant weights.
pub const KERNEL: OpKernel = OpKernel { name: "depthwise convolution", op: taken_over };

/// A convolution of the engine, and its windows over the planes of its input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DepthwiseOp {
    conv: Conv,
    windows: Windows,
}

fn taken_over(model: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(conv) = node.op_as::<Conv>() else { return Ok(None) };
    let facts = model.node_input_facts(node.id)?;
    let [x, weights, bias] = facts[..] else { return Ok(None) };
    let is_float = |fact: &&TypedFact| fact.datum_type == DatumType::F32 && !fact.is_exotic();
    let is_depthwise = conv.group > 1 && conv.group == conv.input_channels();
    if ![x, weights, bias].iter().all(is_float) || !is_depthwise || conv.kernel_fmt != KernelFormat::OIHW {
        return Ok(None);
    }
    // Padding times infinity is not a number, and the engine does not multiply padding.
    let Some(weights) = &weights.konst else { return Ok(None) };
    if !weights.try_as_plain_ram()?.as_slice::<f32>()?.iter().all(|weight| weight.is_finite()) {
        return Ok(None);
    }
    let windows = x.shape.as_concrete().and_then(|shape| Windows::new(&conv.pool_spec, shape));
    Ok(windows.map(|windows| Box::new(DepthwiseOp { conv: conv.clone(), windows }) as _))
}

/// A sum of products.
struct WeightedSum;

impl WindowStep for WeightedSum {
    const OUTSIDE: f32 = 0.0;

    #[inline(always)]
    fn step<S: Simd>(simd: S, so_far: S::f32s, x: S::f32s, weight: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(x, weight, so_far)
    }
}

impl Op for DepthwiseOp {
    fn name(&self) -> StaticName {
        "mqq.DepthwiseConv".into()
    }

    op_as_typed_op!();
}

impl EvalOp for DepthwiseOp {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (x, weights, bias) = args_3!(inputs);
        let DepthwiseOp { conv, windows } = self;
        let mut y = Tensor::zero::<f32>(&conv.pool_spec.output_shape(x.shape())?.shape)?;
        let weights: &[f32] = weights.try_as_plain_ram()?.as_slice()?;
        let bias: &[f32] = bias.try_as_plain_ram()?.as_slice()?;
        // A single bias is for all channels.
        let bias = bias.iter().copied().cycle();
        let taps = weights.chunks_exact(weights.len() / conv.output_channels());
        let weights: Vec<Weights> = taps.zip(bias).map(|(taps, first)| Weights { first, taps }).collect();
        windows.run::<WeightedSum>(
            x.try_as_plain_ram()?.as_slice()?,
            conv.output_channels() / conv.input_channels(),
            &weights,
            y.try_as_plain_ram_mut()?.as_slice_mut()?,
        );
        Ok(tvec!(y.into_tvalue()))
    }
}

impl TypedOp for DepthwiseOp {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.conv.output_facts(inputs)
    }

    as_op!();
}
