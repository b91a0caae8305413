//! The report of `mqq inspect` on a backend's placement.

use super::by_operator;
use crate::onnx::node::{PRODUCTS, node_name};
use crate::onnx::proto::GraphProto;
use crate::place::{DetectorTail, FloatCause, Placement};
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The placement for a backend, with the reason for every float node.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
pub struct PlacementReport {
    /// The backend's name.
    pub backend: String,
    /// The table that replaces the backend's own because the network is a transformer.
    pub table: Option<String>,
    /// Changes before placement, one line each.
    pub prepared: Vec<String>,
    /// An input without a fixed shape, and the option that sets it; placement rules do not know its shape.
    pub open_shape: Option<String>,
    quantized_tensors: Vec<Tensor>,
    detector_tails: Vec<Tail>,
    /// The tensors where all tails begin, for `--outputs`.
    #[serde(skip)]
    cut_of_tails: Vec<String>,
    weights: Vec<String>,
    quantized_nodes: Vec<Node>,
    float_nodes: Vec<Node>,
}

#[derive(Debug, Serialize)]
struct Tensor {
    tensor: String,
    rule: String,
    reason: String,
    consumers: Vec<String>,
    group: usize,
}

/// The tail of a detector.
#[derive(Debug, Serialize)]
struct Tail {
    output_layers: Vec<String>,
    nodes: Vec<String>,
    /// The tensors where the tail begins, for `--outputs`.
    cut: Vec<String>,
    /// The node by which the tail is recognized, and the reason.
    reason: String,
    /// Whether none of the nodes is quantized.
    is_float: bool,
    /// Whether it gets the wider types of the table's region.
    is_wider: bool,
}

#[derive(Debug, Serialize)]
struct Node {
    node: String,
    op_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    rule: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip)]
    fused: bool,
}

/// Returns the report on a placement; the caller sets the backend, table, changes and open shape. `is_wide` tells
/// whether a tail gets the wider types of the table's region.
pub fn placement(
    graph: &GraphProto,
    placement: &Placement,
    is_wide: impl Fn(&DetectorTail) -> bool,
) -> PlacementReport {
    let name = |node: usize| node_name(&graph.node[node]).to_string();
    let node = |node: usize| Node {
        node: name(node),
        op_type: graph.node[node].op_type().to_string(),
        rule: String::new(),
        reason: String::new(),
        fused: false,
    };
    let tensors = placement.activations.iter().map(|quantizer| Tensor {
        tensor: quantizer.tensor.clone(),
        rule: quantizer.rule.to_string(),
        reason: quantizer.reason.clone(),
        consumers: quantizer.edges.iter().map(|edge| name(edge.0)).collect(),
        group: quantizer.group,
    });
    let float_nodes = placement.float_nodes.iter().map(|float| Node {
        rule: float.rule.to_string(),
        reason: float.reason.clone(),
        fused: matches!(float.cause, FloatCause::Fused(_)),
        ..node(float.node)
    });
    let names = |nodes: &[usize]| nodes.iter().map(|&node| name(node)).collect();
    let tails = placement.tails.iter().map(|tail| Tail {
        output_layers: names(&tail.layers),
        nodes: names(&tail.nodes),
        cut: tail.begin.clone(),
        reason: format!("`{}` {}", name(tail.sign), tail.reason),
        is_float: !tail.nodes.iter().any(|node| placement.quantized_nodes.contains(node)),
        is_wider: is_wide(tail),
    });
    PlacementReport {
        backend: String::new(),
        table: None,
        prepared: Vec::new(),
        open_shape: None,
        quantized_tensors: tensors.collect(),
        detector_tails: tails.collect(),
        cut_of_tails: placement.cut_of_tails(),
        weights: placement.weights.iter().map(|quantizer| quantizer.tensor.clone()).collect(),
        quantized_nodes: placement.quantized_nodes.iter().map(|&quantized| node(quantized)).collect(),
        float_nodes: float_nodes.collect(),
    }
}

impl PlacementReport {
    /// Returns the report as lines of text. Each float node, fused nodes and quantized tensors are listed only with
    /// `verbose`.
    pub fn lines(&self, verbose: bool) -> Vec<String> {
        let mut lines = vec![String::new(), format!("for {}:", self.backend)];
        lines.extend(self.table.iter().map(|table| format!("  table {table}, because the network is a transformer")));
        lines.extend(self.prepared.iter().map(|change| format!("  prepared: {change}")));
        lines.extend(
            self.open_shape
                .iter()
                .map(|open| format!("  shapes are not known, so rules on sizes may decide otherwise: {open}")),
        );
        let mut section = |title: &str, n: usize, entries: Vec<String>| {
            let colon = if entries.is_empty() { "" } else { ":" };
            lines.extend([String::new(), format!("{title} ({n}){colon}")]);
            lines.extend(entries.into_iter().map(|entry| format!("  {entry}")));
        };
        let one_line = |text: String| if text.is_empty() { Vec::new() } else { vec![text] };
        let by_type = |nodes: &[&Node]| one_line(by_operator(nodes.iter().map(|node| node.op_type.as_str())));
        let (fused, float): (Vec<&Node>, Vec<&Node>) = self.float_nodes.iter().partition(|node| node.fused);
        let quantized: Vec<&Node> = self.quantized_nodes.iter().collect();
        section("quantized nodes", quantized.len(), by_type(&quantized));
        section("float nodes", float.len(), if verbose { each(&float) } else { by_reason(&float) });
        for tail in &self.detector_tails {
            let state = match tail {
                Tail { is_float: true, .. } => "float",
                Tail { is_wider: true, .. } => "quantized, in the table's region of wider types",
                _ => "quantized",
            };
            let of = |title: &str, names: &[String]| match names {
                [] => None,
                names => Some(format!("{title}: {}", names.join(", "))),
            };
            let is_only = self.detector_tails.len() == 1;
            let entries = [
                Some(format!("{state}, {}", tail.reason)),
                of("output layers", &tail.output_layers),
                of("nodes", &tail.nodes),
                is_only.then(|| format!("cut it off with --outputs {}", tail.cut.join(","))),
            ];
            section("detector's tail", tail.nodes.len(), entries.into_iter().flatten().collect());
        }
        // The tail of a cut at one tail alone repeats the layers of the others.
        if self.detector_tails.len() > 1 {
            let cut = format!("cut all tails off with --outputs {}", self.cut_of_tails.join(","));
            section("tensors where the tails begin", self.cut_of_tails.len(), vec![cut]);
        }
        let tensor = |tensor: &Tensor| {
            let Tensor { tensor, rule, reason, consumers, group } = tensor;
            format!("{tensor}  [scale {group}] {reason} ({rule}) -> {}", consumers.join(", "))
        };
        let (fused_nodes, tensors, weights) = match verbose {
            true => (each(&fused), self.quantized_tensors.iter().map(tensor).collect(), self.weights.clone()),
            false => {
                let rules = by_operator(self.quantized_tensors.iter().map(|tensor| tensor.rule.as_str()));
                let rules = if rules.is_empty() { rules } else { format!("by rule: {rules}") };
                (by_type(&fused), one_line(rules), Vec::new())
            }
        };
        section("fused nodes", fused.len(), fused_nodes);
        section("quantized activations", self.quantized_tensors.len(), tensors);
        section("quantized weights", self.weights.len(), weights);
        lines
    }
}

/// Returns a line for each node.
fn each(nodes: &[&Node]) -> Vec<String> {
    nodes.iter().map(|node| node.line()).collect()
}

/// Returns a line for the nodes of each reason, products first, then by the number of nodes.
fn by_reason(nodes: &[&Node]) -> Vec<String> {
    let mut groups: BTreeMap<(bool, &str, &str), Vec<&Node>> = BTreeMap::new();
    for node in nodes {
        let is_product = PRODUCTS.contains(&node.op_type.as_str());
        groups.entry((!is_product, node.reason.as_str(), node.rule.as_str())).or_default().push(node);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|((is_other, ..), nodes)| (*is_other, Reverse(nodes.len())));
    let line = |nodes: &[&Node]| match nodes {
        [node] => node.line(),
        _ => {
            let ops = by_operator(nodes.iter().map(|node| node.op_type.as_str()));
            format!("{ops}: {}; first: {}", nodes[0].why(), nodes[0].node)
        }
    };
    let mut lines: Vec<String> = groups.iter().map(|(_, nodes)| line(nodes)).collect();
    if lines.len() < nodes.len() {
        lines.push("-v lists each node".to_string());
    }
    lines
}

impl Node {
    /// Returns the reason, with the rule if there is one.
    fn why(&self) -> String {
        let rule = if self.rule.is_empty() { String::new() } else { format!(" ({})", self.rule) };
        format!("{}{rule}", self.reason)
    }

    fn line(&self) -> String {
        format!("{} {}: {}", self.op_type, self.node, self.why())
    }
}
