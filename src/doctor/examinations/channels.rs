//! Examinations of channels: constant ones, and ones with far larger values than the others.

use super::{Examined, Facts, NO_BACKEND, NO_DATA};
use crate::check::{Finding, Severity};
use crate::doctor::TensorSurvey;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::{axis_position, output_axis};
use crate::place::ActivationQuantizer;
use crate::quant::ScaleLayout;
use crate::scheme::Scheme;
use crate::statistics::Extremes;

/// Share of constant channels that is worth a finding.
const DEAD_SHARE: f64 = 0.25;
/// Limit on the ratio of the widest channel to the median one: 8 bits then leave the median channel 8 levels.
const OUTLIER_RATIO: f64 = 32.0;
/// Minimum number of channels; the median of fewer means little.
const LEAST_CHANNELS: usize = 4;

/// Activations with many channels that have one value on all samples.
pub(super) fn dead_channels(facts: &Facts) -> Examined {
    of_tensors(facts, |tensor| {
        let n = tensor.by_channel.len();
        let is_dead = |channel: &&Extremes| channel.get().is_none_or(|(min, max)| min == max);
        let n_dead = tensor.by_channel.iter().filter(is_dead).count();
        let what = "the number of channels with one value on all samples";
        let finding = Finding::new(what, format!("{n_dead} of {n}"), "near 0");
        let hint = "the data do not activate these channels: use more varied samples and check the preprocessing, or prune the channels";
        (n >= LEAST_CHANNELS && n_dead as f64 > DEAD_SHARE * n as f64).then(|| finding.hint(hint))
    })
}

/// Quantized activations whose range a single channel widens.
pub(super) fn outlier_channels(facts: &Facts) -> Examined {
    of_tensors(facts, |tensor| {
        let is_quantized =
            |quantizer: &ActivationQuantizer| quantizer.tensor == tensor.tensor && !quantizer.edges.is_empty();
        let is_narrowed = match facts.scheme {
            Some(_) => facts.placement.activations.iter().any(is_quantized),
            None => tensor.n_readers > 0,
        };
        if !is_narrowed {
            return None;
        }
        let widths: Vec<f64> = tensor.by_channel.iter().map(|channel| channel.width_with_zero()).collect();
        let found = ratio_text(&widths)?;
        let finding = Finding::new("the widest channel's range", found, format!("up to {OUTLIER_RATIO} times"));
        let hint = match facts.scheme.is_none_or(Scheme::allows_float_nodes) {
            true => "channel scales (--effort 1 and above) reduce it; else keep its readers float with --exclude",
            false => "channel scales (--effort 1 and above) reduce it; else use 16-bit activations",
        };
        Some(finding.hint(hint))
    })
}

/// Weights with one scale per tensor and channels of very different widths.
pub(super) fn outlier_weights(facts: &Facts) -> Examined {
    if facts.scheme.is_none() {
        return Examined::Unknown(NO_BACKEND.to_string());
    }
    let Some(graph) = &facts.model.graph else { return Examined::nothing() };
    let index = GraphIndex::new(graph);
    let mut found = Vec::new();
    for weight in facts.placement.weights.iter().filter(|weight| weight.axis.is_none()) {
        let Some(&(node_idx, input_idx)) = weight.edges.first() else { continue };
        let (Some(tensor), Some(values)) = (index.initializer(&weight.tensor), index.floats(&weight.tensor)) else {
            continue;
        };
        let node = &graph.node[node_idx];
        let shape: Vec<usize> = tensor.dims.iter().map(|&n| n as usize).collect();
        let Some(ratio) = ratio_text(&channel_widths(&shape, &values, output_axis(node, input_idx))) else {
            continue;
        };
        let expected = format!("up to {OUTLIER_RATIO} times, as the backend gives this weight one scale");
        let finding = Finding::new("the widest output channel", ratio, expected).at(node).on(&weight.tensor);
        let hint = "channel scales (--effort 1 and above) reduce it; else use a backend with scales per channel";
        found.push(Finding { severity: Severity::Warning, ..finding.hint(hint) });
    }
    Examined::Found(found)
}

/// Returns the largest absolute value of each channel of a weight.
fn channel_widths(shape: &[usize], values: &[f32], axis: i64) -> Vec<f64> {
    if shape.len() < 2 {
        return Vec::new();
    }
    let layout = ScaleLayout::of(shape, Some(axis_position(axis, shape.len())), None);
    let mut widths = vec![0.0_f64; layout.n];
    layout.for_each_run(|channel, run| {
        values[run].iter().for_each(|&value| widths[channel] = widths[channel].max(f64::from(value.abs())));
    });
    widths
}

/// Returns text such as `87 times that of the median one` if the ratio is above the limit. Widths of 0 do not count.
fn ratio_text(widths: &[f64]) -> Option<String> {
    let mut widths: Vec<f64> = widths.iter().copied().filter(|width| *width > 0.0).collect();
    widths.sort_by(f64::total_cmp);
    let (median, largest) = (widths.get(widths.len() / 2)?, widths.last()?);
    let ratio = largest / median;
    (widths.len() >= LEAST_CHANNELS && ratio > OUTLIER_RATIO)
        .then(|| format!("{ratio:.0} times that of the median one"))
}

/// Returns the findings of `one` about the surveyed tensors, as warnings.
fn of_tensors(facts: &Facts, one: impl Fn(&TensorSurvey) -> Option<Finding>) -> Examined {
    let Some(data) = facts.data else { return Examined::Unknown(NO_DATA.to_string()) };
    let found = data.tensors.iter().filter_map(|tensor| Some(one(tensor)?.on(&tensor.tensor)));
    Examined::Found(found.map(|finding| Finding { severity: Severity::Warning, ..finding }).collect())
}
