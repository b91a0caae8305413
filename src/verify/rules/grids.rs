//! Tensors that must lie on one grid.

use super::super::qdq::{Linear, QdqGraph};
use super::parameters::Wanted;
use super::{Check, Finding, Report};
use crate::scheme::RuleCall;

/// Inputs and output of operators that only move or select values have the same parameters.
pub struct SharedGrids;

impl Check for SharedGrids {
    fn name(&self) -> &'static str {
        "shared_grids"
    }

    fn description(&self) -> &'static str {
        "quantized activations around the operators of `ops` have the same scale and zero point bit for bit"
    }

    fn parameters(&self) -> &'static [(&'static str, Wanted)] {
        &[("ops", Wanted::Ops)]
    }

    fn run(&self, graph: &QdqGraph, call: &RuleCall, report: &mut Report) {
        for node in graph.graph.node.iter().filter(|node| call.lists("ops", node.op_type())) {
            // Of the others only the first input is data: Reshape's is a shape, Gather's an index.
            let n_data = if node.op_type() == "Concat" { node.input.len() } else { 1 };
            let inputs = node.input.iter().take(n_data);
            let mut around: Vec<(&str, &Linear)> = inputs
                .filter_map(|name| Some((name.as_str(), graph.dequantize_of(name)?)))
                .collect();
            let n_inputs = around.len();
            for output in node.output.iter().filter(|name| !name.is_empty()) {
                let readers = graph.quantizes_of(output);
                around.extend(readers.into_iter().map(|quantize| (output.as_str(), quantize)));
            }
            let Some(((first_name, first), others)) = around.split_first() else { continue };
            for (i, (name, other)) in others.iter().enumerate() {
                if !other.same_grid(first) {
                    let what =
                        if i + 1 < n_inputs { "grid of the input" } else { "grid of the output" };
                    let expected = format!("that of `{first_name}` ({})", first.parameters());
                    report.add(Finding::new(what, other.parameters(), expected).at(node).on(name));
                }
            }
        }
    }
}
