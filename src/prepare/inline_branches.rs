//! Replaces each If whose condition is known by the nodes of the branch that runs.
//!
//! PyTorch's exporter writes an If for `squeeze` of a dimension that it does not know, as in LocalResponseNorm: the
//! condition compares this dimension with 1. An If stays if
//!
//! 1. its condition depends on values or on an open dimension;
//! 2. a tensor of the branch has the name of a tensor of the graph.

use super::Change;
use super::fold_constants::drop_dead;
use super::values_of_shapes::values_of_shapes;
use crate::onnx::graph::{drop_unused, names_read, tensors};
use crate::onnx::names::Names;
use crate::onnx::node::{self, node_name};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use crate::onnx::tensor::{self, DataType};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let mut n_inlined = 0;
    // A condition can depend on the output of an If before it, and a branch can hold a further If.
    loop {
        let n = inline_known(model)?;
        n_inlined += n;
        if n == 0 {
            return Ok(Change::counted([(n_inlined, Change::InlinedBranches)]));
        }
    }
}

/// Inlines the Ifs whose conditions do not depend on another If. Returns their number.
fn inline_known(model: &mut ModelProto) -> Result<usize> {
    let conditions = known_conditions(model)?;
    if conditions.is_empty() {
        return Ok(0);
    }
    let graph = model.graph_mut()?;
    let (mut names, mut taken) = (Names::of(graph), tensors_of(graph));
    let (mut n_inlined, mut freed) = (0, BTreeSet::new());
    for node in std::mem::take(&mut graph.node) {
        let is_true = condition(&node).and_then(|name| conditions.get(name));
        let branch = is_true.and_then(|&is_true| branch(&node, if is_true { "then_branch" } else { "else_branch" }));
        let made = branch.map(tensors_of).unwrap_or_default();
        let Some(branch) = branch.filter(|_| made.is_disjoint(&taken)).cloned() else {
            graph.node.push(node);
            continue;
        };
        taken.extend(made);
        graph.node.extend(branch.node);
        graph.initializer.extend(branch.initializer);
        graph.sparse_initializer.extend(branch.sparse_initializer);
        graph.value_info.extend(branch.value_info);
        for (inner, output) in branch.output.iter().zip(&node.output).filter(|(_, output)| !output.is_empty()) {
            let name = names.fresh(&format!("{}/Identity", node_name(&node)));
            graph.node.push(node::make("Identity", &name, &[inner.name()], output));
        }
        freed.extend(node.input);
        n_inlined += 1;
    }
    let freed = drop_dead(graph, freed);
    drop_unused(graph, freed);
    Ok(n_inlined)
}

/// Returns the known conditions of Ifs, by the name of the tensor. The engine runs the part of the graph in front of
/// the conditions.
fn known_conditions(model: &ModelProto) -> Result<BTreeMap<String, bool>> {
    let graph = model.graph()?;
    let mut behind_if: BTreeSet<&str> = BTreeSet::new();
    let mut conditions = BTreeSet::new();
    for node in &graph.node {
        let condition = condition(node);
        conditions.extend(condition.filter(|name| !behind_if.contains(name)));
        if condition.is_some() || names_read(node).iter().any(|name| behind_if.contains(name)) {
            behind_if.extend(node.output.iter().map(String::as_str));
        }
    }
    if conditions.is_empty() {
        return Ok(BTreeMap::new());
    }
    let output = conditions.iter().map(|name| ValueInfoProto::without_shape(name, DataType::Bool as i32)).collect();
    let mut in_front = GraphProto { output, ..graph.clone() };
    let all = graph.node.iter().flat_map(|node| node.output.iter().cloned()).collect();
    drop_dead(&mut in_front, all);
    drop_unused(&mut in_front, graph.initializer.iter().map(|tensor| tensor.name().to_string()));
    let values = values_of_shapes(&ModelProto { graph: Some(in_front), ..model.clone() });
    let is_true = |name: &str| Some(tensor::is_true(&values.get(name)?.to_proto(name).ok()?));
    Ok(conditions.into_iter().filter_map(|name| Some((name.to_string(), is_true(name)?))).collect())
}

/// Returns the condition of an If; `None` for other nodes.
fn condition(node: &NodeProto) -> Option<&str> {
    let is_if = node::is_standard(node) && node.op_type() == "If";
    node.input.first().filter(|_| is_if).map(String::as_str)
}

fn branch<'a>(node: &'a NodeProto, name: &str) -> Option<&'a GraphProto> {
    node::attribute(node, name)?.g.as_ref()
}

/// Returns the names of the tensors that a graph has itself, without those of its subgraphs.
fn tensors_of(graph: &GraphProto) -> BTreeSet<String> {
    tensors(graph).into_iter().filter(|name| !name.is_empty()).map(str::to_string).collect()
}
