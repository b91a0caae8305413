//! Examinations of weights: NaN and infinite, subnormal, and all-zero output channels.

use super::{Examined, Facts};
use crate::check::{Finding, Severity};
use crate::diag::count;
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::{PRODUCTS, axis_position, output_axis};
use crate::onnx::proto::NodeProto;
use crate::quant::ScaleLayout;

/// A weight: a constant among the first two inputs of a layer.
struct LayerWeight<'a> {
    node: &'a NodeProto,
    input_idx: usize,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Calls `visit` with each weight of convolutions and matrix products, and returns the findings.
fn each_weight(facts: &Facts, mut visit: impl FnMut(&LayerWeight) -> Option<Finding>) -> Examined {
    let Some(graph) = &facts.model.graph else { return Examined::nothing() };
    let index = GraphIndex::new(graph);
    let mut found = Vec::new();
    for node in graph.node.iter().filter(|node| PRODUCTS.contains(&node.op_type())) {
        for (input_idx, name) in node.input.iter().enumerate().take(2) {
            let Some((tensor, values)) = index.initializer(name).zip(index.floats(name)) else { continue };
            let shape = tensor.dims.iter().map(|&n| n as usize).collect();
            let weight = LayerWeight { node, input_idx, shape, values };
            found.extend(visit(&weight).map(|finding| finding.at(node).on(name)));
        }
    }
    Examined::Found(found)
}

/// NaN and infinite weights.
pub(super) fn finite_weights(facts: &Facts) -> Examined {
    each_weight(facts, |weight| {
        let n = weight.values.iter().filter(|value| !value.is_finite()).count();
        let found = format!("{n} of {}", count(weight.values.len(), "value"));
        (n > 0)
            .then(|| Finding::new("the number of NaN and infinite values", found, "0").hint("export the model again"))
    })
}

/// Share of subnormal values that is worth a finding.
const SUBNORMAL_SHARE: f64 = 0.01;

/// Subnormal weights, which make float layers slow.
pub(super) fn subnormal_weights(facts: &Facts) -> Examined {
    each_weight(facts, |weight| {
        let n = weight.values.iter().filter(|value| value.is_subnormal()).count();
        let found = format!("{n} of {}", count(weight.values.len(), "value"));
        let finding =
            Finding { severity: Severity::Warning, ..Finding::new("the number of subnormal values", found, "0") };
        (n as f64 > SUBNORMAL_SHARE * weight.values.len() as f64)
            .then(|| finding.hint("set them to 0 before the export: they are traces of weight decay"))
    })
}

/// Share of dead output channels that is worth a finding.
const DEAD_SHARE: f64 = 0.1;

/// Output channels whose weights are all 0.
pub(super) fn dead_weights(facts: &Facts) -> Examined {
    each_weight(facts, |weight| {
        let (n_channels, n_dead) = dead_channels(weight)?;
        let found = format!("{n_dead} of {n_channels}");
        let what = "the number of output channels with weights of 0";
        let finding = Finding { severity: Severity::Warning, ..Finding::new(what, found, "0") };
        (n_dead as f64 > DEAD_SHARE * n_channels as f64)
            .then(|| finding.hint("they compute constants: remove them from the model to save time"))
    })
}

/// Returns the number of output channels, and how many of them hold only zeros.
fn dead_channels(weight: &LayerWeight) -> Option<(usize, usize)> {
    let LayerWeight { node, input_idx, shape, values } = weight;
    if shape.len() < 2 {
        return None;
    }
    let axis = axis_position(output_axis(node, *input_idx), shape.len());
    let layout = ScaleLayout::of(shape, Some(axis), None);
    let mut is_dead = vec![true; layout.n];
    layout.for_each_run(|channel, run| is_dead[channel] &= values[run].iter().all(|&value| value == 0.0));
    Some((layout.n, is_dead.iter().filter(|dead| **dead).count()))
}
