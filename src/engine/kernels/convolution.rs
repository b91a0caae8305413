//! Convolution without a matrix of all windows: direct, or by tiles.

use super::windows::{Weights, WindowStep, Windows};
use super::winograd::Tiles;
use super::{Replacement, TakenOver, float_tensor, replaced_by};
use pulp::Simd;
use tract_onnx::tract_core::ops::cnn::{Conv, KernelFormat};
use tract_onnx::tract_hir::internal::*;

/// Maximum products per output value; with more, the engine's product of matrices is faster.
const MOST_TAPS: usize = 576;
/// Minimum values of an output plane; with fewer, the engine is faster.
const LEAST_LEN: usize = 16;

/// Limit of absolute inputs for tiles: sums of larger inputs, or their products with weights, might be infinite.
const MOST_VALUE: f32 = 1e30;

/// A convolution of the engine, and its windows over the planes of its input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ConvOp {
    conv: Conv,
    windows: Windows,
    /// The tiles and their transformed weights, where tiles are faster.
    by_tiles: Option<(Tiles, Arc<Tensor>)>,
}

/// Takes over convolutions of float32, channels first, with constant weights: directly with few products per output
/// value, or by tiles.
pub(super) fn taken_over(model: &TypedModel, node: &TypedNode) -> TractResult<TakenOver> {
    let Some(conv) = node.op_as::<Conv>() else { return Ok(None) };
    let facts = model.node_input_facts(node.id)?;
    let [x, weights, bias] = facts[..] else { return Ok(None) };
    let is_float = |fact: &&TypedFact| fact.datum_type == DatumType::F32 && !fact.is_exotic();
    if ![x, weights, bias].iter().all(is_float) || conv.kernel_fmt != KernelFormat::OIHW {
        return Ok(None);
    }
    // This kernel multiplies padding, which the engine does not: 0 times infinity is NaN.
    let Some(weights) = &weights.konst else { return Ok(None) };
    let weights: &[f32] = weights.try_as_plain_ram()?.as_slice()?;
    if !weights.iter().all(|weight| weight.is_finite()) {
        return Ok(None);
    }
    let Some(windows) = x.shape.as_concrete().and_then(|shape| Windows::new(&conv.pool_spec, shape)) else {
        return Ok(None);
    };
    let planes = [conv.input_channels(), conv.output_channels()].map(|n| n / conv.group);
    let tiles = Tiles::new(&windows, planes, conv.group);
    if tiles.is_none() && !is_faster(conv, &windows) {
        return Ok(None);
    }
    let by_tiles = tiles.map(|tiles| {
        let transformed = tensor1(&tiles.transformed(weights));
        (tiles, transformed.into_arc_tensor())
    });
    Ok(Some(replaced_by(ConvOp { conv: conv.clone(), windows, by_tiles })))
}

fn is_faster(conv: &Conv, windows: &Windows) -> bool {
    let planes = conv.input_channels() / conv.group;
    let is_depthwise = planes == 1 && conv.group > 1;
    let n_taps = windows.n_taps();
    is_depthwise || (n_taps > 1 && planes * n_taps <= MOST_TAPS && windows.out_len() >= LEAST_LEN)
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

impl Replacement for ConvOp {
    fn name(&self) -> &'static str {
        if self.by_tiles.is_some() { "mqq.ConvByTiles" } else { "mqq.Conv" }
    }

    fn replaced(&self) -> &dyn TypedOp {
        &self.conv
    }

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (x, weights, bias) = args_3!(inputs);
        let ConvOp { conv, windows, by_tiles } = self;
        let (n_in, n_out) = (conv.input_channels(), conv.output_channels());
        let weights: &[f32] = weights.try_as_plain_ram()?.as_slice()?;
        let bias: &[f32] = bias.try_as_plain_ram()?.as_slice()?;
        // A single bias is for all channels.
        let bias: Vec<f32> = bias.iter().copied().cycle().take(n_out).collect();
        let shape = conv.pool_spec.output_shape(x.shape())?.shape;
        let x: &[f32] = x.try_as_plain_ram()?.as_slice()?;
        // Tiles take differences of inputs, which would spread NaN and infinity.
        if let Some((tiles, weights)) =
            by_tiles.as_ref().filter(|_| x.iter().fold(true, |all, x| all & (x.abs() < MOST_VALUE)))
        {
            let weights: &[f32] = weights.try_as_plain_ram()?.as_slice()?;
            return float_tensor(&shape, |y| tiles.run(x, weights, &bias, y));
        }
        let taps = weights.chunks_exact(weights.len() / n_out);
        let weights: Vec<Weights> = taps.zip(bias).map(|(taps, first)| Weights { first, taps }).collect();
        float_tensor(&shape, |y| windows.run::<WeightedSum>(x, [n_in / conv.group, n_out / conv.group], &weights, y))
    }
}
