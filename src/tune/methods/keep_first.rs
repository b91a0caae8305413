//! First layers that stay float, where a gate reads their quantized output at a high cost.
//!
//! The channels of a first convolution have very different ranges. Where SiLU, hard-swish or another gate reads its
//! quantized output, no channel scale can pass the gate, and all later layers inherit the loss.

use crate::onnx::node::node_name;
use crate::onnx::proto::GraphProto;
use crate::place::{ActivationQuantizer, Assigned, NetworkEnd, Placement, layers_at_end, place_assigned};
use crate::plan::decide;
use crate::scheme::FLOAT;
use crate::simulate::Samples;
use crate::tune::accept::INSERTION;
use crate::tune::compare::Biases;
use crate::tune::method::{Action, ChoiceContext, Chosen, Method};
use crate::tune::setup::{Evaluation, PlannedModel};
use crate::tune::variants::{Trial, Variant};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Leaves first layers float.
pub const KEEP_FIRST: Method = Method {
    name: "keep-first",
    title: "first layers float",
    about: "the first layers and those after them stay float where their quantized outputs are inputs of a gate",
    is_tried: |case| case.effort.level() > 0,
    waits: false,
    action: Action::Choice(choose),
};

/// Maximum consecutive layers that stay float.
const MAX_DEPTH: usize = 2;
/// Operators that are a gate or begin one.
const GATES: [&str; 8] = ["Sigmoid", "HardSigmoid", "HardSwish", "Mul", "Tanh", "Softplus", "Gelu", "Mish"];

/// Leaves the first layers float, or the next ones too, where that gains.
fn choose(context: &ChoiceContext, planned: &mut PlannedModel, known: &mut Option<Evaluation>) -> Result<Chosen> {
    let ChoiceContext { setup, methods, calibration } = *context;
    let mut chosen = Chosen::default();
    let Some(data) = setup.samples.filter(|_| !setup.has_given_ranges && !setup.has_goal) else { return Ok(chosen) };
    if !setup.scheme.mixed.contains_key(FLOAT) {
        return Ok(chosen);
    }
    let mut float: BTreeMap<usize, String> = BTreeMap::new();
    // Layers that were tried stay float in the next attempt, accepted or not.
    let mut tried = planned.placement.clone();
    for _ in 0..MAX_DEPTH {
        let model = &planned.model;
        let graph = model.graph()?;
        let first = first_layers(graph, &tried);
        let gated: Vec<usize> = first.into_iter().filter(|&layer| is_gated(graph, &tried, layer)).collect();
        if gated.is_empty() {
            break;
        }
        let samples = context.samples(data, model, known.as_ref())?;
        let (names, values) = (data.names(), data.values(samples.clone())?);
        let reason = "a first layer whose output is an input of a gate";
        float.extend(gated.iter().map(|&layer| (layer, reason.to_string())));
        let layers: Vec<&str> = float.keys().map(|&layer| node_name(&graph.node[layer])).collect();
        let assigned = Assigned { float: float.clone(), ..Assigned::default() };
        let without = place_assigned(graph, setup.value_info, setup.scheme, setup.selection, &assigned);
        let decided = decide(graph, &without, &calibration.of(&without), None, setup.scheme, setup.range_observers())?;
        let data = Samples { names: &names, values: &values };
        let reference = known.take().map(|known| known.reference);
        let mut trial = Trial::new(KEEP_FIRST, setup, planned, data, Biases::of(methods), reference);
        trial.enter(Some(layers.join(", ")), INSERTION, || Ok(Variant::of_plan(model, &without, decided)))?;
        let (best, outcomes, of_plan) = trial.finish();
        chosen.outcomes.extend(outcomes);
        let mut reference = of_plan;
        if let Some(best) = best {
            planned.replan(best.variant.decided);
            planned.placement = best.variant.placement;
            reference = Some(best.reference);
        }
        *known = reference.map(|reference| Evaluation { samples, reference });
        tried = without;
    }
    Ok(chosen)
}

/// Quantized layers with a weight that no other of them precedes.
fn first_layers(graph: &GraphProto, placement: &Placement) -> Vec<usize> {
    let edges = placement.weights.iter().flat_map(|weight| &weight.edges);
    let layers: BTreeSet<usize> = edges.map(|edge| edge.0).collect();
    layers_at_end(graph, NetworkEnd::First, |node_idx| layers.contains(&node_idx))
}

/// Whether a gate reads the quantized output of a layer.
fn is_gated(graph: &GraphProto, placement: &Placement, layer: usize) -> bool {
    let output = graph.node[layer].output.first();
    let quantizer = placement.activations.iter().find(|quantizer| Some(&quantizer.tensor) == output);
    let reads = |quantizer: &ActivationQuantizer| {
        quantizer.edges.iter().any(|edge| GATES.contains(&graph.node[edge.0].op_type()))
    };
    quantizer.is_some_and(reads)
}
