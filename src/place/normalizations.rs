//! Normalizations that are spelled out: a tensor, its statistics, and the nodes that join the two.

use super::Draft;
use super::trace::{BINARY, MOVES, POINTWISE};
use std::collections::BTreeSet;

/// Operators that compute a statistic.
const REDUCTIONS: &[&str] = &["ReduceMean", "ReduceSum", "ReduceMax"];

/// Maximum nodes between a Sqrt and the means that it is computed from.
const MAX_NODES: usize = 12;

impl Draft<'_> {
    /// Returns the nodes of the layer or RMS normalization that a Sqrt belongs to: means of squares or of squared
    /// differences (or the mean of squares minus the square of the mean), the deviation, the normalized tensor, its
    /// scale and shift.
    pub(super) fn layer_norm_around(&self, sqrt: usize) -> Option<Vec<usize>> {
        let (mut nodes, mut means) = (BTreeSet::from([sqrt]), BTreeSet::new());
        if !self.means_before(sqrt, &mut nodes, &mut means) || means.is_empty() {
            return None;
        }
        let squares = means.iter().filter_map(|&mean| self.square_before(mean)).collect::<Vec<_>>();
        let squared = self.graph.node[*squares.first()?].input.first()?;
        let difference = self.index.producer_idx(squared).filter(|&node_idx| self.is_centred(node_idx, &mut means));
        let x = difference.map_or(squared, |node_idx| &self.graph.node[node_idx].input[0]);
        nodes.extend(squares.into_iter().chain(difference));
        self.divided(x, means, nodes)
    }

    /// Returns the nodes of the Softmax that an Exp belongs to: the quotient of exponentials and their sum, and before
    /// the Exp the difference from the largest value.
    pub(super) fn softmax_around(&self, exp: usize) -> Option<Vec<usize>> {
        let output = self.graph.node[exp].output.first()?;
        let readers = self.index.value_readers(output).map(|edge| edge.0);
        let sums: BTreeSet<usize> = readers.filter(|&node_idx| self.op(node_idx) == "ReduceSum").collect();
        let mut nodes = self.divided(output, sums, BTreeSet::from([exp]))?;
        let mut largest = BTreeSet::new();
        let input = self.graph.node[exp].input.first()?;
        let difference = self.index.producer_idx(input).filter(|&node_idx| self.is_centred(node_idx, &mut largest));
        if let Some(difference) = difference {
            let (_, found) = self.computed(&self.graph.node[difference].input[0], &largest);
            nodes.extend(found.into_iter().chain(largest));
        }
        Some(nodes)
    }

    /// Adds the nodes between the means and `node_idx` to `nodes`, and the means to `means`. Returns false if
    /// `node_idx` is computed from anything but means and constants.
    fn means_before(&self, node_idx: usize, nodes: &mut BTreeSet<usize>, means: &mut BTreeSet<usize>) -> bool {
        nodes.insert(node_idx);
        let inputs = self.activation_inputs(node_idx);
        // A sum is a mean where a constant divides it.
        let divides = self.scaled_input(node_idx).is_some();
        nodes.len() <= MAX_NODES
            && inputs.iter().all(|&input| {
                let before = self.index.producer_idx(&self.graph.node[node_idx].input[input]);
                before.is_some_and(|before| match self.op(before) {
                    "ReduceSum" if !divides => false,
                    "ReduceMean" | "ReduceSum" => {
                        means.insert(before);
                        true
                    }
                    op => passes_statistics(op) && self.means_before(before, nodes, means),
                })
            })
    }

    /// Returns the node that computes the squares of which `mean` is the mean.
    fn square_before(&self, mean: usize) -> Option<usize> {
        let square = self.index.producer_idx(self.graph.node[mean].input.first()?)?;
        self.is_square(square).then_some(square)
    }

    /// Whether a node is a tensor times itself, or the tensor to the power of 2.
    pub(super) fn is_square(&self, node_idx: usize) -> bool {
        let node = &self.graph.node[node_idx];
        match node.op_type() {
            "Mul" => node.input.first() == node.input.get(1),
            _ => self.index.exponents(node).is_some_and(|exponents| exponents.iter().all(|&exponent| exponent == 2.0)),
        }
    }

    /// Whether a node is the difference of a tensor and the tensor's own statistic. Adds the reduction to `reductions`.
    fn is_centred(&self, node_idx: usize, reductions: &mut BTreeSet<usize>) -> bool {
        let [x, statistic] = self.graph.node[node_idx].input.as_slice() else { return false };
        if self.op(node_idx) != "Sub" {
            return false;
        }
        let mut before = self.index.producer_idx(statistic);
        while let Some(node_idx) = before.filter(|&node_idx| passes_statistics(self.op(node_idx))) {
            let [input] = self.activation_inputs(node_idx)[..] else { return false };
            before = self.index.producer_idx(&self.graph.node[node_idx].input[input]);
        }
        let is_of_x = |&i: &usize| REDUCTIONS.contains(&self.op(i)) && self.graph.node[i].input.first() == Some(x);
        let reduction = before.filter(is_of_x);
        reductions.extend(reduction);
        reduction.is_some()
    }

    /// Returns `nodes` and all nodes that compute `x` divided by its statistics, with the scale and shift by constants
    /// after the quotient. `None` if nothing is divided.
    fn divided(&self, x: &str, reductions: BTreeSet<usize>, mut nodes: BTreeSet<usize>) -> Option<Vec<usize>> {
        let (tensors, found) = self.computed(x, &reductions);
        let divides = |&i: &usize| match self.op(i) {
            "Div" => self.activation_inputs(i).contains(&1),
            op => op == "Reciprocal",
        };
        if tensors.is_empty() || !found.iter().any(divides) {
            return None;
        }
        nodes.extend(found.into_iter().chain(reductions));
        for tensor in tensors {
            let mut tensor = tensor;
            for op in ["Mul", "Add"] {
                let next = self.index.only_value_reader(tensor).map(|(next, _)| next);
                let fits = |&i: &usize| self.op(i) == op && self.activation_inputs(i).len() == 1;
                if let Some(next) = next.filter(fits) {
                    nodes.insert(next);
                    tensor = self.graph.node[next].output.first()?;
                }
            }
        }
        Some(nodes.into_iter().collect())
    }

    /// Returns the tensors that are computed from both `x` and its statistics, and the nodes that compute these tensors
    /// and the statistics. Such a node reads only `x`, results of `reductions`, outputs of other such nodes and
    /// constants.
    fn computed<'g>(&'g self, x: &'g str, reductions: &BTreeSet<usize>) -> (BTreeSet<&'g str>, BTreeSet<usize>) {
        let (mut tensors, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        let outputs = reductions.iter().filter_map(|&reduction| self.graph.node[reduction].output.first());
        let mut statistics: BTreeSet<&str> = outputs.map(String::as_str).collect();
        let mut pending: Vec<&str> = statistics.iter().copied().collect();
        while let Some(tensor) = pending.pop() {
            for reader in self.index.value_readers(tensor).map(|edge| edge.0) {
                let node = &self.graph.node[reader];
                let Some(output) = node.output.first() else { continue };
                let is_known = nodes.contains(&reader) || reductions.contains(&reader);
                if is_known || !passes_statistics(node.op_type()) && !REDUCTIONS.contains(&node.op_type()) {
                    continue;
                }
                let inputs = self.activation_inputs(reader);
                let mut inputs = inputs.iter().map(|&input| node.input[input].as_str());
                let n_statistics = inputs.clone().filter(|input| statistics.contains(input)).count();
                if n_statistics == inputs.clone().count() {
                    statistics.insert(output);
                } else if n_statistics > 0
                    && inputs.all(|input| input == x || statistics.contains(input) || tensors.contains(input))
                {
                    tensors.insert(output.as_str());
                } else {
                    continue;
                }
                nodes.insert(reader);
                pending.push(output);
            }
        }
        (tensors, nodes)
    }
}

/// Whether an operator computes a statistic from statistics and constants.
fn passes_statistics(op: &str) -> bool {
    let lists = [POINTWISE, BINARY, MOVES, &["Reciprocal", "Cast"]];
    op != "BatchNormalization" && lists.iter().any(|list| list.contains(&op))
}
