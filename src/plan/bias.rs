//! Biases as integers: int32 with the product of the scales of input and weight, or integers with their own parameters.

use super::weight::{params_of, values};
use super::{PlannedBias, QuantPlan};
use crate::diag::WithHint;
use crate::observers::Observer;
use crate::onnx::proto::GraphProto;
use crate::place::{BiasQuantizer, Placement};
use crate::quant::{QuantParams, round_half_even};
use crate::scheme::{QType, Scheme};
use anyhow::{Result, anyhow, ensure};

/// Largest integer of a bias.
const MAX_BIAS: f64 = i32::MAX as f64;

/// Decides [`QuantPlan::biases`] again and returns warnings. With `widen`, the scale of a weight grows where an int32
/// bias would overflow, with a warning. Without it, the bias saturates, and there is no warning.
///
/// # Errors
/// If a bias, or its scale, is not finite; the message names it.
pub fn decide_biases(
    graph: &GraphProto,
    placement: &Placement,
    scheme: &Scheme,
    observer: &Observer,
    plan: &mut QuantPlan,
    widen: bool,
) -> Result<Vec<String>> {
    plan.biases.clear();
    let floats = placement.biases.iter().map(|quantizer| values(graph, &quantizer.tensor));
    let floats: Vec<(Vec<usize>, Vec<f32>)> = floats.collect::<Result<_>>()?;
    let warnings = if widen { widen_weights(placement, &floats, plan) } else { Vec::new() };
    for (quantizer, (shape, values)) in placement.biases.iter().zip(floats) {
        let Some(name) = &quantizer.qtype else {
            plan.biases.extend(int32(plan, quantizer, shape, &values)?);
            continue;
        };
        let qtype = scheme.types[name].adapted(values.iter().copied().reduce(f32::min));
        let (_, params) = params_of(&values, &qtype, observer)?;
        plan.biases.push(PlannedBias {
            quantizer: quantizer.clone(),
            zero_point: params.zero_point,
            shape,
            scales: vec![params.scale],
            integers: values.iter().map(|&value| params.quantize(value)).collect(),
            qtype: Some(qtype),
        });
    }
    Ok(warnings)
}

/// Returns the candidate grids of a bias with its own type: the grid for its range, and for power-of-two scales the
/// grids with halved scales that the type's search allows.
///
/// # Errors
/// If the values have no range.
pub fn bias_grids(values: &[f32], qtype: &QType, observer: &Observer) -> Result<Vec<QuantParams>> {
    let qtype = qtype.adapted(values.iter().copied().reduce(f32::min));
    let (_, widest) = params_of(values, &QType { pot_search: 0, ..qtype.clone() }, observer)?;
    let n_halvings = qtype.n_halvings(widest.scale);
    let halved = |n: u8| QuantParams { scale: widest.scale / f32::from(n).exp2(), ..widest };
    Ok((0..=n_halvings).map(halved).filter(|params| params.scale.is_normal()).collect())
}

/// Widens the weights' scales where an int32 bias would overflow, or its scale would be close to subnormal. A weight
/// may serve several biases.
fn widen_weights(placement: &Placement, floats: &[(Vec<usize>, Vec<f32>)], plan: &mut QuantPlan) -> Vec<String> {
    let mut warnings = Vec::new();
    let int32 = placement.biases.iter().zip(floats).filter(|(quantizer, _)| quantizer.qtype.is_none());
    for (quantizer, (_, values)) in int32 {
        let Some(s_x) = input_scale(plan, &quantizer.input) else { continue };
        let weight = &mut plan.weights[quantizer.weight];
        let qtype = weight.qtype.clone();
        let n_scales = weight.params.len();
        let mut overflowing = Vec::new();
        for (channel, &value) in values.iter().enumerate() {
            let params = &mut weight.params[if n_scales == 1 { 0 } else { channel.min(n_scales - 1) }];
            let needed = f64::from(value).abs() / (s_x * MAX_BIAS) * (1.0 + 1e-6);
            // The scale of the bias is the product of both scales. The margin is for ranges that later become narrower.
            let normal = 1024.0 * f64::from(f32::MIN_POSITIVE) / s_x;
            let overflows = f64::from(params.scale) < needed;
            if f64::from(params.scale) < needed.max(normal) {
                params.scale = qtype.scale_at_least(needed.max(normal));
            }
            if overflows {
                overflowing.push(channel);
            }
        }
        let found = match overflowing.as_slice() {
            [] => continue,
            [channel] => format!("channel {channel} overflows"),
            [first, ..] => format!("{} channels (first: {first}) overflow", overflowing.len()),
        };
        warnings.push(format!(
            "initializer `{}`: {found} int32; the scale of `{}` was increased",
            quantizer.tensor, weight.quantizer.tensor
        ));
    }
    warnings
}

fn int32(
    plan: &QuantPlan,
    quantizer: &BiasQuantizer,
    shape: Vec<usize>,
    values: &[f32],
) -> Result<Option<PlannedBias>> {
    let Some(s_x) = input_scale(plan, &quantizer.input) else { return Ok(None) };
    let weight = &plan.weights[quantizer.weight];
    let scales: Vec<f32> = weight.params.iter().map(|params| (s_x * f64::from(params.scale)) as f32).collect();
    if scales.len() != 1 && scales.len() != values.len() {
        return Ok(None);
    }
    ensure!(
        scales.iter().all(|scale| scale.is_finite()),
        anyhow!(
            "initializer `{}`: the scale of the bias, the product of the scales of `{}` and `{}`, is too large for float32",
            quantizer.tensor,
            quantizer.input,
            weight.quantizer.tensor
        )
        .hint("if the target runs float operators, keep its node float with --exclude")
    );
    let quantize = |(channel, &value): (usize, &f32)| {
        let scale = f64::from(scales[if scales.len() == 1 { 0 } else { channel }]);
        round_half_even(f64::from(value) / scale.max(f64::from(f32::MIN_POSITIVE))).clamp(-MAX_BIAS, MAX_BIAS) as i32
    };
    let integers = values.iter().enumerate().map(quantize).collect();
    Ok(Some(PlannedBias { quantizer: quantizer.clone(), qtype: None, zero_point: 0, shape, scales, integers }))
}

fn input_scale(plan: &QuantPlan, input: &str) -> Option<f64> {
    let activation = plan.activations.iter().find(|planned| planned.quantizer.tensor == input)?;
    Some(f64::from(activation.params.scale))
}
