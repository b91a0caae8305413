//! Tensors with very unlike ranges that share quantization parameters, such as pixels and scores.

use super::{PlannedActivation, QuantPlan};
use crate::onnx::node::node_name;
use crate::onnx::proto::GraphProto;
use crate::place::{ActivationQuantizer, Join, Placement};
use crate::quant::Codes;
use crate::scheme::Scheme;
use crate::statistics::{Extremes, TensorStatistics};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

/// Minimum number of steps that the shared grid must leave a tensor: with 8 bits, the wider range may be 32 times as
/// wide.
const LEAST_STEPS: f64 = 8.0;

/// Ratio of the widths of ranges from which a Concat does not take the grid that another Concat of one of its inputs
/// needs: two bits.
const WIDER: f64 = 4.0;

/// Returns the tensors that keep their own quantization parameters at a join. The table must allow it, the joined
/// tensors must have a much wider range together, and a node must read the detail that a shared grid would lose. A
/// Concat whose output is quantized is no such node: its output has lost the detail anyway.
pub fn narrow_tensors(
    placement: &Placement,
    statistics: &[impl Borrow<TensorStatistics>],
    scheme: &Scheme,
) -> BTreeSet<String> {
    let mut groups: BTreeMap<usize, Extremes> = BTreeMap::new();
    let mut by_name = BTreeMap::new();
    for (quantizer, statistic) in placement.activations.iter().zip(statistics) {
        let extremes = statistic.borrow().extremes;
        groups.entry(quantizer.group).or_insert(Extremes::NONE).widen(extremes);
        by_name.insert(quantizer.tensor.as_str(), (quantizer, extremes));
    }
    let own_width = |join: &Join| {
        let tensors = join.inputs.iter().chain(&join.output).filter_map(|name| by_name.get(name.as_str()));
        Extremes::of_all(tensors.map(|(_, extremes)| extremes)).width_with_zero()
    };
    let joining: BTreeSet<usize> = placement.joins.iter().filter(|it| it.output.is_some()).map(|it| it.node).collect();
    let mut found = BTreeSet::new();
    for join in placement.joins.iter().filter(|join| join.may_keep_own_params) {
        let of_join = join.inputs.iter().filter_map(|name| by_name.get(name.as_str()));
        let unlike = of_join.filter(|(quantizer, extremes)| {
            let n_steps = (1_u64 << scheme.types[&quantizer.qtype].bits) as f64 - 1.0;
            let of_group = groups.get(&quantizer.group).map_or(0.0, |it| it.width_with_zero());
            let own = extremes.width_with_zero();
            own > 0.0 && own * n_steps < of_group * LEAST_STEPS
        });
        let unlike: Vec<_> = unlike.map(|(quantizer, _)| quantizer).collect();
        let is_read = |quantizer: &ActivationQuantizer| quantizer.edges.iter().any(|edge| !joining.contains(&edge.0));
        if unlike.iter().any(|quantizer| is_read(quantizer)) || join.output.is_none() {
            found.extend(unlike.into_iter().map(|quantizer| quantizer.tensor.clone()));
        }
        // Another Concat of one of its inputs may give this Concat a much wider grid than its own tensors need.
        let of_output = join.output.as_ref().and_then(|name| by_name.get(name.as_str()));
        let Some((output, _)) = of_output.filter(|(output, _)| is_read(output)) else { continue };
        let of_group = groups.get(&output.group).map_or(0.0, |it| it.width_with_zero());
        if own_width(join) * WIDER < of_group {
            let is_shared = |source: &&String| {
                placement.joins.iter().any(|other| other.node != join.node && other.sources.contains(source))
            };
            let shared: Vec<&String> = join.sources.iter().filter(is_shared).collect();
            let of_joins = placement.joins.iter().flat_map(|it| it.inputs.iter().zip(&it.sources));
            found.extend(of_joins.filter(|(_, source)| shared.contains(source)).map(|(input, _)| input.clone()));
        }
    }
    found
}

/// A tensor that a shared grid leaves few steps.
struct Lost<'a> {
    join: &'a Join,
    small: &'a PlannedActivation,
    large: &'a PlannedActivation,
    scale: f32,
    n_steps: f64,
}

/// Returns a warning about the tensor that a shared grid leaves fewest steps; `None` if all tensors have enough.
pub fn warning(graph: &GraphProto, placement: &Placement, plan: &QuantPlan) -> Option<String> {
    let by_name: BTreeMap<&str, &PlannedActivation> =
        plan.activations.iter().map(|planned| (planned.quantizer.tensor.as_str(), planned)).collect();
    let lost = placement.joins.iter().filter_map(|join| lost_of(join, &by_name));
    let lost: Vec<Lost> = lost.filter(|lost| !is_harmless(graph, lost)).collect();
    let worst = lost.iter().min_by(|a, b| a.n_steps.total_cmp(&b.n_steps))?;
    let Lost { join, small, large, scale, n_steps } = worst;
    let named = |planned: &PlannedActivation| {
        let (min, max) = planned.observed.unwrap_or_default();
        format!("`{}` ({} to {})", planned.quantizer.tensor, short(min), short(max))
    };
    let node = node_name(graph.node.get(join.node)?);
    let is_of_tail = placement.tails.iter().any(|tail| tail.nodes.contains(&join.node));
    let ways_out: Vec<String> = [
        is_of_tail.then(|| format!("make the two separate outputs of the model (--outputs {})", join.inputs.join(","))),
        Some("use 16-bit activations".to_string()),
        join.parts_if_float.then(|| format!("keep `{node}` float with --exclude")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let others = if lost.len() > 1 { format!(" (and {} more such nodes)", lost.len() - 1) } else { String::new() };
    Some(format!(
        "tensors {} and {} share the scale {} at `{node}`, which leaves `{}` only {n_steps:.1} levels{others}: {}",
        named(small),
        named(large),
        short(*scale),
        small.quantizer.tensor,
        ways_out.join(", or "),
    ))
}

/// Whether nodes that add or subtract are the only readers of the small tensor: there its rounding error is no larger
/// than that of the large one.
fn is_harmless(graph: &GraphProto, lost: &Lost) -> bool {
    let mut readers = lost.small.quantizer.edges.iter().filter_map(|edge| graph.node.get(edge.0));
    readers.all(|node| matches!(node.op_type(), "Add" | "Sub"))
}

/// A number rounded to three significant digits.
fn short(value: f32) -> String {
    let before_point = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let n_digits = usize::try_from(2 - before_point).unwrap_or_default().min(6);
    let digits = format!("{value:.n_digits$}");
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => digits,
    }
}

/// Returns the joined tensor with fewest steps on the shared grid, if these are fewer than [`LEAST_STEPS`].
fn lost_of<'a>(join: &'a Join, by_name: &BTreeMap<&str, &'a PlannedActivation>) -> Option<Lost<'a>> {
    let inputs: Vec<&PlannedActivation> =
        join.inputs.iter().filter_map(|name| by_name.get(name.as_str()).copied()).collect();
    let params = match &join.output {
        Some(output) => by_name.get(output.as_str())?.params,
        // Without a quantized output, the inputs share parameters or each has its own.
        None => inputs.first().map(|first| first.params)?,
    };
    let n_steps = |planned: &PlannedActivation| {
        planned.observed.map_or(0.0, |(min, max)| Extremes { min, max }.width_with_zero()) / f64::from(params.scale)
    };
    let is_shared = |planned: &&PlannedActivation| join.output.is_some() || planned.params == params;
    let inputs = || inputs.iter().copied().filter(is_shared);
    let by_steps = |a: &&PlannedActivation, b: &&PlannedActivation| n_steps(a).total_cmp(&n_steps(b));
    let small = inputs().filter(|planned| n_steps(planned) > 0.0).min_by(by_steps)?;
    let large = inputs().max_by(by_steps)?;
    let is_lost = params.codes == Codes::Affine && n_steps(small) < LEAST_STEPS && n_steps(large) >= LEAST_STEPS;
    is_lost.then(|| Lost { join, small, large, scale: params.scale, n_steps: n_steps(small) })
}
