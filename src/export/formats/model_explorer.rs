//! Node data for Google's Model Explorer (google-ai-edge/model-explorer, node_data_builder.py).

use super::PLAIN;
use crate::diag::WithHint;
use crate::export::index::{UniqueMap, json};
use crate::export::{Format, SidecarIndex};
use anyhow::{Context, Result, anyhow};
use serde_json::json;
use std::collections::BTreeMap;

/// Upper bounds of the SQNR in dB, each with the color of nodes up to it. Nodes above the last bound stay white.
const COLORS: [(f64, &str); 4] = [(10.0, "#e5484d"), (20.0, "#f5a524"), (30.0, "#ffe16a"), (40.0, "#cdeac0")];

/// `{"name", "results": {node: {"value": SQNR in dB}}, "thresholds": [{"value", "bgColor"}]}`. Model Explorer's reader
/// of ONNX takes the names of nodes as their identifiers, and gives no `tensor_name` to match tensors by.
pub(super) const FORMAT: Format = Format {
    name: "model-explorer",
    description: "Node data for Google's Model Explorer: JSON, the SQNR of each node's output",
    suffix: "model-explorer.json",
    holds_nnie_codes: true,
    holds_blocks: true,
    write,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let errors = index.sidecar.tensor_errors.as_ref().ok_or_else(|| {
        anyhow!("the sidecar has no tensor errors").hint("calibrate with --effort 1 or above, which measures them")
    })?;
    let by_tensor: BTreeMap<&str, f64> =
        errors.tensors.iter().map(|error| (error.tensor.as_str(), error.sqnr_db)).collect();
    let mut results = UniqueMap::default();
    for node in &index.sidecar.graph.nodes {
        if let Some(sqnr_db) = node.outputs.iter().find_map(|output| by_tensor.get(output.as_str())) {
            results.add(&node.name, json!({ "value": sqnr_db }))?;
        }
    }
    let thresholds = COLORS.map(|(value, color)| json!({ "value": value, "bgColor": color }));
    let name = format!("SQNR (dB), {}", index.sidecar.scheme.backend);
    json(&json!({ "name": name, "results": results.into_value(), "thresholds": thresholds })).context("node data")
}
