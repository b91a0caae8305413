//! Rules about the inputs and outputs of the network.

use super::{Draft, trace};
use crate::scheme::RuleCall;
use std::collections::BTreeSet;

/// Quantizes the network's inputs. Source: MQBench, `openvino_quantizer.py`: placeholders always.
pub(super) fn quantize_network_inputs(draft: &mut Draft, _: &RuleCall) {
    let graph = draft.graph;
    for input in &graph.input {
        draft.quantize_tensor(input.name(), "input of the network");
    }
}

/// Quantizes the network's outputs. Source: ONNX Runtime, `qdq_quantizer.py`. Targets that compute on integers from end
/// to end need it.
pub(super) fn quantize_network_outputs(draft: &mut Draft, call: &RuleCall) {
    let graph = draft.graph;
    for output in &graph.output {
        let passes = |op: &str| trace::MOVES.contains(&op) || call.lists("past", op);
        let maker = draft.back_through(output.name(), passes).find(|&node_idx| draft.is_quantized(node_idx));
        let has_output = |&node_idx: &usize| draft.row(node_idx).is_some_and(|row| row.output.is_some());
        if let Some(maker) = maker.filter(has_output) {
            let reason = format!("output of the network, produced by {}", graph.node[maker].op_type());
            draft.quantize_network_output(output.name(), &reason);
        }
    }
}

/// Operators that keep the order of values, besides those that only move them.
const RECTIFIERS: &[&str] = &["Relu", "Clip", "LeakyRelu"];

impl<'a> Draft<'a> {
    /// Returns the quantized outputs of the network, and the tensors that become these outputs by moves and rectifiers
    /// alone. An error in such a tensor is an error in the output.
    pub(super) fn values_of_outputs(&self) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        for &output in self.network_outputs.keys() {
            let mut at = Some(output);
            while let Some(tensor) = at.filter(|tensor| found.insert(*tensor)) {
                let node = self.index.producer(tensor);
                let keeps = |op: &str| trace::MOVES.contains(&op) || RECTIFIERS.contains(&op);
                let node = node.filter(|node| keeps(node.op_type()));
                at = node.and_then(|node| node.input.first()).map(String::as_str);
            }
        }
        found
    }
}
