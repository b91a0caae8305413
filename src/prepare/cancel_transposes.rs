//! Removes Transposes that undo each other across nodes that can run on another order of the axes.
//!
//! Exports of networks with channels last have a Transpose before and behind every convolution. Normalization,
//! activation and residual sums stand between two Transposes, where the patterns of a backend do not match. Between
//! Transposes of one order and Transposes of the inverse order, nodes can run on the original order of the axes:
//!
//! 1. elementwise operators, with constants that have at most one axis with several values;
//! 2. Concat, Split, Softmax, Pad and reductions that keep their axes, once their axes are renumbered.
//!
//! Connected nodes are moved together, to the original order of the axes, if this removes more Transposes than it adds.
//! A moved tensor with other readers gets a new Transpose for them. A moved tensor takes the name of the output of the
//! Transpose that it replaces.

use super::Change;
use super::renamed_tensors::RenamedTensors;
use crate::onnx::graph::{DisjointSets, GraphIndex, drop_unused};
use crate::onnx::names::Names;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Elementwise operators: an output value depends on the values at the same position of all inputs.
const ELEMENTWISE: &[&str] = &[
    "Abs", "Add", "Cast", "Ceil", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
    "HardSwish", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu",
    "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu",
];

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let graph = model.graph_mut()?;
    let orders: BTreeSet<Vec<usize>> = graph.node.iter().filter_map(order_of).collect();
    let mut n_removed = 0;
    for order in orders.iter().filter(|order| orders.contains(&inverse(order))) {
        n_removed += cancel(graph, order)?;
    }
    Ok(Change::counted([(n_removed, Change::CancelledTransposes)]))
}

/// Returns the axes of a Transpose's input in the order of its output; `None` for other nodes, and if the order is not
/// given.
fn order_of(node: &NodeProto) -> Option<Vec<usize>> {
    let is_transpose = node.op_type() == "Transpose" && node::is_standard(node);
    let perm =
        node::attribute(node, "perm").filter(|_| is_transpose && [node.input.len(), node.output.len()] == [1, 1])?;
    let order: Vec<usize> = perm.ints.iter().map(|&axis| usize::try_from(axis).ok()).collect::<Option<_>>()?;
    let axes: BTreeSet<usize> = order.iter().copied().collect();
    axes.iter().copied().eq(0..order.len()).then_some(order)
}

fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    for (position, &axis) in order.iter().enumerate() {
        inverse[axis] = position;
    }
    inverse
}

/// The role of a node between Transposes of an order and Transposes of the inverse order.
enum TransposeRole {
    /// A Transpose of the order.
    First,
    /// A Transpose of the inverse order, whose input is available on the original axes.
    Second,
    /// A node that can run on the original axes: the moved node, and its new constants by input index.
    Between(Box<NodeProto>, Vec<(usize, TensorProto)>),
}

/// Removes Transposes of an order and of the inverse order. Returns by how much the number of Transposes falls.
fn cancel(graph: &mut GraphProto, order: &[usize]) -> Result<usize> {
    let index = GraphIndex::new(graph);
    let roles = find_roles(graph, &index, order);
    let has_other_readers = |name: &str| {
        let mut readers = index.consumers(name).iter();
        index.is_output(name)
            || index.is_captured(name)
            || readers.any(|&(reader, _)| !reads_original_axes(&roles, reader))
    };
    let saved = transposes_saved(graph, &index, &roles, has_other_readers);
    let chosen = roles.keys().filter(|node_idx| saved[node_idx].1 > 0).copied();
    let by_group: BTreeMap<usize, isize> = saved.values().copied().filter(|(_, gain)| *gain > 0).collect();
    let n_removed: isize = by_group.values().sum();

    // A moved tensor takes the name of the output of a second Transpose that reads it, or else a new name.
    let mut names = Names::of(graph);
    let mut moved: HashMap<String, String> = HashMap::new();
    let mut renamed = RenamedTensors::default();
    let (mut gone, mut transposed, mut nodes) = (BTreeSet::new(), Vec::new(), Vec::new());
    for node_idx in chosen {
        let node = &graph.node[node_idx];
        match &roles[&node_idx] {
            TransposeRole::First => {
                moved.insert(node.output[0].clone(), node.input[0].clone());
                if !has_other_readers(&node.output[0]) {
                    gone.insert(node_idx);
                }
            }
            TransposeRole::Between(..) => {
                for name in named(&node.output) {
                    let mut readers = index.consumers(name).iter().map(|&(reader, _)| reader);
                    let second = readers.find(|reader| matches!(roles.get(reader), Some(TransposeRole::Second)));
                    let new = second.map(|reader| graph.node[reader].output[0].clone());
                    let new = new.unwrap_or_else(|| names.fresh(&format!("{name}_transposed")));
                    if has_other_readers(name) {
                        transposed.push((new.clone(), name.clone()));
                    }
                    moved.insert(name.clone(), new);
                }
                nodes.push(node_idx);
            }
            TransposeRole::Second => {
                let Some(source) = moved.get(&node.input[0]) else { continue };
                if *source != node.output[0] {
                    renamed.insert(node.output[0].clone(), source.clone());
                }
                gone.insert(node_idx);
            }
        }
    }
    let mut roles = roles;
    let mut old_constants = Vec::new();
    for node_idx in nodes {
        let Some(TransposeRole::Between(mut node, constants)) = roles.remove(&node_idx) else { continue };
        for (slot, mut constant) in constants {
            let name = names.fresh(&format!("{}_transposed", node.input[slot]));
            constant.name = Some(name.clone());
            old_constants.push(std::mem::replace(&mut node.input[slot], name));
            graph.initializer.push(constant);
        }
        for name in node.input.iter_mut().chain(&mut node.output) {
            if let Some(new) = moved.get(name) {
                name.clone_from(new);
            }
        }
        graph.node[node_idx] = *node;
    }
    renamed.apply(graph, &gone);
    graph.value_info.retain(|value| !moved.contains_key(value.name()));
    for (source, name) in transposed {
        let Some(at) = graph.node.iter().position(|node| node.output.contains(&source)) else { continue };
        let mut node = node::make("Transpose", &names.fresh(&format!("{name}_transpose")), &[&source], &name);
        node::set_ints(&mut node, "perm", order.iter().map(|&axis| axis as i64).collect());
        graph.node.insert(at + 1, node);
    }
    drop_unused(graph, old_constants);
    Ok(n_removed.unsigned_abs())
}

/// Returns the roles of nodes, by position, for Transposes of an order and of the inverse order. A node between them
/// has no role if no second Transpose follows it.
fn find_roles(graph: &GraphProto, index: &GraphIndex, order: &[usize]) -> BTreeMap<usize, TransposeRole> {
    let inverse = inverse(order);
    let mut roles: BTreeMap<usize, TransposeRole> = BTreeMap::new();
    let mut available: BTreeSet<&str> = BTreeSet::new();
    for (node_idx, node) in graph.node.iter().enumerate() {
        let order_of_node = order_of(node);
        // Outputs of the graph keep their names, and so do tensors that subgraphs read.
        let is_fixed = |name: &str| index.is_output(name) || index.is_captured(name);
        let is_free = || available.contains(node.input[0].as_str()) && !is_fixed(&node.output[0]);
        // The second role is tried first, as an order may be its own inverse.
        let role = if order_of_node.as_ref() == Some(&inverse) && is_free() {
            TransposeRole::Second
        } else if order_of_node.as_deref() == Some(order) {
            TransposeRole::First
        } else {
            let Some((node, constants)) = between(index, node, order, &available) else { continue };
            TransposeRole::Between(Box::new(node), constants)
        };
        if !matches!(role, TransposeRole::Second) {
            available.extend(named(&node.output).map(String::as_str));
        }
        roles.insert(node_idx, role);
    }
    for (node_idx, node) in graph.node.iter().enumerate().rev() {
        let is_needed =
            |name: &String| index.consumers(name).iter().any(|(reader, _)| reads_original_axes(&roles, *reader));
        if matches!(roles.get(&node_idx), Some(TransposeRole::Between(..))) && !node.output.iter().any(is_needed) {
            roles.remove(&node_idx);
        }
    }
    roles
}

/// Returns, for each node with a role, its group of connected nodes, and by how much the number of Transposes falls if
/// the group is moved.
fn transposes_saved(
    graph: &GraphProto,
    index: &GraphIndex,
    roles: &BTreeMap<usize, TransposeRole>,
    has_other_readers: impl Fn(&str) -> bool,
) -> BTreeMap<usize, (usize, isize)> {
    let mut groups = DisjointSets::default();
    for (&node_idx, _) in roles.iter().filter(|(_, role)| !matches!(role, TransposeRole::Second)) {
        let readers = named(&graph.node[node_idx].output).flat_map(|name| index.consumers(name));
        let takers = readers.map(|&(reader, _)| reader).filter(|&reader| reads_original_axes(roles, reader));
        takers.for_each(|reader| groups.join(node_idx, reader));
    }
    let mut by_group: HashMap<usize, isize> = HashMap::new();
    for (&node_idx, role) in roles {
        let others = named(&graph.node[node_idx].output).filter(|name| has_other_readers(name)).count() as isize;
        *by_group.entry(groups.of(node_idx)).or_default() += match role {
            TransposeRole::First => 1 - others,
            TransposeRole::Second => 1,
            TransposeRole::Between(..) => -others,
        };
    }
    let of_node = |&node_idx: &usize| (node_idx, (groups.of(node_idx), by_group[&groups.of(node_idx)]));
    roles.keys().map(of_node).collect()
}

/// Returns the names that are not empty.
fn named(names: &[String]) -> impl Iterator<Item = &String> {
    names.iter().filter(|name| !name.is_empty())
}

/// Whether a node reads tensors on the original axes once its group is moved.
fn reads_original_axes(roles: &BTreeMap<usize, TransposeRole>, node_idx: usize) -> bool {
    matches!(roles.get(&node_idx), Some(TransposeRole::Second | TransposeRole::Between(..)))
}

/// Returns the node on the axes before a Transpose of this order, with new constants by input index; `None` if it
/// cannot run on these axes, or reads tensors that are not available on them.
fn between(
    index: &GraphIndex,
    node: &NodeProto,
    order: &[usize],
    available: &BTreeSet<&str>,
) -> Option<(NodeProto, Vec<(usize, TensorProto)>)> {
    let is_available = |name: &String| available.contains(name.as_str());
    if !node::is_standard(node) || !node.input.iter().any(is_available) {
        return None;
    }
    let mut moved = node.clone();
    let mut constants = Vec::new();
    let op = node.op_type();
    if ELEMENTWISE.contains(&op) {
        for (slot, name) in node.input.iter().enumerate().filter(|(_, name)| !name.is_empty() && !is_available(name)) {
            constants.extend(transposed(index.initializer(name)?, order)?.map(|constant| (slot, constant)));
        }
        return Some((moved, constants));
    }
    let axis = |axis: i64| {
        let position = node::from_first(axis, order.len());
        order.get(usize::try_from(position).ok()?).map(|&axis| axis as i64)
    };
    let (first, others) = node.input.split_first()?;
    match op {
        "Concat" if node.input.iter().all(is_available) => {
            node::set_int(&mut moved, "axis", axis(node::int(node, "axis", 0))?);
        }
        _ if !is_available(first) || others.iter().any(is_available) => return None,
        "Softmax" | "LogSoftmax" => node::set_int(&mut moved, "axis", axis(node::int(node, "axis", -1))?),
        "Split" => node::set_int(&mut moved, "axis", axis(node::int(node, "axis", 0))?),
        "Pad" if others.get(2).is_none_or(String::is_empty) => {
            let pads = tensor::i64_values(index.initializer(others.first()?)?).ok()?;
            let rank = order.len();
            if pads.len() != 2 * rank {
                return None;
            }
            let mut of_axes = pads.clone();
            for (position, &axis) in order.iter().enumerate() {
                of_axes[axis] = pads[position];
                of_axes[rank + axis] = pads[rank + position];
            }
            constants.push((1, tensor::from_i64("pads", &[of_axes.len()], &of_axes).ok()?));
        }
        _ if op.starts_with("Reduce") && node::int(node, "keepdims", 1) == 1 => {
            let old = match index.axes(node) {
                None if others.first().is_some_and(|name| !name.is_empty()) => return None,
                axes => axes.unwrap_or_default(),
            };
            let axes: Vec<i64> = old.into_iter().map(axis).collect::<Option<_>>()?;
            if let Some(attribute) = moved.attribute.iter_mut().find(|attribute| attribute.name() == "axes") {
                attribute.ints = axes;
            } else if !axes.is_empty() {
                constants.push((1, tensor::from_i64("axes", &[axes.len()], &axes).ok()?));
            }
        }
        _ => return None,
    }
    Some((moved, constants))
}

/// Returns a constant operand on the axes before a Transpose of this order. `Some(None)` means that the constant stays
/// unchanged, `None` that it has several axes with more than one value.
fn transposed(stored: &TensorProto, order: &[usize]) -> Option<Option<TensorProto>> {
    let shape = tensor::shape(stored).ok()?;
    let missing = order.len().checked_sub(shape.len())?;
    let mut wide = shape.iter().enumerate().filter(|&(_, &dim)| dim != 1);
    let Some((axis, &dim)) = wide.next() else { return Some(None) };
    if wide.next().is_some() {
        return None;
    }
    let mut dims = vec![1; order.len()];
    dims[order[axis + missing]] = dim as i64;
    Some(Some(TensorProto { dims, ..stored.clone() }))
}
