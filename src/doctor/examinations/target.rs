//! Examinations of layers and nodes that the backend leaves float, by their cost.

use super::{Examined, Facts, NO_BACKEND};
use crate::check::Finding;
use crate::diag::{by_operator, count};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::{multiply_adds, node_name};
use crate::onnx::proto::GraphProto;
use crate::place::{FloatCause, FloatNode, MOVES, QUANTIZE_LINEAR_INPUTS_ALONE};
use crate::scheme::Scheme;
use std::collections::{BTreeMap, BTreeSet};

/// Share of the multiply-adds in float that is worth a finding.
const LEAST_SHARE: f64 = 0.05;

/// Convolutions and matrix products that stay float.
pub(super) fn float_operators(facts: &Facts) -> Examined {
    let (Some(scheme), Some(graph)) = (facts.scheme, &facts.model.graph) else {
        return Examined::Unknown(NO_BACKEND.to_string());
    };
    let shape = |name: &str| facts.value_info.shape(name).map(<[usize]>::to_vec);
    let costs: Option<Vec<usize>> = graph.node.iter().map(|node| multiply_adds(node, shape)).collect();
    let Some(costs) = costs else {
        return Examined::Unknown("shapes of tensors are unknown".to_string());
    };
    let total: usize = costs.iter().sum();
    let of_float = |node: &usize| costs[*node] > 0 && total > 0;
    let integer: BTreeSet<usize> = facts.placement.integer_nodes(graph, scheme).collect();
    let float = facts.placement.float_nodes.iter().map(|node| node.node).chain(facts.placement.quantized_nodes.clone());
    let float: Vec<usize> = float.filter(|node| of_float(node) && !integer.contains(node)).collect();
    let share = float.iter().map(|&node| costs[node]).sum::<usize>() as f64 / total.max(1) as f64;
    if share < LEAST_SHARE {
        return Examined::nothing();
    }
    let found =
        format!("{} ({})", share_in_percent(share), by_operator(float.iter().map(|&node| graph.node[node].op_type())));
    let expected = format!("below {:.0} %", 100.0 * LEAST_SHARE);
    let finding = Finding::new("the share of multiply-adds in float", found, expected);
    Examined::warning(finding.hint(&hint(scheme)))
}

/// Float nodes between integer layers.
pub(super) fn float_islands(facts: &Facts) -> Examined {
    let (Some(scheme), Some(graph)) = (facts.scheme, &facts.model.graph) else {
        return Examined::Unknown(NO_BACKEND.to_string());
    };
    // By design, which the user cannot change.
    let alone = |node: &FloatNode| node.rule == QUANTIZE_LINEAR_INPUTS_ALONE;
    if facts.placement.is_transformer && facts.placement.float_nodes.iter().any(alone) {
        return Examined::nothing();
    }
    let all = islands(facts, graph, scheme);
    let subject = "the number of float islands between integer layers";
    let found = |islands: &[&Island]| {
        let nodes = islands.iter().flat_map(|island| island.nodes.iter().map(|&node| graph.node[node].op_type()));
        format!(
            "{} ({}), with {} to float and back",
            islands.len(),
            by_operator(nodes),
            count(islands.iter().map(|island| island.n_conversions).sum(), "conversion"),
        )
    };
    let (avoidable, others): (Vec<&Island>, Vec<&Island>) = all.iter().partition(|island| island.is_avoidable());
    let Some(largest) = avoidable.iter().max_by_key(|island| island.n_values) else {
        let text =
            format!("{subject} is {}: rules of the table, missing rows or --exclude leave them float", found(&others));
        return if others.is_empty() { Examined::nothing() } else { Examined::Information(text) };
    };
    let first = node_name(&graph.node[largest.nodes[0]]);
    let size = count(largest.n_values, "value");
    let forms: BTreeSet<&str> = avoidable.iter().filter_map(|island| island.one_operator).collect();
    let forms = forms.iter().map(|form| format!("; an export with {form} as one operator takes fewer conversions"));
    let hint = format!(
        "the largest island, of {size} at a time, begins at `{first}`; {}{}",
        hint(scheme),
        forms.collect::<String>()
    );
    Examined::warning(Finding::new(subject, found(&avoidable), "0").hint(&hint))
}

/// Connected float nodes between integer layers.
struct Island {
    /// Positions, in the order of the graph.
    nodes: Vec<usize>,
    /// Number of tensors between the island and integer layers.
    n_conversions: usize,
    /// Number of values of all these tensors.
    n_values: usize,
    /// The operators in place of which another export has one operator, by its name; `None` if the nodes are no part of
    /// such an operator.
    one_operator: Option<&'static str>,
    /// Whether all nodes, except those that only move values, are float for lack of a quantized neighbor.
    is_alone: bool,
}

impl Island {
    /// Whether another export of the model has fewer conversions. Rules and missing rows of the table are the target's.
    fn is_avoidable(&self) -> bool {
        self.one_operator.is_some() || self.is_alone
    }
}

/// Operators of which an activation function or a normalization is made where it is not one operator, with the name of
/// that operator.
const PARTS_OF: &[(&[&str], &str)] = &[
    (&["Erf"], "Gelu"),
    (&["Tanh", "Mul", "Add"], "Gelu"),
    (&["Softplus", "Tanh"], "Mish"),
    (&["Sub", "Sqrt", "Div"], "LayerNormalization"),
    (&["Exp", "ReduceSum", "Div"], "Softmax"),
];

/// Returns the operator of which the nodes are parts: one that the table has a row for while it has none for a part, or
/// a hard-swish or hard Sigmoid, which a sum with a constant in front of a Clip shows.
fn one_operator(
    graph: &GraphProto,
    index: &GraphIndex,
    scheme: &Scheme,
    nodes: &BTreeMap<usize, FloatCause>,
) -> Option<&'static str> {
    let op = |node: usize| graph.node[node].op_type();
    let is_shift =
        |node: usize| op(node) == "Add" && graph.node[node].input.iter().any(|name| index.initializer(name).is_some());
    let bounds_shift = |node: usize| {
        let producer = graph.node[node].input.first().and_then(|name| index.producer_idx(name));
        op(node) == "Clip" && producer.is_some_and(is_shift)
    };
    let is_hard = |node: usize| {
        let producers = graph.node[node].input.iter().filter_map(|name| index.producer_idx(name));
        let readers = graph.node[node].output.iter().flat_map(|name| index.consumers(name)).map(|edge| edge.0);
        producers.chain(readers).chain([node]).any(bounds_shift)
    };
    if nodes.keys().any(|&node| is_hard(node)) {
        return Some("HardSwish or HardSigmoid");
    }
    let has = |part: &&str| nodes.keys().any(|&node| op(node) == *part);
    let lacks = |part: &&str| nodes.iter().any(|(&node, cause)| op(node) == *part && *cause == FloatCause::NotListed);
    let is_made = |parts: &[&str]| parts.iter().all(has) && parts.iter().any(lacks);
    let found = PARTS_OF.iter().find(|(parts, whole)| scheme.ops.contains_key(*whole) && is_made(parts));
    found.map(|(_, whole)| *whole)
}

fn islands(facts: &Facts, graph: &GraphProto, scheme: &Scheme) -> Vec<Island> {
    let index = GraphIndex::new(graph);
    let is_fused = |cause: &FloatCause| matches!(cause, FloatCause::Fused(_));
    let float = facts.placement.float_nodes.iter().filter(|node| !is_fused(&node.cause)).map(|node| node.node);
    let float: BTreeSet<usize> = float.collect();
    let integer: BTreeSet<usize> = facts.placement.integer_nodes(graph, scheme).collect();
    let fused: BTreeMap<usize, usize> = facts
        .placement
        .float_nodes
        .iter()
        .filter_map(|node| match node.cause {
            FloatCause::Fused(layer) => Some((node.node, layer)),
            _ => None,
        })
        .collect();
    let causes: BTreeMap<usize, FloatCause> =
        facts.placement.float_nodes.iter().map(|node| (node.node, node.cause)).collect();
    let is_integer = |node: &usize| integer.contains(node) || fused.contains_key(node);
    let mut left = float.clone();
    let mut found = Vec::new();
    while let Some(first) = left.pop_first() {
        let (mut nodes, mut todo) = (BTreeSet::from([first]), vec![first]);
        let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
        while let Some(node_idx) = todo.pop() {
            let node = &graph.node[node_idx];
            let producers = node.input.iter().filter_map(|name| Some((name, index.producer_idx(name)?)));
            let readers =
                node.output.iter().flat_map(|name| index.consumers(name).iter().map(move |edge| (name, edge.0)));
            let neighbours = producers.map(|it| (it, true)).chain(readers.map(|it| (it, false)));
            for ((tensor, neighbour), is_before) in neighbours {
                if is_integer(&neighbour) {
                    if is_before { &mut before } else { &mut after }.insert(tensor.as_str());
                } else if left.remove(&neighbour) {
                    nodes.insert(neighbour);
                    todo.push(neighbour);
                }
            }
        }
        // Runtimes move the conversions past nodes that only move values.
        let moves = nodes.iter().all(|&node| MOVES.contains(&graph.node[node].op_type()));
        if !before.is_empty() && !after.is_empty() && !moves {
            let tensors: BTreeSet<&str> = before.union(&after).copied().collect();
            let causes = nodes.iter().filter_map(|node| Some((*node, *causes.get(node)?)));
            let causes: BTreeMap<usize, FloatCause> = causes.collect();
            let computes = |node: usize| !MOVES.contains(&graph.node[node].op_type());
            let is_alone = |(node, cause): (&usize, &FloatCause)| !computes(*node) || *cause == FloatCause::Alone;
            let size = |name: &&str| facts.value_info.shape(name).map_or(0, |shape| shape.iter().product::<usize>());
            found.push(Island {
                nodes: nodes.into_iter().collect(),
                n_conversions: tensors.len(),
                n_values: tensors.iter().map(size).sum(),
                one_operator: one_operator(graph, &index, scheme, &causes),
                is_alone: causes.iter().all(is_alone),
            });
        }
    }
    found
}

/// Returns a share in percent, with a decimal where it is the limit without one.
fn share_in_percent(share: f64) -> String {
    let is_limit = (100.0 * share).round() == (100.0 * LEAST_SHARE).round();
    format!("{:.*} %", usize::from(is_limit), 100.0 * share)
}

/// Returns the command that prints the reasons.
fn hint(scheme: &Scheme) -> String {
    format!("`mqq inspect MODEL --backend {}` prints the reason for each node", scheme.name)
}
