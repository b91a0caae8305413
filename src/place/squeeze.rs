//! The rule about squeeze-and-excite blocks.

use super::Draft;
use crate::scheme::RuleCall;

/// Leaves the pooling and the product of a squeeze-and-excite block float. Source: NNCF,
/// `onnx/quantization/ignored_patterns.py`, `SE_BLOCK`.
pub(super) fn skip_squeeze_excite(draft: &mut Draft, _: &RuleCall) {
    for node_idx in 0..draft.graph.node.len() {
        if draft.graph.node[node_idx].op_type() != "Mul" {
            continue;
        }
        let [a, b] = draft.graph.node[node_idx].input.as_slice() else { continue };
        let mean = draft.mean_behind_gate(b, a).or_else(|| draft.mean_behind_gate(a, b));
        if let Some(mean) = mean {
            let reason = "part of a squeeze-and-excite block";
            draft.leave_float(node_idx, reason);
            draft.leave_float(mean, reason);
        }
    }
}

impl Draft<'_> {
    /// Returns the position of the mean of `x` from which `gate` is computed.
    fn mean_behind_gate(&self, gate: &str, x: &str) -> Option<usize> {
        const STEPS: &[&[&str]] = &[&["Sigmoid", "HardSigmoid"], &["Conv"]];
        let mut tensor = gate;
        for ops in STEPS {
            let node = self.index.producer(tensor)?;
            if !ops.contains(&node.op_type()) {
                return None;
            }
            tensor = node.input.first()?;
        }
        // One activation function of any kind, and another convolution.
        let activation = self.index.producer(tensor)?;
        tensor = activation.input.first()?;
        let mut node = self.index.producer(tensor)?;
        // SiLU inside: its product reads the convolution directly.
        if node.op_type() == "Sigmoid" && activation.op_type() == "Mul" {
            tensor = node.input.first()?;
            node = self.index.producer(tensor)?;
        }
        if node.op_type() != "Conv" {
            return None;
        }
        let mean = self.index.producer_idx(node.input.first()?)?;
        let reads_x = self.graph.node[mean].input.first().is_some_and(|input| input == x);
        let is_mean = matches!(self.graph.node[mean].op_type(), "ReduceMean" | "GlobalAveragePool");
        (is_mean && reads_x).then_some(mean)
    }
}
