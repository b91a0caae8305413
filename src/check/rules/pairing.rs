//! Pairs of Q and DQ.

use super::{Check, Finding, RuleReport};
use crate::check::{QdqGraph, QdqOperator};
use crate::scheme::RuleCall;

/// Only DQs with the same parameters may read a Q.
pub const PAIRED: Check = Check {
    name: "paired",
    about: "the output of a Q is an input of DQ only, with bit-identical scale and zero point; the input of a DQ is the output of a Q, a constant or a graph input",
    run: paired,
    ..Check::DEFAULT
};

fn paired(graph: &QdqGraph, _: &RuleCall, report: &mut RuleReport) {
    for qdq in graph.qdq_nodes.iter().filter(|qdq| !qdq.input.is_empty()) {
        match qdq.operator {
            QdqOperator::Quantize => {
                let users = graph.users(qdq.output);
                if users.is_empty() && !graph.index.is_output(qdq.output) {
                    let found = "an input of no node";
                    report.add(
                        Finding::new("output of Q", found, "an input of DequantizeLinear").at(qdq.node).on(qdq.output),
                    );
                }
                for (node, input) in users {
                    if node.op_type() == "DequantizeLinear" && input == 0 {
                        continue;
                    }
                    let hint = match node.op_type() {
                        "Clip" | "Min" | "Max" => {
                            "a Clip between Q and DQ prevents fusion: narrow the float range or the stored weights instead"
                        }
                        _ => "connect the operator to the output of a DequantizeLinear",
                    };
                    let found = format!("input {input} of {}", node.op_type());
                    report.add(
                        Finding::new("output of Q", found, "an input of DequantizeLinear only")
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
                        let found = producer.map_or("produced by no node".to_string(), |node| {
                            format!("produced by {}", node.op_type())
                        });
                        let expected = "produced by QuantizeLinear, a constant or a graph input";
                        report.add(Finding::new("input of DQ", found, expected).at(qdq.node).on(qdq.input));
                    }
                    continue;
                };
                if source.operator == QdqOperator::Quantize && !source.same_grid(qdq) {
                    let (found, expected) = (qdq.parameters(), source.parameters());
                    let expected = format!("that of its QuantizeLinear ({expected})");
                    report.add(Finding::new("quantization of DQ", found, expected).at(qdq.node).on(qdq.input));
                }
            }
        }
    }
}
