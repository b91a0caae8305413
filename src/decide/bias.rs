//! Biases as int32: their scale is that of the input times that of the weight.

use super::{PlannedBias, QuantPlan};
use crate::onnx::proto::GraphProto;
use crate::onnx::tensor;
use crate::place::Sites;
use crate::quant::round_half_even;
use anyhow::{Context, Result, ensure};

/// Largest integer that a bias may take.
const MAX_BIAS: f64 = i32::MAX as f64;

/// Fills [`QuantPlan::biases`] anew. `widen` lets the scales of weights grow where an int32 would overflow;
/// without it such a bias is saturated.
///
/// # Errors
/// If a bias is not finite; the message names it.
pub fn decide_biases(
    graph: &GraphProto,
    sites: &Sites,
    plan: &mut QuantPlan,
    widen: bool,
) -> Result<()> {
    plan.biases.clear();
    let mut floats = Vec::with_capacity(sites.biases.len());
    for site in &sites.biases {
        let initializer = graph.initializer.iter().find(|tensor| tensor.name() == site.tensor);
        let initializer =
            initializer.with_context(|| format!("initializer `{}` does not exist", site.tensor))?;
        let values = tensor::f32_values(initializer)
            .with_context(|| format!("initializer `{}`", site.tensor))?;
        ensure!(
            values.iter().all(|value| value.is_finite()),
            "initializer `{}`: NaN or infinite values, expected a finite bias\nhint: leave its node float with --exclude",
            site.tensor
        );
        floats.push(values);
    }
    // First widen the weights' scales where an int32 would overflow: a weight may serve several biases.
    for (site, values) in sites.biases.iter().zip(&floats).filter(|_| widen) {
        let Some(s_x) = input_scale(plan, &site.input) else { continue };
        let weight = &mut plan.weights[site.weight];
        let n_scales = weight.params.len();
        for (channel, &value) in values.iter().enumerate() {
            let params =
                &mut weight.params[if n_scales == 1 { 0 } else { channel.min(n_scales - 1) }];
            let needed = f64::from(value).abs() / (s_x * MAX_BIAS) * (1.0 + 1e-6);
            if f64::from(params.scale) < needed {
                params.scale = needed as f32;
                plan.warnings.push(format!(
                    "initializer `{}`: channel {channel} overflows int32; the scale of `{}` was widened",
                    site.tensor, weight.site.tensor
                ));
            }
        }
    }
    for (site, values) in sites.biases.iter().zip(floats) {
        let Some(s_x) = input_scale(plan, &site.input) else { continue };
        let weight = &plan.weights[site.weight];
        let scales: Vec<f32> =
            weight.params.iter().map(|params| (s_x * f64::from(params.scale)) as f32).collect();
        if scales.len() != 1 && scales.len() != values.len() {
            continue;
        }
        let quantize = |(channel, &value): (usize, &f32)| {
            let scale = f64::from(scales[if scales.len() == 1 { 0 } else { channel }]);
            round_half_even(f64::from(value) / scale.max(f64::from(f32::MIN_POSITIVE)))
                .clamp(-MAX_BIAS, MAX_BIAS) as i32
        };
        let integers = values.iter().enumerate().map(quantize).collect();
        plan.biases.push(PlannedBias { site: site.clone(), scales, integers });
    }
    Ok(())
}

fn input_scale(plan: &QuantPlan, input: &str) -> Option<f64> {
    let activation = plan.activations.iter().find(|planned| planned.site.tensor == input)?;
    Some(f64::from(activation.params.scale))
}
