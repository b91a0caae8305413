//! Rules about normalization and activation functions that are spelled out as several operators and need float.

use super::{Draft, Rule};
use crate::scheme::RuleCall;

/// Leaves spelled-out layer and RMS normalization float. Source: Model-Optimizer, `partitioning.py`, layer-norm chains.
pub const SKIP_LAYER_NORM_CHAINS: Rule = Rule {
    name: "skip_layer_norm_chains",
    about: "a layer normalization spelled out (ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, then Mul and Add) stays float",
    takes: &[],
    apply: skip_layer_norm_chains,
};

fn skip_layer_norm_chains(draft: &mut Draft, _: &RuleCall) {
    for node_idx in 0..draft.graph.node.len() {
        if draft.graph.node[node_idx].op_type() == "Sqrt" {
            for part in draft.layer_norm_around(node_idx).unwrap_or_default() {
                draft.leave_float(part, "part of a layer normalization");
            }
        }
    }
}

/// Leaves spelled-out GELU float. Source: Model-Optimizer, `partitioning.py` (Div-Erf-Add-Mul-Mul).
pub const SKIP_GELU_CHAINS: Rule = Rule {
    name: "skip_gelu_chains",
    about: "a GELU spelled out (Div, Erf, Add, Mul, Mul, or with Tanh and a cube) stays float",
    takes: &[],
    apply: skip_gelu_chains,
};

fn skip_gelu_chains(draft: &mut Draft, _: &RuleCall) {
    for gate in draft.gates() {
        let with_cube = gate.has(draft, &["Tanh"]) && gate.has(draft, &["Add"]);
        if gate.has(draft, &["Erf"]) || with_cube {
            for &node_idx in &gate.nodes {
                draft.leave_float(node_idx, "part of a GELU");
            }
        }
    }
}

impl Draft<'_> {
    /// The nodes of the normalization that a Sqrt belongs to.
    pub(super) fn layer_norm_around(&self, sqrt: usize) -> Option<Vec<usize>> {
        let mut nodes = vec![sqrt];
        // Backwards: + epsilon, mean of the squares, square, difference from the mean.
        let mut back = self.producer_of_first_activation(sqrt)?;
        if self.op(back) == "Add" && self.activation_inputs(back).len() == 1 {
            nodes.push(back);
            back = self.producer_of_first_activation(back)?;
        }
        if self.op(back) != "ReduceMean" {
            return None;
        }
        nodes.push(back);
        let square = self.producer_of_first_activation(back)?;
        if !matches!(self.op(square), "Pow" | "Mul") {
            return None;
        }
        nodes.push(square);
        let centred = self.producer_of_first_activation(square);
        if let Some(sub) = centred.filter(|&i| self.op(i) == "Sub") {
            let mean = self.graph.node[sub].input.get(1).and_then(|n| self.index.producer_idx(n));
            nodes.push(sub);
            nodes.extend(mean.filter(|&i| self.op(i) == "ReduceMean"));
            // PyTorch may write the difference twice, once for each use.
            let difference = &self.graph.node[sub];
            let twins = self.index.consumers(difference.input.get(1)?);
            let twins = twins.iter().map(|edge| edge.0);
            nodes.extend(
                twins.filter(|&i| i != sub && self.op(i) == "Sub" && self.graph.node[i].input == difference.input),
            );
        }
        // Forwards: division, or product with the reciprocal; then scale and shift.
        let mut front = self.only_consumer(sqrt)?;
        // The reciprocal, as one operator or 1 / x.
        let by_one = self.op(front) == "Div" && self.activation_inputs(front) == [1];
        if by_one || self.op(front) == "Reciprocal" {
            nodes.push(front);
            front = self.only_consumer(front)?;
        }
        if !matches!(self.op(front), "Div" | "Mul") {
            return None;
        }
        nodes.push(front);
        for op in ["Mul", "Add"] {
            let next = self.only_consumer(front);
            let fits = |&i: &usize| self.op(i) == op && self.activation_inputs(i).len() == 1;
            let Some(next) = next.filter(fits) else { break };
            nodes.push(next);
            front = next;
        }
        Some(nodes)
    }

    fn op(&self, node_idx: usize) -> &str {
        self.graph.node[node_idx].op_type()
    }

    fn producer_of_first_activation(&self, node_idx: usize) -> Option<usize> {
        let input = *self.activation_inputs(node_idx).first()?;
        self.index.producer_idx(&self.graph.node[node_idx].input[input])
    }

    fn only_consumer(&self, node_idx: usize) -> Option<usize> {
        let output = self.graph.node[node_idx].output.first()?;
        self.index.only_value_reader(output).map(|(next, _)| next)
    }
}
