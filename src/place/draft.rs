//! What the rules write on: the state of every node and use while placement runs.

use super::axis;
use super::{ActivationSite, BiasSite, Edge, FloatNode, Sites, WeightSite, node_name};
use crate::onnx::facts::Facts;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::tensor::DataType;
use crate::scheme::{Axis, BiasRow, Constraint, FixedGrid, Granularity, OpRow, Scheme};
use std::collections::{BTreeMap, BTreeSet};

/// A mark on a use or a tensor, with the rule that made it.
#[derive(Debug, Clone)]
struct Mark {
    rule: &'static str,
    reason: String,
}

/// Placement in progress.
pub struct Draft<'a> {
    /// The graph.
    pub graph: &'a GraphProto,
    /// Its producers and consumers.
    pub index: GraphIndex<'a>,
    /// Types and shapes.
    pub facts: &'a Facts,
    scheme: &'a Scheme,
    float: BTreeMap<usize, Mark>,
    edges: BTreeMap<Edge, Mark>,
    /// Tensors whose every use is quantized.
    whole: BTreeMap<&'a str, Mark>,
    /// For an Add that is fused into the end of a convolution: the input that stays float.
    pub(super) fused_input: BTreeMap<usize, usize>,
    /// Parent links of the sharing groups.
    shared_with: BTreeMap<&'a str, &'a str>,
}

impl<'a> Draft<'a> {
    /// Nothing is marked yet.
    pub fn new(graph: &'a GraphProto, facts: &'a Facts, scheme: &'a Scheme) -> Draft<'a> {
        Draft {
            graph,
            index: GraphIndex::new(graph),
            facts,
            scheme,
            float: BTreeMap::new(),
            edges: BTreeMap::new(),
            whole: BTreeMap::new(),
            fused_input: BTreeMap::new(),
            shared_with: BTreeMap::new(),
        }
    }

    /// The table's row for a node that may still be quantized.
    pub fn row(&self, node_idx: usize) -> Option<&'a OpRow> {
        let node = &self.graph.node[node_idx];
        if self.float.contains_key(&node_idx) || !matches!(node.domain(), "" | "ai.onnx") {
            return None;
        }
        self.scheme.ops.get(node.op_type())
    }

    /// Positions of the nodes of operator `op_type` that may still be quantized, in order.
    pub fn open_nodes(&self, op_types: &[&str]) -> Vec<usize> {
        let nodes = self.graph.node.iter().enumerate();
        let nodes =
            nodes.filter(|(i, n)| op_types.contains(&n.op_type()) && self.row(*i).is_some());
        nodes.map(|(node_idx, _)| node_idx).collect()
    }

    /// Leaves a node float; the first reason stays.
    pub fn leave_float(&mut self, node_idx: usize, rule: &'static str, reason: impl Into<String>) {
        self.float.entry(node_idx).or_insert_with(|| Mark { rule, reason: reason.into() });
    }

    /// Whether `tensor` holds the same float values in every run.
    pub fn is_constant(&self, tensor: &str) -> bool {
        self.index.initializer(tensor).is_some()
            || self.index.producer(tensor).is_some_and(|node| node.op_type() == "Constant")
    }

    /// Positions of the node's inputs that are activations: float32 and not constant.
    pub fn activation_inputs(&self, node_idx: usize) -> Vec<usize> {
        let inputs = self.graph.node[node_idx].input.iter().enumerate();
        let inputs = inputs.filter(|(_, name)| {
            !name.is_empty() && !self.is_constant(name) && self.facts.is_float(name)
        });
        inputs.map(|(input_idx, _)| input_idx).collect()
    }

    /// Position of the constant weight of a node whose row has one: among its first two inputs.
    pub fn weight_input(&self, node_idx: usize) -> Option<usize> {
        let node = &self.graph.node[node_idx];
        self.scheme.ops.get(node.op_type())?.weight.as_ref()?;
        let inputs = node.input.iter().enumerate().take(2);
        let is_weight = |name: &str| {
            self.index.initializer(name).is_some_and(|tensor| {
                tensor.data_type() == DataType::Float as i32 && tensor.dims.len() >= 2
            })
        };
        // A weight comes second; only MatMul and Gemm take one as the first.
        let mut found = inputs.filter(|(_, name)| is_weight(name)).map(|(i, _)| i);
        found.next_back()
    }

    /// Makes one use read the quantized tensor, where the tensor is an activation.
    pub fn quantize_edge(&mut self, edge: Edge, rule: &'static str, reason: impl Into<String>) {
        let Some(name) = self.graph.node[edge.0].input.get(edge.1) else { return };
        if name.is_empty() || self.is_constant(name) || !self.facts.is_float(name) {
            return;
        }
        self.edges.entry(edge).or_insert_with(|| Mark { rule, reason: reason.into() });
    }

    /// Whether the use reads the quantized tensor.
    pub fn is_quantized_edge(&self, edge: Edge) -> bool {
        self.edges.contains_key(&edge)
            || self.graph.node[edge.0]
                .input
                .get(edge.1)
                .is_some_and(|name| self.whole.contains_key(name.as_str()))
    }

    /// Makes every use of the tensor read it quantized.
    pub fn quantize_tensor(&mut self, tensor: &str, rule: &'static str, reason: impl Into<String>) {
        let Some(name) = self.tensor_name(tensor) else { return };
        if self.is_constant(name) || !self.facts.is_float(name) {
            return;
        }
        self.whole.entry(name).or_insert_with(|| Mark { rule, reason: reason.into() });
    }

    /// Whether some use of the tensor reads it quantized.
    pub fn is_site(&self, tensor: &str) -> bool {
        self.whole.contains_key(tensor)
            || self.index.consumers(tensor).iter().any(|edge| self.edges.contains_key(edge))
    }

    /// Whether the node reads one of its inputs quantized.
    pub fn is_quantized(&self, node_idx: usize) -> bool {
        (0..self.graph.node[node_idx].input.len())
            .any(|input_idx| self.edges.contains_key(&(node_idx, input_idx)))
    }

    /// Puts two tensors on one grid.
    pub fn share(&mut self, a: &str, b: &str) {
        let (Some(a), Some(b)) = (self.tensor_name(a), self.tensor_name(b)) else { return };
        let (a, b) = (self.group_of(a), self.group_of(b));
        if a != b {
            self.shared_with.insert(a.max(b), a.min(b));
        }
    }

    fn group_of<'t>(&self, mut tensor: &'t str) -> &'t str
    where
        'a: 't,
    {
        while let Some(parent) = self.shared_with.get(tensor) {
            tensor = parent;
        }
        tensor
    }

    /// The graph's own copy of a name.
    fn tensor_name(&self, tensor: &str) -> Option<&'a str> {
        if let Some(node) = self.index.producer(tensor) {
            return node.output.iter().map(String::as_str).find(|name| *name == tensor);
        }
        self.graph.input.iter().map(|value| value.name()).find(|name| *name == tensor)
    }

    /// Gathers the marks.
    pub fn finish(self) -> Sites {
        let mut sites = Sites::default();
        self.collect_activations(&mut sites);
        self.collect_weights(&mut sites);
        self.collect_float_nodes(&mut sites);
        sites
    }

    fn collect_activations(&self, sites: &mut Sites) {
        let inputs = self.graph.input.iter().map(|value| value.name());
        let outputs = self.graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for tensor in inputs.chain(outputs).filter(|name| !name.is_empty()) {
            let uses = self.index.consumers(tensor);
            // What a nested graph captures stays float: no use of its own could be rewired.
            let rewirable = uses.iter().copied().filter(|(_, input_idx)| *input_idx != usize::MAX);
            let whole = self.whole.get(tensor);
            let edges: Vec<Edge> = match whole {
                Some(_) => rewirable.collect(),
                None => rewirable.filter(|edge| self.edges.contains_key(edge)).collect(),
            };
            let mark = edges.iter().find_map(|edge| self.edges.get(edge)).or(whole);
            let (Some(mark), false) = (mark, edges.is_empty()) else { continue };
            let n_groups = groups.len();
            sites.activations.push(ActivationSite {
                tensor: tensor.to_string(),
                qtype: self.qtype_of(tensor, &edges),
                edges,
                group: *groups.entry(self.group_of(tensor)).or_insert(n_groups),
                fixed: self.fixed_output(tensor).map(|(_, fixed)| fixed),
                rule: mark.rule,
                reason: mark.reason.clone(),
            });
        }
    }

    /// Type and parameters that the producer's row prescribes.
    fn fixed_output(&self, tensor: &str) -> Option<(&'a str, FixedGrid)> {
        let node = self.index.producer(tensor)?;
        let row = self.scheme.ops.get(node.op_type())?;
        match (row.constraint, &row.output) {
            (Some(Constraint::FixedOutput(fixed)), Some(output)) => Some((output, fixed)),
            _ => None,
        }
    }

    /// The type whose parameters are prescribed, else the one that the first reader with a row asks for,
    /// else the one that the producer gives.
    fn qtype_of(&self, tensor: &str, edges: &[Edge]) -> String {
        if let Some((qtype, _)) = self.fixed_output(tensor) {
            return qtype.to_string();
        }
        let row = |node_idx: usize| self.scheme.ops.get(self.graph.node[node_idx].op_type());
        let of_reader = edges.iter().find_map(|edge| row(edge.0)?.input.clone());
        let of_producer = || row(self.index.producer_idx(tensor)?)?.output.clone();
        let any = || self.scheme.ops.values().find_map(|row| row.input.clone());
        of_reader.or_else(of_producer).or_else(any).unwrap_or_default()
    }

    fn collect_weights(&self, sites: &mut Sites) {
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            if !self.is_quantized(node_idx) {
                continue;
            }
            sites.quantized_nodes.push(node_idx);
            let (Some(row), Some(input_idx)) = (self.row(node_idx), self.weight_input(node_idx))
            else {
                continue;
            };
            let Some(weight_row) = &row.weight else { continue };
            let tensor = &node.input[input_idx];
            let rank = self.index.initializer(tensor).map_or(0, |t| t.dims.len());
            let qtype = &self.scheme.types[&weight_row.qtype];
            let axis = match qtype.granularity {
                Granularity::PerTensor => None,
                Granularity::PerChannel => Some(axis::of_outputs(node, input_idx)),
                Granularity::PerBlock => Some(axis::of_reduction(node, input_idx)),
            };
            let axis = axis.map(|default| match weight_row.axis {
                Axis::Number(number) => axis::position(number, rank),
                Axis::Output => axis::position(default, rank),
            });
            let same = |site: &WeightSite| {
                site.tensor == *tensor && site.axis == axis && site.qtype == weight_row.qtype
            };
            let weight = match sites.weights.iter().position(same) {
                Some(weight) => weight,
                None => {
                    sites.weights.push(WeightSite {
                        tensor: tensor.clone(),
                        qtype: weight_row.qtype.clone(),
                        axis,
                        block: qtype.block_size,
                        edges: Vec::new(),
                    });
                    sites.weights.len() - 1
                }
            };
            sites.weights[weight].edges.push((node_idx, input_idx));
            sites.biases.extend(match &row.bias {
                BiasRow::Int32 if input_idx == 1 => self.int32_bias_of(node_idx, node, weight),
                BiasRow::Type(qtype) => self.typed_bias_of(node_idx, node, weight, qtype),
                BiasRow::Int32 | BiasRow::Float => None,
            });
        }
    }

    fn typed_bias_of(
        &self,
        node_idx: usize,
        node: &NodeProto,
        weight: usize,
        qtype: &str,
    ) -> Option<BiasSite> {
        let tensor = node.input.get(2).filter(|name| !name.is_empty())?;
        let initializer = self.index.initializer(tensor)?;
        (initializer.data_type() == DataType::Float as i32).then(|| BiasSite {
            tensor: tensor.clone(),
            qtype: Some(qtype.to_string()),
            input: node.input[0].clone(),
            weight,
            edge: (node_idx, 2),
        })
    }

    fn int32_bias_of(&self, node_idx: usize, node: &NodeProto, weight: usize) -> Option<BiasSite> {
        let tensor = node.input.get(2).filter(|name| !name.is_empty())?;
        let initializer = self.index.initializer(tensor)?;
        let scaled = node
            .attribute
            .iter()
            .any(|attribute| matches!(attribute.name(), "alpha" | "beta") && attribute.f() != 1.0);
        let plain =
            initializer.data_type() == DataType::Float as i32 && initializer.dims.len() == 1;
        (plain && !scaled && self.is_quantized_edge((node_idx, 0))).then(|| BiasSite {
            tensor: tensor.clone(),
            qtype: None,
            input: node.input[0].clone(),
            weight,
            edge: (node_idx, 2),
        })
    }

    fn collect_float_nodes(&self, sites: &mut Sites) {
        let quantized: BTreeSet<usize> = sites.quantized_nodes.iter().copied().collect();
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            let float = node.output.iter().any(|name| self.facts.is_float(name));
            if quantized.contains(&node_idx) || !float {
                continue;
            }
            let (rule, reason) = match self.float.get(&node_idx) {
                Some(mark) => (mark.rule, mark.reason.clone()),
                None => ("", self.why_untouched(node_idx)),
            };
            sites.float_nodes.push(FloatNode { node: node_idx, rule, reason });
        }
    }

    fn why_untouched(&self, node_idx: usize) -> String {
        let backbones: BTreeSet<usize> = self
            .activation_inputs(node_idx)
            .into_iter()
            .filter_map(|i| self.backbone(&self.graph.node[node_idx].input[i]))
            .collect();
        match backbones.first() {
            Some(&backbone) if backbones.len() == 1 => {
                format!("runs at the end of `{}`", node_name(&self.graph.node[backbone]))
            }
            _ if !self.scheme.ops.contains_key(self.graph.node[node_idx].op_type()) => {
                format!(
                    "the backend's table has no row for {}",
                    self.graph.node[node_idx].op_type()
                )
            }
            _ => "nothing beside it is quantized".to_string(),
        }
    }
}
