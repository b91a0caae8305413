//! Tunes a plan layer by layer: weights, biases and ranges.

use super::methods::{new_quantizer, of_plan};
use super::outcome::Judged;
use super::setup::{Evaluation, MIN_SAMPLES, PlannedModel, Setup, WeightScheme};
use super::trials::{Trials, Tried};
use super::tuning::{Tuned, Tuning};
use crate::diag::count;
use crate::metrics::{Gain, Measurement};
use crate::onnx::edit::{ModelEdit, NewBias};
use crate::onnx::graph::Edge;
use crate::onnx::names::Names;
use crate::onnx::node::node_name;
use crate::onnx::proto::GraphProto;
use crate::place::{BiasQuantizer, Placement};
use crate::plan::{QuantPlan, decide_biases};
use crate::scheme::Scheme;
use crate::simulate::{Candidate, HeadMismatch, Samples};
use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// Tunes the plan with the methods of the options, or only measures it where there are none. `known` is an earlier
/// evaluation of the plan. Without data nothing is tuned. A graph that cannot be run node by node keeps its plan, with a
/// warning if there are methods.
///
/// # Errors
/// If a sample cannot be loaded, or the user's task or head does not fit the network.
pub fn tune_planned(setup: Setup, planned: &mut PlannedModel, known: Option<&Evaluation>) -> Result<Option<Tuned>> {
    let Some(samples) = setup.samples else { return Ok(None) };
    let methods = of_plan(&setup, &planned.placement, &planned.plan);
    let n = setup.n_samples(samples, &planned.model, methods.n_of_layers());
    if n == 0 {
        return Ok(None);
    }
    let (names, values) = (samples.names(), samples.values(0..n)?);
    let known = known.filter(|known| known.samples == (0..n));
    let tuning = Tuning {
        table: setup.weight_scheme(),
        samples: Samples { names: &names, values: &values },
        n_tune: setup.options.effort.n_tune(n),
        methods: &methods,
        known: known.map(|known| &known.reference),
        outputs: setup.outputs,
        prepared: setup.prepared,
        progress: setup.progress,
    };
    let more = setup.more_samples(samples, &planned.model, methods.n_of_layers(), &(tuning.n_tune..n));
    let tuned = try_methods(planned, tuning).and_then(|first| match (first, more) {
        (Some(Tried { is_open: true, .. }), Some(more)) => {
            let values = samples.values(0..more.end)?;
            tune(planned, Tuning { samples: Samples { names: &names, values: &values }, known: None, ..tuning })
        }
        (first, _) => first.map(|tried| apply_accepted(planned, tuning, tried)).transpose(),
    });
    match tuned {
        Err(error) if !error.is::<HeadMismatch>() => {
            if !methods.is_empty() {
                planned.warnings.push(format!("tuning skipped: {error:#}"));
            }
            Ok(None)
        }
        tuned => tuned,
    }
}

/// Tunes a plan and the biases of its model.
///
/// # Errors
/// If there are too few samples, or a node cannot be run by itself; the message names it. The plan is then unchanged.
pub fn tune(planned: &mut PlannedModel, tuning: Tuning) -> Result<Option<Tuned>> {
    try_methods(planned, tuning)?.map(|tried| apply_accepted(planned, tuning, tried)).transpose()
}

/// Tries the methods on a plan, and measures it; `None` without a quantized weight or a held-out sample.
fn try_methods(planned: &PlannedModel, tuning: Tuning) -> Result<Option<Tried>> {
    let Tuning { samples, n_tune, .. } = tuning;
    if planned.plan.weights.is_empty() || n_tune >= samples.len() {
        return Ok(None);
    }
    ensure!(samples.len() >= MIN_SAMPLES, "found {}, expected {MIN_SAMPLES} or more", count(samples.len(), "sample"));
    Ok(Some(Trials::new(planned, tuning).run()?))
}

/// Replaces the plan and its biases by those with all accepted methods, and reports the tuning.
fn apply_accepted(planned: &mut PlannedModel, tuning: Tuning, tried: Tried) -> Result<Tuned> {
    let Tuning { table, n_tune, .. } = tuning;
    let plan = &planned.plan;
    let Tried { plain, best, methods, reference, .. } = tried;
    let measured = best.as_ref().and_then(|best| best.measured.clone()).unwrap_or_else(|| plain.clone());
    let judged = Judged::new(&Gain::of(&plain, &measured), plain.n_samples());
    let (n_biases, n_weights, n_rounded, n_ranges) = Default::default();
    let mut report =
        Tuned { n_samples: n_tune, judged, n_biases, n_weights, n_rounded, n_ranges, methods, measured, reference };
    if let Some(Candidate { plan: tuned, biases, .. }) = best {
        report.n_biases = biases.len();
        report.n_weights = n_changed_weights(plan, &tuned);
        report.n_ranges = n_changed_ranges(plan, &tuned);
        report.n_rounded = tuned.weights.iter().filter(|weight| weight.learned).count();
        planned.plan = tuned;
        replace_biases(planned, table, biases)?;
    } else {
        warn_of_unknown(&mut planned.warnings, &plain);
    }
    Ok(report)
}

/// Warns of outputs that are NaN or infinite with the untuned plan, which prevents tuning.
fn warn_of_unknown(warnings: &mut Vec<String>, plain: &Measurement) {
    for output in plain.non_finite_outputs() {
        warnings.push(format!(
            "output `{output}`: the simulated quantized network has NaN or infinite values, so no tuning was accepted"
        ));
    }
}

/// Returns the number of weights with new scales or integers.
fn n_changed_weights(before: &QuantPlan, after: &QuantPlan) -> usize {
    before.weights.iter().zip(&after.weights).filter(|(a, b)| a.params != b.params || a.integers != b.integers).count()
}

/// Returns the number of activation groups with new ranges.
fn n_changed_ranges(before: &QuantPlan, after: &QuantPlan) -> usize {
    let pairs = before.activations.iter().zip(&after.activations);
    let changed = pairs.filter(|(a, b)| a.params != b.params).map(|(a, _)| a.quantizer.group);
    changed.collect::<BTreeSet<usize>>().len()
}

/// Gives the model new biases, and the plan their integers.
fn replace_biases(
    planned: &mut PlannedModel,
    WeightScheme { scheme, observer }: WeightScheme,
    biases: BTreeMap<Edge, Vec<f32>>,
) -> Result<()> {
    let biases = named(planned.model.graph()?, biases);
    planned.edit(biases.iter().cloned().map(ModelEdit::ReplaceBias).collect())?;
    let PlannedModel { model, placement, plan, warnings, .. } = planned;
    let graph = model.graph()?;
    add_quantizers(graph, placement, plan, scheme, &biases);
    warnings.extend(decide_biases(graph, placement, scheme, observer, plan, false)?);
    Ok(())
}

/// Names the new biases.
fn named(graph: &GraphProto, biases: BTreeMap<Edge, Vec<f32>>) -> Vec<NewBias> {
    let mut names = Names::of(graph);
    let named = biases.into_iter().map(|((node_idx, input_idx), values)| {
        let node = &graph.node[node_idx];
        let base = match node.input.get(input_idx).filter(|name| !name.is_empty()) {
            Some(name) => name.clone(),
            None => format!("{}_bias", node_name(node)),
        };
        let name = names.fresh(&format!("{base}_corrected"));
        NewBias { node_idx, input_idx, name, values }
    });
    named.collect()
}

/// Adds quantizers for the new biases where the table stores biases as integers.
fn add_quantizers(
    graph: &GraphProto,
    placement: &mut Placement,
    plan: &QuantPlan,
    scheme: &Scheme,
    biases: &[NewBias],
) {
    for NewBias { node_idx, input_idx, name, .. } in biases {
        let (tensor, edge) = (name.clone(), (*node_idx, *input_idx));
        if let Some(quantizer) = placement.biases.iter_mut().find(|quantizer| quantizer.edge == edge) {
            quantizer.tensor = tensor;
            continue;
        }
        let node = &graph.node[*node_idx];
        let quantizer = new_quantizer(node, edge, placement, plan, scheme);
        placement.biases.extend(quantizer.map(|quantizer| BiasQuantizer { tensor, ..quantizer }));
    }
}
