//! Pairs of Q and DQ.

use super::{Check, Finding, RuleReport};
use crate::check::{QdqGraph, QdqOperator};
use crate::scheme::RuleCall;

/// Only DQs with the same parameters may read a Q.
pub const PAIRED: Check = Check {
    name: "paired",
    about: "every Q is read by DQ only, with the same scale and zero point bit for bit; a DQ reads a Q, a constant or an input",
    run: paired,
    ..Check::DEFAULT
};

fn paired(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for qdq in graph.qdq_nodes.iter().filter(|qdq| !qdq.input.is_empty()) {
        match qdq.operator {
            QdqOperator::Quantize => {
                let users = graph.users(qdq.output);
                if users.is_empty() && !graph.index.is_output(qdq.output) {
                    let found = "read by no node";
                    report.add(
                        Finding::new("result of Q", found, "read by DequantizeLinear").at(qdq.node).on(qdq.output),
                    );
                }
                for (node, input) in users {
                    if node.op_type() == "DequantizeLinear" && input == 0 {
                        continue;
                    }
                    let hint = match node.op_type() {
                        "Clip" | "Min" | "Max" => {
                            "a Clip between Q and DQ keeps the pair from being fused: narrow the float range or the stored weights instead"
                        }
                        _ => "give the operator the output of a DequantizeLinear",
                    };
                    let found = format!("read by {} as input {input}", node.op_type());
                    report.add(
                        Finding::new("result of Q", found, "read by DequantizeLinear only")
                            .at(qdq.node)
                            .on(qdq.output)
                            .hint(hint),
                    );
                }
            }
            QdqOperator::Dequantize => {
                let Some(source) = graph.qdq_of(qdq.input) else {
                    let from_input = graph.graph.input.iter().any(|input| input.name() == qdq.input);
                    if !from_input && !graph.is_constant(qdq.input) {
                        let producer = graph.index.producer(qdq.input);
                        let found = producer
                            .map_or("made by no node".to_string(), |node| format!("made by {}", node.op_type()));
                        let expected = "made by QuantizeLinear, a constant or an input";
                        report.add(Finding::new("input of DQ", found, expected).at(qdq.node).on(qdq.input));
                    }
                    continue;
                };
                if source.operator == QdqOperator::Quantize && !source.same_grid(qdq) {
                    let (found, expected) = (qdq.parameters(), source.parameters());
                    let expected = format!("that of its QuantizeLinear ({expected})");
                    report.add(Finding::new("grid of DQ", found, expected).at(qdq.node).on(qdq.input));
                }
            }
        }
    }
}
