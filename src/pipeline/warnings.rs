//! Warnings about a whole run that no stage gives.

use super::request::Request;
use crate::calibrate::{CalibrationStatistics, SampleSet};
use crate::diag::{count, did_you_mean};
use crate::doctor::MIN_RANGE_SAMPLES;
use crate::onnx::inputs::{has_batch_of_one, has_open_batch, inputs_of};
use crate::onnx::node::{multiply_adds, node_name};
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::place::{FloatCause, Placement, SELECTION, SKIP_SMALL_MATMULS};
use crate::plan::{QuantPlan, warning_of_unlike};
use crate::tune::{PlannedModel, Setup};
use anyhow::Result;
use std::collections::BTreeMap;

/// Share of the multiply-adds in quantized nodes, 0 to 1, below which a run warns of operators without a row.
const LITTLE: f64 = 0.1;

/// Adds warnings that no stage has given.
pub(super) fn add_warnings(
    planned: &mut PlannedModel,
    calibration: &CalibrationStatistics,
    setup: Setup,
    request: &Request,
) -> Result<()> {
    let PlannedModel { model, placement, plan, warnings, .. } = planned;
    let skipped = calibration.skipped.iter().map(|reason| format!("skipped sample: {reason}"));
    warnings.splice(0..0, skipped);
    warnings.extend(warning_of_unlike(model.graph()?, placement, plan));
    for pattern in request.selection.unmatched(model.graph()?) {
        let graph = model.graph()?;
        let names = graph.node.iter().flat_map(|node| [node_name(node), node.op_type()]);
        let lower = pattern.to_ascii_lowercase();
        let same = names.clone().find(|name| name.to_ascii_lowercase() == lower);
        let advice = match (same, pattern.contains(',') && !pattern.contains('{')) {
            (Some(name), _) => format!(": did you mean `{name}`?"),
            (None, true) => ": give one option per pattern, not a list with commas".to_string(),
            (None, false) => advice_on_glob(&pattern, graph)
                .or_else(|| Some(did_you_mean(&pattern, names)).filter(|it| !it.is_empty()))
                .map_or(String::new(), |it| format!(": {it}")),
        };
        warnings.push(format!("`{pattern}` matches no node name and no operator type of the model{advice}"));
    }
    if plan.activations.is_empty() && plan.weights.is_empty() {
        let larger = larger_batch(model.graph()?, placement).unwrap_or_default();
        warnings.push(format!(
            "no node was quantized: the written model is the float model; -v prints the reasons{larger}"
        ));
    }
    if request.ranges.is_none() && request.has_ranges() && !placement.activations.is_empty() {
        warnings.extend(setup.samples.and_then(|samples| warning_of_few(samples, calibration.n_samples)));
        warnings.extend(warning_of_one_value(model.graph()?, plan));
    }
    warnings.extend(warning_of_little(model, placement, plan, setup));
    Ok(())
}

/// Returns advice on the batch, where a batch of 1 makes matrix products too small for the table.
fn larger_batch(graph: &GraphProto, placement: &Placement) -> Option<String> {
    placement.float_nodes.iter().find(|node| node.rule == SKIP_SMALL_MATMULS)?;
    let of_one = "products of a batch of 1 are matrix-vector products, which this backend leaves float";
    if let Some(input) = inputs_of(graph).find(|input| has_open_batch(input)) {
        let input = input.name();
        return Some(format!(
            "; `{input}` has an open batch, which is 1 without --shape, and {of_one}: --shape gives the batch that the \
             network runs with"
        ));
    }
    let input = inputs_of(graph).find(|input| has_batch_of_one(input))?.name();
    Some(format!("; `{input}` has a batch of 1, and {of_one}: export the batch that the network runs with"))
}

/// Returns a warning where few samples give ranges. An entry of a batch counts as a sample.
fn warning_of_few(samples: &SampleSet, n_samples: usize) -> Option<String> {
    let batch = samples.inputs.first().and_then(|input| input.shape.first().copied()).unwrap_or(1);
    (n_samples * batch.max(1) < MIN_RANGE_SAMPLES).then(|| {
        let n = count(n_samples, "sample");
        format!("the ranges of the activations come from only {n}, expected {MIN_RANGE_SAMPLES} or more")
    })
}

/// Returns a warning if all quantized inputs of the network hold a single value in all samples.
fn warning_of_one_value(graph: &GraphProto, plan: &QuantPlan) -> Option<String> {
    let observed_of = |input: &str| plan.activations.iter().find(|planned| planned.quantizer.tensor == input)?.observed;
    let observed: Vec<_> = inputs_of(graph).filter_map(|it| Some((it.name(), observed_of(it.name())?))).collect();
    let &(input, (value, _)) = observed.first()?;
    observed.iter().all(|(_, (low, high))| low == high).then(|| {
        format!(
            "input `{input}` has the value {value} in all samples, expected those of the network's use: check the data"
        )
    })
}

/// Returns a warning if few of the multiply-adds are in quantized nodes. It names the operators without a row if most
/// of the multiply-adds are in these.
fn warning_of_little(model: &ModelProto, placement: &Placement, plan: &QuantPlan, setup: Setup) -> Option<String> {
    let nodes = &model.graph.as_ref()?.node;
    let shape = |name: &str| setup.value_info.shape(name).map(<[usize]>::to_vec);
    let mut counts: Vec<usize> = nodes.iter().map(|node| multiply_adds(node, shape)).collect::<Option<_>>()?;
    // The user knows of nodes that the user left out.
    placement.float_nodes.iter().filter(|float| float.rule == SELECTION).for_each(|float| counts[float.node] = 0);
    let total: usize = counts.iter().sum();
    let quantized: usize = placement.quantized_nodes.iter().filter_map(|&node_idx| counts.get(node_idx)).sum();
    let (mut unlisted, mut n_by_operator) = (0, BTreeMap::<&str, usize>::new());
    for float in placement.float_nodes.iter().filter(|float| float.cause == FloatCause::NotListed) {
        if counts[float.node] > 0 {
            unlisted += counts[float.node];
            *n_by_operator.entry(nodes[float.node].op_type()).or_default() += 1;
        }
    }
    let share = quantized as f64 / total.max(1) as f64;
    if plan.weights.is_empty() && plan.activations.is_empty() || share >= LITTLE || total == 0 {
        return None;
    }
    let found = format!("only {:.1} % of the multiply-adds are in quantized nodes", 100.0 * share);
    if 2 * unlisted < total {
        return Some(format!("{found}; -v prints the reasons"));
    }
    let float: Vec<String> = n_by_operator.iter().map(|(op_type, n)| format!("{n} {op_type}")).collect();
    Some(format!(
        "{found}: {} stay float, because backend `{}` does not quantize {}",
        float.join(", "),
        setup.scheme.name,
        n_by_operator.into_keys().collect::<Vec<_>>().join(", ")
    ))
}

/// Returns advice on a pattern that matches nothing but is a part of nodes' names, or a regular expression.
fn advice_on_glob(pattern: &str, graph: &GraphProto) -> Option<String> {
    let text = pattern.trim_matches(|c: char| "^$.*/".contains(c));
    let is_literal = text.len() > 2 && text.chars().all(|c| c.is_alphanumeric() || "/._-:".contains(c));
    let n = graph.node.iter().filter(|node| is_literal && node_name(node).contains(text)).count();
    match n {
        0 => pattern
            .contains(".*")
            .then(|| "patterns are globs, not regular expressions: `*` stands for any text".to_string()),
        n => Some(format!("patterns are globs: `*{text}*` matches {}", count(n, "node"))),
    }
}
