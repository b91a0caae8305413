//! Cuts a model at tensors into a head, which computes these tensors, and a tail, which reads them.

use super::graph::{GraphIndex, drop_unused, names_read};
use super::names::Names;
use super::node::PRODUCTS;
use super::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use super::value_info::ValueInfos;
use crate::diag::{WithHint, count, did_you_mean, quoted};
use anyhow::{Result, anyhow, ensure};
use std::collections::BTreeSet;

/// The two parts of a model that was cut at tensors.
pub struct Cut {
    /// The part that computes the tensors.
    pub head: ModelProto,
    /// The part that reads the tensors.
    pub tail: ModelProto,
    /// A warning if the tail repeats layers of the head.
    pub warning: Option<String>,
}

/// Cuts `model` at the tensors `outputs`. The head has these tensors as outputs, in this order. The tail computes the
/// model's other outputs from these tensors, and from inputs of the model where it reads some. Both parts keep the
/// names of all tensors.
///
/// # Errors
/// If a tensor is named twice, no node produces a tensor, or no other output of the model is computed from the tensors.
pub fn cut(model: &ModelProto, outputs: &[String]) -> Result<Cut> {
    let graph = model.graph()?;
    let index = GraphIndex::new(graph);
    let mut ends: BTreeSet<&str> = BTreeSet::new();
    for output in outputs {
        let names = || graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
        ensure!(
            index.producer(output).is_some(),
            anyhow!("--outputs names `{output}`, but no node produces that tensor").hint(
                match graph.node.iter().find(|node| node.name() == output).and_then(|node| node.output.first()) {
                    Some(tensor) => format!("that is a node; its output is `{tensor}`"),
                    None => did_you_mean(output, names()),
                }
            )
        );
        ensure!(ends.insert(output), "--outputs names `{output}` twice");
    }
    let named: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let left: Vec<&str> = graph.output.iter().map(|it| it.name()).filter(|name| !ends.contains(name)).collect();
    let tail_nodes = ancestors(graph, &index, &left, &ends);
    let is_read = |name: &str| tail_nodes.iter().any(|&i| graph.node[i].input.iter().any(|input| input == name));
    ensure!(
        !left.is_empty() && named.iter().any(|name| is_read(name)),
        "--outputs: no other output of the model is computed from `{}`",
        outputs.join("`, `")
    );
    let types = ValueInfos::of_model(model);
    let head_nodes = ancestors(graph, &index, &named, &BTreeSet::new());
    let warning = repeated(graph, &index, [&head_nodes, &tail_nodes]);
    let head = part(graph, &head_nodes, &[], &named, &types);
    let tail = part(graph, &tail_nodes, &named, &left, &types);
    let [head, tail] = [head, tail].map(|graph| ModelProto { graph: Some(graph), ..model.clone() });
    Ok(Cut { head, tail, warning })
}

/// Returns a warning if the tail repeats layers of the head. It names the tensors at which a further cut avoids that.
fn repeated(graph: &GraphProto, index: &GraphIndex, [head_nodes, tail_nodes]: [&BTreeSet<usize>; 2]) -> Option<String> {
    let both: BTreeSet<usize> = head_nodes.intersection(tail_nodes).copied().collect();
    let n_layers = both.iter().filter(|&&node_idx| PRODUCTS.contains(&graph.node[node_idx].op_type())).count();
    let has_layer = |name: &str| {
        let before = ancestors(graph, index, &[name], &BTreeSet::new());
        before.iter().any(|&node_idx| PRODUCTS.contains(&graph.node[node_idx].op_type()))
    };
    let of_tail = tail_nodes.difference(&both).flat_map(|&node_idx| names_read(&graph.node[node_idx]));
    let crossing: BTreeSet<&str> =
        of_tail.filter(|name| index.producer_idx(name).is_some_and(|node_idx| both.contains(&node_idx))).collect();
    let missing: Vec<&str> = crossing.into_iter().filter(|name| has_layer(name)).collect();
    (n_layers > 0 && !missing.is_empty()).then(|| {
        format!(
            "--outputs: the tail repeats {} of the head, because it also reads {}: add {} to --outputs",
            count(n_layers, "layer"),
            quoted(missing.iter(), ", "),
            if missing.len() == 1 { "that" } else { "them" }
        )
    })
}

/// Returns the positions of the nodes that compute the tensors `names`. The search stops at the tensors `ends`.
fn ancestors(graph: &GraphProto, index: &GraphIndex, names: &[&str], ends: &BTreeSet<&str>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut pending: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    while let Some(name) = pending.pop() {
        let producer = index.producer_idx(&name).filter(|_| !ends.contains(name.as_str()));
        if let Some(node_idx) = producer.filter(|node_idx| found.insert(*node_idx)) {
            pending.extend(names_read(&graph.node[node_idx]).into_iter().map(str::to_string));
        }
    }
    found
}

/// Returns a graph of the nodes at `nodes`. Tensors of `starts` that a node reads become inputs.
fn part(
    graph: &GraphProto,
    nodes: &BTreeSet<usize>,
    starts: &[&str],
    outputs: &[&str],
    types: &ValueInfos,
) -> GraphProto {
    let mut names = Names::of(graph);
    let mut nodes: Vec<NodeProto> = nodes.iter().map(|&node_idx| graph.node[node_idx].clone()).collect();
    // A node that also makes another output makes this one anew; its readers read the input.
    let outputs_again =
        nodes.iter_mut().flat_map(|node| &mut node.output).filter(|name| starts.contains(&name.as_str()));
    outputs_again.for_each(|name| *name = names.fresh(&format!("{name}_again")));
    let mut part = GraphProto { node: nodes, ..graph.clone() };
    let read: BTreeSet<String> = part.node.iter().flat_map(names_read).map(str::to_string).collect();
    let made: BTreeSet<&String> = part.node.iter().flat_map(|node| &node.output).collect();
    let declared = |name: &&str| -> ValueInfoProto {
        let mut known = graph.value_info.iter().chain(&graph.output);
        let known = known.find(|value| value.name() == *name).cloned();
        known.unwrap_or_else(|| ValueInfoProto::without_shape(name, types.data_type(name).unwrap_or(1)))
    };
    let starts = starts.iter().filter(|name| read.contains(**name)).map(declared);
    // An input may be an output of the model as well.
    let is_needed = |input: &&ValueInfoProto| read.contains(input.name()) || outputs.contains(&input.name());
    let inputs = graph.input.iter().filter(is_needed);
    let inputs = starts.chain(inputs.cloned()).collect();
    let value_info = graph.value_info.iter();
    let value_info =
        value_info.filter(|value| made.contains(&value.name().to_string()) && !outputs.contains(&value.name()));
    let value_info = value_info.cloned().collect();
    part.output = outputs.iter().map(declared).collect();
    (part.input, part.value_info) = (inputs, value_info);
    let initializers: Vec<String> = graph.initializer.iter().map(|tensor| tensor.name().to_string()).collect();
    drop_unused(&mut part, initializers);
    part
}
