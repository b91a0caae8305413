//! First layers that stay float, or get wider types, because a gate reads their quantized output at a high cost, or
//! because they multiply raw features.
//!
//! The channels of a first convolution have very different ranges. Where SiLU, hard-swish or another gate reads its
//! quantized output, no channel scale can pass the gate, and all later layers inherit the loss. On a target without
//! float the layers and their gates become a region of wider types, with a conversion at each border. Raw features have
//! ranges of all kinds. Their 8 bits cause the largest error of networks that read sensors, coordinates or states.

use crate::calibrate::CalibrationStatistics;
use crate::diag::count;
use crate::onnx::edit::{ModelEdit, edited};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::{PRODUCTS, multiply_adds, node_name};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::place::{
    ActivationQuantizer, Assigned, NetworkEnd, Placement, WideNodes, layers_at_end, place_assigned, with_followers,
};
use crate::plan::decide;
use crate::scheme::{FLOAT, Region};
use crate::simulate::Samples;
use crate::tune::accept::INSERTION;
use crate::tune::compare::Biases;
use crate::tune::method::{Action, ChoiceContext, Chosen, Method};
use crate::tune::outcome::MethodOutcome;
use crate::tune::setup::{Evaluation, PlannedModel, Setup};
use crate::tune::variants::{Trial, Variant};
use anyhow::Result;
use std::collections::BTreeSet;

/// The method that leaves first layers float, or gives them wider types.
pub const KEEP_FIRST: Method = Method {
    name: "keep-first",
    title: "first layers",
    about: "the first layers and the layers after them stay float, or get the wider types of a table's `region`, where a gate reads their quantized outputs, or where they are small matrix products of the network's inputs",
    is_tried: |case| case.effort.level() > 0,
    waits: false,
    action: Action::Choice(choose),
};

/// Maximum consecutive layers that stay float or get wider types.
const MAX_DEPTH: usize = 2;
/// Operators that are a gate or begin one.
const GATES: [&str; 8] = ["Sigmoid", "HardSigmoid", "HardSwish", "Mul", "Tanh", "Softplus", "Gelu", "Mish"];

/// Leaves the first layers float or gives them wider types, where that gains. Then tries the same with the next layers
/// added.
fn choose(context: &ChoiceContext, planned: &mut PlannedModel, known: &mut Option<Evaluation>) -> Result<Chosen> {
    let ChoiceContext { setup, methods, calibration } = *context;
    let mut chosen = Chosen::default();
    let Some(data) = setup.samples.filter(|_| !setup.has_given_ranges && !setup.has_goal) else { return Ok(chosen) };
    let PlannedModel { model, placement, edits, .. } = planned.clone();
    let graph = model.graph()?;
    // Layers that were tried are part of the next attempt, whether they were accepted or not.
    let mut layers: BTreeSet<usize> = BTreeSet::new();
    for _ in 0..MAX_DEPTH {
        let n_before = layers.len();
        let first = first_layers(graph, &placement, &layers);
        let of_features = layers.is_empty() && are_of_features(setup, graph, &placement, &first);
        layers.extend(first.into_iter().filter(|&layer| of_features || is_gated(graph, &placement, layer)));
        if layers.len() == n_before || !may_stay_float(setup, graph, &placement, &layers) {
            break;
        }
        let variant = match (setup.scheme.mixed.contains_key(FLOAT), &setup.scheme.region) {
            (true, _) => Some(left_float(setup, (&model, &placement), &layers, calibration)?),
            (false, Some(region)) => widened(setup, &model, region, &layers, calibration)?,
            (false, None) => None,
        };
        let Some(variant) = variant else { break };
        let samples = context.samples(data, &model, known.as_ref())?;
        let (names, values) = (data.names(), data.values(samples.clone())?);
        let title = layers.iter().map(|&layer| node_name(&graph.node[layer])).collect::<Vec<_>>().join(", ");
        let details = match variant.edits.len() {
            0 => Vec::new(),
            n => vec![format!(
                "{} in a region of wider types, {n} conversions at its borders",
                count(layers.len(), "layer")
            )],
        };
        let data = Samples { names: &names, values: &values };
        let reference = known.take().map(|known| known.reference);
        let mut trial = Trial::new(KEEP_FIRST, setup, planned, data, Biases::of(methods), reference);
        trial.enter(Some(title), INSERTION, || Ok(variant))?;
        let (best, outcomes, of_plan) = trial.finish();
        chosen
            .outcomes
            .extend(outcomes.into_iter().map(|outcome| MethodOutcome { details: details.clone(), ..outcome }));
        let mut reference = of_plan;
        if let Some(best) = best {
            planned.replan(best.variant.decided);
            planned.placement = best.variant.placement;
            planned.model = best.variant.model;
            planned.edits = [&edits[..], &best.variant.edits].concat();
            chosen.statistics.extend(best.variant.statistics);
            reference = Some(best.reference);
        }
        *known = reference.map(|reference| Evaluation { samples, reference });
    }
    Ok(chosen)
}

/// Makes the variant with `layers` and their gates float.
fn left_float(
    setup: Setup,
    (model, placement): (&ModelProto, &Placement),
    layers: &BTreeSet<usize>,
    calibration: &CalibrationStatistics,
) -> Result<Variant> {
    let graph = model.graph()?;
    let is_quantized = |node_idx: usize| placement.quantized_nodes.contains(&node_idx);
    let nodes = with_followers(graph, layers, is_quantized);
    let reason = |node: &usize| match layers.contains(node) {
        true if is_gated(graph, placement, *node) => "a first layer whose output is an input of a gate",
        true => "a first layer that multiplies the network's inputs",
        false => "the layer follows a first layer that stays float",
    };
    let quantized = nodes.iter().filter(|node| is_quantized(**node));
    let float = quantized.map(|node| (*node, reason(node).to_string())).collect();
    let assigned = Assigned { float, ..Assigned::default() };
    let placement = place_assigned(graph, setup.value_info, setup.scheme, setup.selection, &assigned);
    let statistics = calibration.for_quantizers(&placement);
    let decided = decide(graph, &placement, &statistics, None, setup.scheme, setup.range_observers())?;
    Ok(Variant::of_plan(model, &placement, decided))
}

/// Makes the variant with `layers` and their gates in a region of wider types. `None` where the region has no row for a
/// layer, or would hold an output of the network.
fn widened(
    setup: Setup,
    model: &ModelProto,
    region: &Region,
    layers: &BTreeSet<usize>,
    calibration: &CalibrationStatistics,
) -> Result<Option<Variant>> {
    let graph = model.graph()?;
    let has_row = |node_idx: usize| region.ops.contains_key(graph.node[node_idx].op_type());
    let nodes = with_followers(graph, layers, has_row);
    let index = GraphIndex::new(graph);
    let is_output = |node: &usize| graph.node[*node].output.iter().any(|name| index.is_output(name));
    if !layers.iter().all(|&layer| has_row(layer)) || nodes.iter().any(is_output) {
        return Ok(None);
    }
    let Some(WideNodes { outputs, copies }) = WideNodes::of(graph, setup.value_info, &nodes, setup.copies) else {
        return Ok(None);
    };
    let statistics = calibration.of_copies(&copies);
    let edits: Vec<ModelEdit> = copies.into_iter().map(ModelEdit::InsertCopy).collect();
    let changed = edited(model, &edits)?;
    let graph = changed.graph()?;
    let is_inside =
        |node_idx: &usize| graph.node[*node_idx].output.first().is_some_and(|output| outputs.contains(output));
    let assigned = Assigned { region: (0..graph.node.len()).filter(is_inside).collect(), ..Assigned::default() };
    let placement = place_assigned(graph, setup.value_info, setup.scheme, setup.selection, &assigned);
    let all = calibration.for_quantizers_with(&placement, &statistics);
    let decided = decide(graph, &placement, &all, None, setup.scheme, setup.range_observers())?;
    Ok(Some(Variant { edits, statistics, ..Variant::of_plan(&changed, &placement, decided) }))
}

/// Returns the quantized layers with a weight.
fn weighted_layers(placement: &Placement) -> BTreeSet<usize> {
    placement.weights.iter().flat_map(|weight| &weight.edges).map(|edge| edge.0).collect()
}

/// Returns the quantized layers with a weight that no other such layer precedes. Layers in `without` do not count.
fn first_layers(graph: &GraphProto, placement: &Placement, without: &BTreeSet<usize>) -> Vec<usize> {
    let layers: BTreeSet<usize> = weighted_layers(placement).difference(without).copied().collect();
    layers_at_end(graph, NetworkEnd::First, |node_idx| layers.contains(&node_idx))
}

/// Whether the layers are not all quantized layers, and the matrix products among them are small enough to stay float.
fn may_stay_float(setup: Setup, graph: &GraphProto, placement: &Placement, layers: &BTreeSet<usize>) -> bool {
    let shape = |name: &str| setup.value_info.shape(name).map(<[usize]>::to_vec);
    let cost = |node: &NodeProto| multiply_adds(node, shape).unwrap_or(0) as f64;
    let total: f64 = graph.node.iter().map(cost).sum();
    let products = layers.iter().map(|&layer| &graph.node[layer]).filter(|node| is_product(node));
    let of_products: Vec<f64> = products.map(cost).collect();
    let are_small = of_products.iter().sum::<f64>() <= setup.options.rescue * total && !of_products.contains(&0.0);
    layers.len() < weighted_layers(placement).len() && are_small
}

fn is_product(node: &NodeProto) -> bool {
    matches!(node.op_type(), "Gemm" | "MatMul")
}

/// Whether the layers `first` are matrix products of the network's inputs. Never in a transformer, whose first layers
/// multiply embeddings, and never without rescue.
fn are_of_features(setup: Setup, graph: &GraphProto, placement: &Placement, first: &[usize]) -> bool {
    let of_all = layers_at_end(graph, NetworkEnd::First, |node_idx| PRODUCTS.contains(&graph.node[node_idx].op_type()));
    let is_of_features = |layer: &usize| of_all.contains(layer) && is_product(&graph.node[*layer]);
    !first.is_empty() && first.iter().all(is_of_features) && !placement.is_transformer && setup.options.rescue > 0.0
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
