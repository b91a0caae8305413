//! Tensors that some nodes read as float, because no grid holds their values.

use super::Draft;
use super::trace::MOVES;
use crate::onnx::graph::{Edge, GraphIndex};
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, NodeProto};
use std::collections::{BTreeMap, BTreeSet};

/// Tensors with observed values that no grid holds, by the kind of these values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffGrid {
    /// Tensors with minus infinity that are not the mask of a Softmax alone. All nodes read them as float.
    pub infinite: BTreeSet<String>,
    /// Tensors with values other than 0 that a grid rounds to 0. Uses at a pole read them as float.
    pub near_zero: BTreeSet<String>,
}

impl OffGrid {
    /// Whether there are no such tensors.
    pub fn is_empty(&self) -> bool {
        self.infinite.is_empty() && self.near_zero.is_empty()
    }
}

/// Operators whose result is 0 where their input is 0, besides [`MOVES`].
const KEEP_ZERO: &[&str] = &["Abs", "Cast", "Concat", "MaxPool", "Mul", "Neg", "ReduceMax", "Sqrt"];

/// Largest constant that is added to a divisor only so that it is not 0.
const MAX_EPSILON: f32 = 1e-3;

/// Returns the uses of a tensor where a value of 0 makes a result infinite: the divisor of a Div, the input of a
/// Reciprocal, a Log, and a Pow with a negative exponent. Uses by operators before these that keep a 0 are included, and
/// those by an Add of an epsilon, where a 0 makes the result much too large. The value is the epsilon, or 0: smaller
/// values do not count.
pub fn uses_at_poles(index: &GraphIndex, graph: &GraphProto) -> BTreeMap<Edge, f64> {
    let mut uses = BTreeMap::new();
    let mut tensors: BTreeSet<&str> = BTreeSet::new();
    for (node_idx, node) in graph.node.iter().enumerate().rev().filter(|(_, node)| node::is_standard(node)) {
        let is_before_pole = node.output.iter().any(|output| tensors.contains(output.as_str()));
        let op = node.op_type();
        let added = if op == "Add" && is_before_pole { index.constant_operand(node) } else { None };
        let epsilon = added.and_then(|slot| {
            let largest = index.floats(&node.input[slot])?.into_iter().fold(0.0, |most: f32, it| most.max(it.abs()));
            (largest <= MAX_EPSILON).then_some((1 - slot, f64::from(largest)))
        });
        for (input_idx, name) in node.input.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let is_at_pole = match (op, input_idx) {
                ("Div", 1) | ("Reciprocal" | "Log", 0) => true,
                ("Pow", 0) => index.exponents(node).is_some_and(|exponents| {
                    exponents.iter().any(|exponent| *exponent < 0.0 || *exponent > 0.0 && is_before_pole)
                }),
                ("Div", 0) => is_before_pole,
                ("Add", _) => epsilon.is_some_and(|(slot, _)| slot == input_idx),
                _ => is_before_pole && (KEEP_ZERO.contains(&op) || MOVES.contains(&op) && input_idx == 0),
            };
            if is_at_pole {
                uses.insert((node_idx, input_idx), epsilon.map_or(0.0, |(_, epsilon)| epsilon));
                tensors.insert(name);
            }
        }
    }
    uses
}

/// Leaves the uses float that read values which no grid holds. A node with a row in the table stays float with all its
/// inputs. If the target has no float units, that is done only where the node costs nothing in float: it has no row, or
/// all nodes that read its outputs stay float.
pub(super) fn leave_uses_float(draft: &mut Draft, tensors: &OffGrid) {
    if tensors.is_empty() {
        return;
    }
    let at_poles = uses_at_poles(&draft.index, draft.graph);
    for (node_idx, node) in draft.graph.node.iter().enumerate().rev() {
        let has_row = draft.table_row(node_idx).is_some();
        if has_row && !draft.scheme.allows_float_nodes() && !only_float_nodes_read(draft, node) {
            continue;
        }
        let reason = |input_idx: usize, name: &str| {
            if tensors.infinite.contains(name) {
                Some("reads minus infinity, which no grid holds")
            } else if tensors.near_zero.contains(name) && at_poles.contains_key(&(node_idx, input_idx)) {
                Some("reads values that a grid rounds to 0, where a result is infinite")
            } else {
                None
            }
        };
        let inputs = node.input.iter().enumerate();
        let found = inputs.filter_map(|(input_idx, name)| Some((input_idx, reason(input_idx, name)?)));
        let found: Vec<(usize, &str)> = found.collect();
        let Some((_, why)) = found.first() else { continue };
        if has_row {
            draft.leave_float(node_idx, *why);
            (0..node.input.len()).for_each(|input_idx| draft.keep_edge_float((node_idx, input_idx)));
        }
        found.iter().for_each(|(input_idx, _)| draft.keep_edge_float((node_idx, *input_idx)));
    }
}

/// Whether every use of the node's outputs is by a node that stays float, and none is an output of the network.
fn only_float_nodes_read(draft: &Draft, node: &NodeProto) -> bool {
    let is_float = |edge: &Edge| draft.float.contains_key(&edge.0) || draft.table_row(edge.0).is_none();
    let is_read_by_them = |output: &String| {
        let mut readers = draft.index.value_readers(output).peekable();
        readers.peek().is_some() && readers.all(|edge| is_float(&edge)) && !draft.index.is_output(output)
    };
    node.output.iter().filter(|output| !output.is_empty()).all(is_read_by_them)
}
