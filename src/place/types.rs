//! The rule about single inputs that need a type of their own.

use super::{Draft, Rule, Takes};
use crate::scheme::RuleCall;

/// Gives one input of listed operators another type. Source: ONNX Runtime,
/// `execution_providers/qnn/quant_config.py`: the second input of MatMul has 8 bits beside 16-bit
/// activations.
pub struct SetInputType;

impl Rule for SetInputType {
    fn name(&self) -> &'static str {
        "set_input_type"
    }

    fn description(&self) -> &'static str {
        "input `input` (from 0) of the operators of `ops` gets the type `type`"
    }

    fn parameters(&self) -> &'static [(&'static str, Takes)] {
        &[("ops", Takes::Ops), ("input", Takes::Number), ("type", Takes::Type)]
    }

    fn apply(&self, draft: &mut Draft, call: &RuleCall) {
        let ops: Vec<&str> = call.ops("ops").iter().map(String::as_str).collect();
        let (Ok(input_idx), Some(qtype)) =
            (usize::try_from(call.number("input", 0)), call.name("type"))
        else {
            return;
        };
        for node_idx in draft.open_nodes(&ops) {
            draft.set_input_type((node_idx, input_idx), qtype);
        }
    }
}
