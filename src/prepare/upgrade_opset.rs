//! Upgrades the default operator set, from version 7 or later, to a newer version.
//!
//! [`ADAPTERS`] lists, per operator, the version at which its meaning or signature changed, and the adapter. A version
//! that only admitted more types, or made a required input optional, needs no adapter and is not listed. Subgraphs are
//! upgraded with their graph. Functions of the model have opset imports of their own and stay unchanged.
//!
//! Source: ONNX, `docs/Changelog.md`.

use super::{Change, default_opset};
use crate::diag::{WithHint, count};
use crate::onnx::graph::GraphIndex;
use crate::onnx::names::Names;
use crate::onnx::node::{self, node_name};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor;
use crate::onnx::value_info::ValueInfos;
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeSet;

/// Oldest version that can be upgraded.
const OLDEST: i64 = 7;

/// A node of an earlier version, as the input of an adapter.
struct OldNode<'a> {
    node: NodeProto,
    names: &'a mut Names,
    initializers: &'a mut Vec<TensorProto>,
    value_info: &'a ValueInfos,
    /// Initializers of the graph before the upgrade.
    known: &'a [TensorProto],
    /// Outputs of nodes that a node reads or that are graph outputs.
    used: &'a BTreeSet<String>,
}

type Adapter = fn(OldNode) -> Result<Vec<NodeProto>>;

/// Operators, the version at which they changed, and the adapter for nodes of earlier versions.
const ADAPTERS: &[(&[&str], i64, Adapter)] = &[
    (&["Upsample"], 10, upsample),
    (&["Resize"], 11, resize),
    (&["Clip"], 11, clip),
    (&["Pad"], 11, pad),
    (&["Slice"], 10, slice),
    (&["TopK"], 10, top_k),
    (&["Scatter"], 11, scatter),
    (&["Scan"], 9, |old| unsupported(old, "its inputs were reordered at version 9")),
    (&["BatchNormalization"], 9, batch_normalization),
    (&["BatchNormalization"], 14, training_mode),
    (&["Dropout"], 12, dropout),
    (&["Softmax", "LogSoftmax", "Hardmax"], 13, softmax),
    (&["Squeeze", "Unsqueeze", "ReduceSum"], 13, |old| ints_to_input(old, "axes", 1)),
    (&["Split"], 13, |old| ints_to_input(old, "split", 1)),
    (&["Split"], 18, split_equally),
    (&["RoiAlign"], 16, roi_align),
    (MOVED_AXES, 18, |old| ints_to_input(old, "axes", 1)),
    (&["GridSample"], 20, grid_sample),
    (&["DFT"], 20, |old| unsupported(old, "its axis became an input at version 20")),
    (&["GroupNormalization"], 21, |old| unsupported(old, "its scale changed from groups to channels at version 21")),
];

/// Reductions whose axes became an input at version 18. ReduceSum is not among them, as its axes became an input at
/// version 13.
const MOVED_AXES: &[&str] = &[
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
];

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, min_opset: i64) -> Result<Vec<Change>> {
    let from = default_opset(model)?;
    if from >= min_opset {
        return Ok(Vec::new());
    }
    ensure!(
        from >= OLDEST,
        anyhow!("opset is {from}, expected {OLDEST} or later").hint("export the model again with opset 13")
    );
    let value_info = ValueInfos::of_model(model);
    let graph = model.graph_mut()?;
    let mut names = Names::of(graph);
    upgrade(graph, from, min_opset, &mut names, &value_info)?;
    for import in &mut model.opset_import {
        if node::plain_domain(import.domain()).is_empty() {
            import.version = Some(min_opset);
        }
    }
    let ir = match min_opset {
        ..=14 => 7,
        15..=18 => 8,
        19 | 20 => 9,
        _ => 10,
    };
    model.ir_version = model.ir_version.map(|version| version.max(ir));
    Ok(vec![Change::UpgradedOpset { from, to: min_opset }])
}

fn upgrade(graph: &mut GraphProto, from: i64, to: i64, names: &mut Names, value_info: &ValueInfos) -> Result<()> {
    let mut initializers = Vec::new();
    let used = used_tensors(graph);
    for &(op_types, since, adapter) in ADAPTERS {
        if since <= from || since > to {
            continue;
        }
        if !graph.node.iter().any(|node| is(node, op_types)) {
            continue;
        }
        let mut nodes = Vec::with_capacity(graph.node.len());
        let known = graph.initializer.as_slice();
        for node in std::mem::take(&mut graph.node) {
            if !is(&node, op_types) {
                nodes.push(node);
                continue;
            }
            let label = format!("node `{}` ({})", node_name(&node), node.op_type());
            let old = OldNode { node, names, initializers: &mut initializers, value_info, known, used: &used };
            let adapted = adapter(old).with_context(|| format!("{label} of opset {from}"))?;
            nodes.extend(adapted);
        }
        graph.node = nodes;
    }
    graph.initializer.extend(initializers);
    for node in &mut graph.node {
        for attribute in &mut node.attribute {
            for nested in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                upgrade(nested, from, to, names, value_info)?;
            }
        }
    }
    Ok(())
}

fn used_tensors(graph: &GraphProto) -> BTreeSet<String> {
    let index = GraphIndex::new(graph);
    let made = graph.node.iter().flat_map(|node| &node.output);
    let used = made.filter(|name| !index.consumers(name).is_empty() || index.is_output(name));
    used.filter(|name| !name.is_empty()).cloned().collect()
}

fn is(node: &NodeProto, op_types: &[&str]) -> bool {
    op_types.contains(&node.op_type()) && node::is_standard(node)
}

fn unsupported(_site: OldNode, why: &str) -> Result<Vec<NodeProto>> {
    Err(anyhow!("cannot be upgraded: {why}").hint("export the model again with a newer opset"))
}

impl OldNode<'_> {
    /// Adds an initializer for a value that was an attribute. Returns its name.
    fn constant(&mut self, what: &str, make: impl FnOnce(&str) -> Result<TensorProto>) -> Result<String> {
        let name = self.names.fresh(&format!("{}_{what}", node_name(&self.node)));
        self.initializers.push(make(&name)?);
        Ok(name)
    }

    /// Returns the values of a float initializer; empty if a node computes the tensor.
    fn floats(&self, name: &str) -> Vec<f32> {
        let mut tensors = self.known.iter().chain(self.initializers.iter());
        let tensor = tensors.find(|tensor| tensor.name() == name);
        tensor.and_then(|tensor| tensor::f32_values(tensor).ok()).unwrap_or_default()
    }

    fn ints(&mut self, what: &str, values: &[i64]) -> Result<String> {
        self.constant(what, |name| tensor::from_i64(name, &[values.len()], values))
    }
}

fn ints_to_input(mut old: OldNode, name: &str, position: usize) -> Result<Vec<NodeProto>> {
    if let Some(attribute) = node::take(&mut old.node, name) {
        let input = old.ints(name, &attribute.ints)?;
        old.node.input.truncate(position);
        old.node.input.resize(position, String::new());
        old.node.input.push(input);
    }
    Ok(vec![old.node])
}

/// Upsample has `scales` as an attribute in opset 7, and as an input in opset 9. Both versions sample like a Resize
/// with asymmetric coordinates.
fn upsample(mut old: OldNode) -> Result<Vec<NodeProto>> {
    if let Some(scales) = node::take(&mut old.node, "scales") {
        let values = scales.floats;
        let name = old.constant("scales", |name| tensor::from_f32(name, &[values.len()], &values))?;
        old.node.input.truncate(1);
        old.node.input.push(name);
    }
    // The adapter of Resize, which follows, does all other changes.
    old.node.op_type = Some("Resize".into());
    Ok(vec![old.node])
}

fn resize(mut old: OldNode) -> Result<Vec<NodeProto>> {
    ensure!(old.node.input.len() == 2, "has {}, expected 2", count(old.node.input.len(), "input"));
    old.node.input.insert(1, String::new());
    let mode = node::text(&old.node, "mode", "nearest");
    let mode = if mode == "bilinear" { "linear".to_string() } else { mode };
    node::set_text(&mut old.node, "mode", &mode);
    node::set_text(&mut old.node, "coordinate_transformation_mode", "asymmetric");
    if mode == "nearest" {
        // The standard left the rounding open. ONNX Runtime rounds up if the scale reduces the size.
        let scales = old.floats(&old.node.input[2]);
        let reduces = scales.iter().any(|&scale| scale < 1.0);
        ensure!(
            !(reduces && scales.iter().any(|&scale| scale > 1.0)),
            "scales are {scales:?}, expected all at most 1 or all at least 1: the nearest value is not \
             defined otherwise"
        );
        node::set_text(&mut old.node, "nearest_mode", if reduces { "ceil" } else { "floor" });
    }
    Ok(vec![old.node])
}

fn clip(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let bounds = ["min", "max"].map(|name| node::take(&mut old.node, name).map(|a| a.f()));
    old.node.input.truncate(1);
    for (name, bound) in ["min", "max"].into_iter().zip(bounds) {
        let input = match bound {
            Some(bound) => old.constant(name, |name| tensor::from_f32(name, &[], &[bound]))?,
            None => String::new(),
        };
        old.node.input.push(input);
    }
    while old.node.input.last().is_some_and(String::is_empty) {
        old.node.input.pop();
    }
    Ok(vec![old.node])
}

fn pad(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let pads = node::take(&mut old.node, "pads").context("has no attribute `pads`, expected one")?;
    let value = node::take(&mut old.node, "value").map_or(0.0, |attribute| attribute.f());
    let pads = old.ints("pads", &pads.ints)?;
    let value = old.constant("value", |name| tensor::from_f32(name, &[], &[value]))?;
    old.node.input.truncate(1);
    old.node.input.extend([pads, value]);
    Ok(vec![old.node])
}

fn slice(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let [starts, ends, axes] = ["starts", "ends", "axes"].map(|name| node::take(&mut old.node, name));
    let starts = starts.context("has no attribute `starts`, expected one")?;
    let ends = ends.context("has no attribute `ends`, expected one")?;
    let starts = old.ints("starts", &starts.ints)?;
    let ends = old.ints("ends", &ends.ints)?;
    old.node.input.truncate(1);
    old.node.input.extend([starts, ends]);
    if let Some(axes) = axes {
        let axes = old.ints("axes", &axes.ints)?;
        old.node.input.push(axes);
    }
    Ok(vec![old.node])
}

fn top_k(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let k = node::take(&mut old.node, "k").context("has no attribute `k`, expected one")?;
    let k = old.ints("k", &[k.i()])?;
    old.node.input.truncate(1);
    old.node.input.push(k);
    Ok(vec![old.node])
}

fn scatter(mut old: OldNode) -> Result<Vec<NodeProto>> {
    old.node.op_type = Some("ScatterElements".into());
    Ok(vec![old.node])
}

fn batch_normalization(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let spatial = node::take(&mut old.node, "spatial").map_or(1, |attribute| attribute.i());
    ensure!(spatial == 1, "normalizes each element by itself (spatial = 0), expected each channel");
    Ok(vec![old.node])
}

/// Before opset 14, outputs for the statistics mean training mode. Since then, an attribute sets it.
fn training_mode(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let used = old.node.output.iter().skip(1).find(|output| old.used.contains(*output));
    ensure!(used.is_none(), "its outputs for statistics are used, expected a model that was exported for inference");
    if node::trains(&old.node) {
        node::set_int(&mut old.node, "training_mode", 1);
    }
    old.node.output.truncate(1);
    Ok(vec![old.node])
}

/// In inference, a Dropout copies its input.
fn dropout(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let mask = old.node.output.get(1).filter(|mask| old.used.contains(*mask));
    ensure!(mask.is_none(), "its mask is used, expected a model for inference");
    old.node.op_type = Some("Identity".into());
    old.node.attribute.clear();
    old.node.input.truncate(1);
    old.node.output.truncate(1);
    Ok(vec![old.node])
}

/// Before opset 13, the tensor is flattened to a matrix at `axis`. Since then, the operator works along one axis.
fn softmax(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let axis = node::int(&old.node, "axis", 1);
    let input = old.node.input.first().cloned().context("has no input, expected one")?;
    let output = old.node.output.first().cloned().context("has no output, expected one")?;
    let shape = old.value_info.shape(&input).or_else(|| old.value_info.shape(&output));
    let same = match shape {
        Some(shape) => {
            let from = usize::try_from(node::from_first(axis, shape.len())).ok();
            from.and_then(|from| shape.get(from + 1..)).is_some_and(|inner| inner.iter().all(|&dim| dim == 1))
        }
        None => axis == -1,
    };
    node::take(&mut old.node, "axis");
    if same {
        node::set_int(&mut old.node, "axis", axis);
        return Ok(vec![old.node]);
    }
    let base = node_name(&old.node).to_string();
    let [shape, flat, soft] = ["shape", "flat", "matrix"].map(|what| old.names.fresh(&format!("{base}_{what}")));
    let mut flatten = node::make("Flatten", &flat, &[&input], &flat);
    node::set_int(&mut flatten, "axis", axis);
    node::set_int(&mut old.node, "axis", -1);
    old.node.input[0].clone_from(&flat);
    old.node.output[0].clone_from(&soft);
    let reshaped = old.names.fresh(&format!("{base}_reshape"));
    Ok(vec![
        node::make("Shape", &shape, &[&input], &shape),
        flatten,
        old.node,
        node::make("Reshape", &reshaped, &[&soft, &shape], &output),
    ])
}

/// Since opset 18, a Split without lengths needs the number of parts.
fn split_equally(mut old: OldNode) -> Result<Vec<NodeProto>> {
    if old.node.input.get(1).is_none_or(|lengths| lengths.is_empty()) {
        let n = old.node.output.len() as i64;
        node::set_int(&mut old.node, "num_outputs", n);
    }
    Ok(vec![old.node])
}

/// Since opset 16, coordinates are shifted by half a pixel by default. The attribute keeps the earlier behavior.
fn roi_align(mut old: OldNode) -> Result<Vec<NodeProto>> {
    node::set_text(&mut old.node, "coordinate_transformation_mode", "output_half_pixel");
    Ok(vec![old.node])
}

fn grid_sample(mut old: OldNode) -> Result<Vec<NodeProto>> {
    let mode = match node::text(&old.node, "mode", "bilinear").as_str() {
        "bilinear" => "linear".to_string(),
        "bicubic" => "cubic".to_string(),
        other => other.to_string(),
    };
    node::set_text(&mut old.node, "mode", &mode);
    Ok(vec![old.node])
}
