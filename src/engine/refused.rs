//! Refuses models that the engine cannot run, before anything runs.

use super::error_node::HINT;
use crate::diag::{WithHint, count};
use crate::onnx::node::{self, node_name};
use crate::onnx::proto::ModelProto;
use crate::onnx::tensor;
use anyhow::{Result, anyhow, ensure};
use std::collections::BTreeMap;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::unimpl::UnimplementedOp;

/// Operators into which ONNX Runtime's optimizer fuses ONNX operators.
const FUSED_BY_RUNTIME: [&str; 6] =
    ["FusedConv", "FusedMatMul", "FusedGemm", "SkipLayerNormalization", "BiasGelu", "NhwcFusedConv"];

/// Refuses a model with operators that the engine lacks; the message lists all of them.
pub(super) fn check_implemented(model: &InferenceModel) -> Result<()> {
    let mut missing: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for node in &model.nodes {
        if node.op_as::<UnimplementedOp>().is_some() {
            let op = node.op.name().to_string();
            let op = op.trim_start_matches("Unimplemented(").trim_end_matches(')').to_string();
            let entry = missing.entry(op).or_insert_with(|| (0, node.name.clone()));
            entry.0 += 1;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<String> =
        missing.iter().map(|(op, (n, first))| format!("{op} ({}, first: `{first}`)", count(*n, "node"))).collect();
    let error = anyhow!("the engine cannot run these operators: {}", list.join(", "));
    let is_fused = missing.keys().any(|op| FUSED_BY_RUNTIME.contains(&op.as_str()));
    Err(error.hint(match is_fused {
        true => "ONNX Runtime's optimizer made these operators: use the model from before the optimization",
        false => HINT,
    }))
}

/// Refuses operators in training mode: a Dropout that drops, a BatchNormalization with the sample's own statistics.
pub(super) fn check_inference(model: &ModelProto) -> Result<()> {
    let Some(graph) = &model.graph else { return Ok(()) };
    let is_true = |name: &String| graph.initializer_named(name).is_some_and(tensor::is_true);
    for node in &graph.node {
        let trains = match node.op_type() {
            "BatchNormalization" => node::trains(node),
            "Dropout" => node.input.get(2).is_some_and(is_true),
            _ => false,
        };
        ensure!(
            !trains,
            anyhow!("node `{}` ({}): is in training mode, expected inference mode", node_name(node), node.op_type())
                .hint("export the model in evaluation mode (PyTorch: `model.eval()`)")
        );
    }
    Ok(())
}
