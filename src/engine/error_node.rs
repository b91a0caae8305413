//! Finds the node that an error of the engine is about.

use super::Parsed;
use super::guard::STOPPED;
use crate::diag::{WithHint, hint_of, is_of};
use crate::onnx::inputs::{OpenShape, Shapes};
use crate::onnx::node::node_name;
use crate::onnx::proto::{ModelProto, NodeProto, ValueInfoProto};
use anyhow::{Result, anyhow};
use std::collections::BTreeSet;

/// Models above this size, in bytes, are not rebuilt in part to find the node.
const MAX_BYTES: usize = 256 << 20;

/// Returns the error with its node in front: the node that the engine names, else the last node of the shortest
/// beginning of the graph that the engine refuses. An error of an open shape stays as it is.
pub(super) fn with_node(error: anyhow::Error, model: &ModelProto, shapes: &Shapes) -> anyhow::Error {
    if is_of::<OpenShape>(&error) {
        return error;
    }
    let found = error.root_cause().to_string();
    let is_located = is_ours(&found);
    let nodes = model.graph.as_ref().map_or(&[][..], |graph| &graph.node);
    let node = match is_located {
        true => None,
        false => {
            error.chain().find_map(|cause| named(&cause.to_string(), nodes)).or_else(|| first_refused(model, shapes))
        }
    };
    let place = node.map(|node| format!("node `{}` ({}): ", node_name(node), node.op_type())).unwrap_or_default();
    let (reason, hint) = match node.map(NodeProto::op_type) {
        Some("If") => (OF_BRANCHES.to_string(), HINT_OF_BRANCHES),
        Some(_) => (reason(&found), hint(&found)),
        None => (reason(&found), ""),
    };
    anyhow!("{place}{reason}").hint(hint_of(&error)).hint(hint)
}

/// Whether mqq wrote the message: it then names a place of the model. The engine cites only its own code.
fn is_ours(text: &str) -> bool {
    text.contains('`') && !text.starts_with("Condition failed") && !text.starts_with(STOPPED)
}

/// Parts of the engine's messages about an input that must be constant.
const OF_CONSTANTS: [&str; 6] =
    ["onstant", " const", "is variable", "to be determined", "known scalar", "Neither sizes nor scales"];
/// Inputs that such a message may name, in lower case; the first that it has.
const CONSTANT_INPUTS: [&str; 9] = ["axes", "axis", "stride", "split", "scales", "pads", "repeats", "depth", "shape"];
/// Parts of the engine's messages that are about its own code.
const OF_ITS_CODE: [&str; 18] = [
    "DatumType", "TDim", "Val(", "Fact", "TypedOp", "Symbol", "super type", "Node", "node #", "Translating",
    "Evaluating", "Loop detected", "Condition failed", "out of", "got ", "Op says", "Illegal combination", STOPPED,
];

/// Returns the reason that the engine refuses a node, in terms of ONNX.
pub(super) fn reason(text: &str) -> String {
    if is_ours(text) {
        return text.to_string();
    }
    if let Some((_, found)) = text.split_once("Unknown DatumType ") {
        return format!("the engine does not support the element type {}", found.to_lowercase());
    }
    if let Some((_, sides)) = text.split_once("Impossible to unify ") {
        let sides = sides.trim_end_matches('.').replace("Val(", "").replace([')', '('], "");
        return match sides.split_once(" with ") {
            Some((a, b)) if a.parse::<i64>().is_ok() && b.parse::<i64>().is_ok() => {
                format!("shapes contradict each other: {a} and {b}, expected equal sizes")
            }
            _ => "shapes or types contradict each other".to_string(),
        };
    }
    let of = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if of(&OF_CONSTANTS) {
        let lowercase = text.to_lowercase();
        let input = CONSTANT_INPUTS.iter().find(|input| lowercase.contains(**input)).unwrap_or(&"one of the inputs");
        return format!("the engine supports {input} only as a constant");
    }
    match of(&OF_ITS_CODE) || text.contains("None") {
        true => "the engine cannot run this node with these inputs, shapes or attributes".to_string(),
        false => text.to_string(),
    }
}

/// Returns the hint for a node that the engine refuses.
fn hint(text: &str) -> &'static str {
    match OF_CONSTANTS.iter().any(|part| text.contains(part)) {
        true => {
            "fix the shapes of the inputs and fold constants (onnxsim, onnxslim), or use --outputs to quantize only up to a tensor in front of this node"
        }
        false => HINT,
    }
}

const OF_BRANCHES: &str =
    "the engine cannot run its branches, which must give tensors of equal types and shapes, by operators that it has";
const HINT_OF_BRANCHES: &str =
    "use --outputs TENSOR of `mqq calibrate` to quantize up to a tensor in front of this node";

/// The hint for operators that the engine does not run.
pub(super) const HINT: &str = "use --outputs TENSOR of `mqq calibrate` to quantize up to a tensor in front of this node, and leave the nodes behind that tensor float";

/// The hint for a node that fails on a sample.
pub(super) const HINT_RUN: &str =
    "run the sample in ONNX Runtime: it tells whether the model or the sample is wrong (docs/troubleshooting.md)";

/// Returns the node that the engine names, as in `Failed analyse for node #3 "name" ConvHir`.
fn named<'m>(text: &str, nodes: &'m [NodeProto]) -> Option<&'m NodeProto> {
    let names = text.split('#').skip(1).filter_map(|rest| {
        let (_, rest) = rest.trim_start_matches(|c: char| c.is_ascii_digit()).split_once(" \"")?;
        Some(rest.split_once("\" ").map_or(rest.trim_end_matches('"'), |(name, _)| name))
    });
    let is_of = |found: &str, node: &NodeProto| is_made_from(found, node_name(node));
    let node = |found: &str| nodes.iter().filter(|node| is_of(found, node)).max_by_key(|node| node_name(node).len());
    names.filter_map(node).next()
}

/// Whether the name of a node of the engine is that of the model's node, or is made from it: the engine appends suffixes.
pub(super) fn is_made_from(found: &str, node: &str) -> bool {
    let rest = found.strip_prefix(node).filter(|_| !node.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_']))
}

/// Returns the last node of the shortest beginning of the graph that the engine does not build.
fn first_refused<'m>(model: &'m ModelProto, shapes: &Shapes) -> Option<&'m NodeProto> {
    let nodes = &model.graph.as_ref()?.node;
    if crate::onnx::n_bytes(model) > MAX_BYTES {
        return None;
    }
    let is_refused = |n: usize| build(beginning(model, n), shapes).is_err();
    let (mut accepted, mut refused) = (0, nodes.len());
    if refused == 0 || !is_refused(refused) {
        return None;
    }
    while refused - accepted > 1 {
        let middle = accepted + (refused - accepted) / 2;
        match is_refused(middle) {
            true => refused = middle,
            false => accepted = middle,
        }
    }
    nodes.get(refused - 1)
}

fn build(model: ModelProto, shapes: &Shapes) -> Result<()> {
    let mut parsed = Parsed::parse(&model, shapes)?;
    parsed.inferred()?;
    parsed.built(&[]).map(drop)
}

/// Returns the model of the first `n` nodes. Its outputs are the tensors that none of these nodes reads.
fn beginning(model: &ModelProto, n: usize) -> ModelProto {
    let mut model = model.clone();
    if let Some(graph) = &mut model.graph {
        graph.node.truncate(n);
        let read: BTreeSet<&String> = graph.node.iter().flat_map(|node| &node.input).collect();
        let made = graph.node.iter().flat_map(|node| &node.output);
        let ends = made.filter(|name| !name.is_empty() && !read.contains(name));
        let value = |name: &String| ValueInfoProto { name: Some(name.clone()), ..Default::default() };
        graph.output = ends.map(value).collect();
    }
    model
}
