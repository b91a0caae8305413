//! Q and DQ belong together.

use super::super::linear::Kind;
use super::super::qdq::QdqGraph;
use super::{Check, Finding, Report};
use crate::scheme::RuleCall;

/// Every Q is read by DQs with its own parameters, and by nothing else.
pub const PAIRED: Check = Check {
    name: "paired",
    about: "every Q is read by DQ only, with the same scale and zero point bit for bit; a DQ reads a Q, a constant or an input",
    run: paired,
    ..Check::DEFAULT
};

fn paired(graph: &QdqGraph, _: &RuleCall, report: &mut Report) {
    for linear in graph.linears.iter().filter(|linear| !linear.input.is_empty()) {
        match linear.kind {
            Kind::Quantize => {
                let users = graph.users(linear.output);
                if users.is_empty() && !graph.index.is_output(linear.output) {
                    let found = "read by no node";
                    report.add(
                        Finding::new("result of Q", found, "read by DequantizeLinear")
                            .at(linear.node)
                            .on(linear.output),
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
                            .at(linear.node)
                            .on(linear.output)
                            .hint(hint),
                    );
                }
            }
            Kind::Dequantize => {
                let Some(source) = graph.linear_of(linear.input) else {
                    let from_input =
                        graph.graph.input.iter().any(|input| input.name() == linear.input);
                    if !from_input && !graph.is_constant(linear.input) {
                        let producer = graph.index.producer(linear.input);
                        let found = producer.map_or("made by no node".to_string(), |node| {
                            format!("made by {}", node.op_type())
                        });
                        let expected = "made by QuantizeLinear, a constant or an input";
                        report.add(
                            Finding::new("input of DQ", found, expected)
                                .at(linear.node)
                                .on(linear.input),
                        );
                    }
                    continue;
                };
                if source.kind == Kind::Quantize && !source.same_grid(linear) {
                    let (found, expected) = (linear.parameters(), source.parameters());
                    let expected = format!("that of its QuantizeLinear ({expected})");
                    report.add(
                        Finding::new("grid of DQ", found, expected)
                            .at(linear.node)
                            .on(linear.input),
                    );
                }
            }
        }
    }
}
