//! Is the result sound, and how far is it from float?
//!
//! In: the rewritten model; outputs of two models. Out: an error, or figures. It repairs nothing.

mod compare;

pub use compare::{Comparison, Figures};

use crate::onnx::proto::ModelProto;
use crate::onnx::tensor;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;

/// Checks what every ONNX runtime demands of a graph with Q/DQ: nodes in topological order, every
/// tensor made once, scales above zero.
///
/// # Errors
/// If one of these does not hold; the message names node and tensor. That is a defect of mqq.
pub fn check(model: &ModelProto) -> Result<()> {
    let graph = model.graph.as_ref().context("model has no graph")?;
    let mut made: BTreeSet<&str> = graph.input.iter().map(|value| value.name()).collect();
    made.extend(graph.initializer.iter().map(|tensor| tensor.name()));
    made.extend(graph.sparse_initializer.iter().filter_map(|t| Some(t.values.as_ref()?.name())));
    for node in &graph.node {
        for input in node.input.iter().filter(|name| !name.is_empty()) {
            ensure!(
                made.contains(input.as_str()),
                "node `{}`: input `{input}` is not made by an earlier node",
                node.name()
            );
        }
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            ensure!(
                made.insert(output),
                "node `{}`: output `{output}` is made by an earlier node too",
                node.name()
            );
        }
        if node.op_type() == "QuantizeLinear" {
            let scale =
                graph.initializer.iter().find(|t| Some(&t.name().to_string()) == node.input.get(1));
            let scales = scale.map(tensor::f32_values).transpose()?.unwrap_or_default();
            ensure!(
                scales.iter().all(|scale| scale.is_normal() && *scale > 0.0),
                "node `{}`: a scale is not a positive number",
                node.name()
            );
        }
    }
    for output in &graph.output {
        ensure!(made.contains(output.name()), "output `{}` is made by no node", output.name());
    }
    Ok(())
}
