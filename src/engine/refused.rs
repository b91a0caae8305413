//! Models that the engine cannot run, refused before anything runs.

use crate::diag::{WithHint, count};
use crate::onnx::node::{self, node_name};
use crate::onnx::proto::ModelProto;
use crate::onnx::tensor;
use anyhow::{Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use tract_onnx::pb::ModelProto as ModelPb;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::ops::unimpl::UnimplementedOp;

/// Renames ONNX Runtime's Attention: the engine ignores domains and would take it for ONNX's.
pub(super) fn name_apart(model: &mut ModelPb) {
    let nodes = model.graph.iter_mut().flat_map(|graph| &mut graph.node);
    for node in nodes.filter(|node| node.domain == "com.microsoft" && node.op_type == "Attention") {
        node.op_type = "com.microsoft.Attention".to_string();
    }
}

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
    bail!("the engine cannot run these operators: {}", list.join(", "))
}

/// Refuses operators in training mode: a Dropout that drops, a BatchNormalization with the sample's own statistics.
pub(super) fn check_inference(model: &ModelProto) -> Result<()> {
    let Some(graph) = &model.graph else { return Ok(()) };
    let is_true = |name: &String| graph.initializer_named(name).is_some_and(tensor::is_true);
    for node in &graph.node {
        let trains = match node.op_type() {
            "BatchNormalization" => node::int(node, "training_mode", 0) != 0,
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
