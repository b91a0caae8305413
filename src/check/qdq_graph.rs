//! A graph for Q/DQ rules: every QuantizeLinear and DequantizeLinear with its decoded parameters.
//!
//! Any model is accepted, even an invalid one. A missing or unreadable input is a variant of [`NodeInput`].

use super::qdq_node::{NodeInput, QdqNode, QdqOperator, Role};
use crate::onnx::graph::GraphIndex;
use crate::onnx::integers::{integer_values, scale_values};
use crate::onnx::node::{constant, int, plain_domain};
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor::{self, DataType};
use crate::onnx::value_info::ValueInfos;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a chain of nodes. An invalid graph may hold a cycle.
const MAX_CHAIN: usize = 16;

/// A graph and its Q/DQ nodes.
pub struct QdqGraph<'a> {
    /// The model.
    pub model: &'a ModelProto,
    /// The model's main graph.
    pub graph: &'a GraphProto,
    /// Index of producers and consumers.
    pub index: GraphIndex<'a>,
    /// Every QuantizeLinear and DequantizeLinear of the main graph, in the order of the graph.
    pub qdq_nodes: Vec<QdqNode<'a>>,
    value_info: ValueInfos,
    constants: BTreeMap<&'a str, Cow<'a, TensorProto>>,
    by_output: BTreeMap<&'a str, usize>,
}

impl<'a> QdqGraph<'a> {
    /// Reads the model; `None` if it has no graph.
    pub fn new(model: &'a ModelProto) -> Option<QdqGraph<'a>> {
        let graph = model.graph.as_ref()?;
        let mut constants: BTreeMap<&str, Cow<TensorProto>> = BTreeMap::new();
        for tensor in &graph.initializer {
            constants.insert(tensor.name(), Cow::Borrowed(tensor));
        }
        for node in &graph.node {
            let Some(output) = node.output.first() else { continue };
            let passed = match (node.op_type(), node.input.first()) {
                ("Identity", Some(input)) => constants.get(input.as_str()).cloned(),
                _ => constant(node).map(Cow::Owned),
            };
            if let Some(tensor) = passed {
                constants.insert(output, tensor);
            }
        }
        let mut view = QdqGraph {
            model,
            graph,
            index: GraphIndex::new(graph),
            qdq_nodes: Vec::new(),
            value_info: ValueInfos::of_model(model),
            constants,
            by_output: BTreeMap::new(),
        };
        for node in &graph.node {
            let operator = match node.op_type() {
                "QuantizeLinear" => QdqOperator::Quantize,
                "DequantizeLinear" => QdqOperator::Dequantize,
                _ => continue,
            };
            let qdq = view.qdq(node, operator);
            if !qdq.output.is_empty() {
                view.by_output.insert(qdq.output, view.qdq_nodes.len());
            }
            view.qdq_nodes.push(qdq);
        }
        Some(view)
    }

    fn qdq(&self, node: &'a NodeProto, operator: QdqOperator) -> QdqNode<'a> {
        let name = |i: usize| node.input.get(i).map_or("", String::as_str);
        let zero_point = self.values(name(2), integer_values);
        let type_of = |tensor: &str| match self.constants.get(tensor) {
            Some(tensor) => tensor.data_type,
            None => self.value_info.data_type(tensor),
        };
        let made_by = self.by_output.get(name(0)).and_then(|&i| self.qdq_nodes.get(i));
        let data_type = match operator {
            _ if !name(2).is_empty() => type_of(name(2)),
            QdqOperator::Quantize => Some(match int(node, "output_dtype", 0) {
                0 => 2,
                n => i32::try_from(n).unwrap_or(0),
            }),
            QdqOperator::Dequantize => made_by.map_or_else(|| type_of(name(0)), |q| q.data_type),
        };
        let output = node.output.first().map_or("", String::as_str);
        QdqNode {
            node,
            operator,
            input: name(0),
            output,
            data_type,
            scale: self.values(name(1), scale_values),
            zero_point,
            axis: int(node, "axis", 1),
            rank: self.shape(name(0)).map(|shape| shape.len()).or(made_by.and_then(|source| source.rank)),
            block_size: int(node, "block_size", 0),
            role: self.role(name(0), output),
        }
    }

    fn values<T>(&self, name: &str, decode: fn(&TensorProto) -> anyhow::Result<Vec<T>>) -> NodeInput<T> {
        if name.is_empty() {
            return NodeInput::Absent;
        }
        let Some(tensor) = self.constants.get(name) else { return NodeInput::Computed };
        let decoded = decode(tensor).and_then(|v| Ok((v, tensor::shape(tensor)?)));
        match decoded {
            Ok((values, shape)) => NodeInput::Constant(values, shape),
            Err(error) => NodeInput::Broken(format!("{error:#}")),
        }
    }

    fn role(&self, input: &str, output: &str) -> Role {
        if !self.is_constant(input) {
            return Role::Activation;
        }
        let uses = self.operators_reading(output);
        let has = |role: Role| uses.iter().any(|(node, i)| operand_role(node.op_type(), *i) == role);
        match (has(Role::Weight), has(Role::Bias)) {
            (true, _) => Role::Weight,
            (_, true) => Role::Bias,
            _ => Role::Constant,
        }
    }

    /// Whether the tensor is constant, possibly behind Q, DQ and operators that only move or cast values.
    pub fn is_constant(&self, tensor: &str) -> bool {
        let mut tensor = tensor;
        for _ in 0..MAX_CHAIN {
            if self.constants.contains_key(tensor) {
                return true;
            }
            match self.index.producer(tensor) {
                Some(node) if is_transparent(node) => match node.input.first() {
                    Some(input) => tensor = input,
                    None => return false,
                },
                _ => return false,
            }
        }
        false
    }

    /// Returns the constant with this name, from an initializer or a Constant node.
    pub fn constant(&self, tensor: &str) -> Option<&TensorProto> {
        self.constants.get(tensor).map(Cow::as_ref)
    }

    /// Returns the shape of `tensor`, if it is known.
    pub fn shape(&self, tensor: &str) -> Option<Vec<usize>> {
        match self.constants.get(tensor) {
            Some(tensor) => tensor::shape(tensor).ok(),
            None => self.value_info.shape(tensor).map(<[usize]>::to_vec),
        }
    }

    /// Whether `qdq` is a DQ with the same parameters as the Q before it. Findings about them are then reported only
    /// for the Q.
    pub fn repeats_its_quantize(&self, qdq: &QdqNode) -> bool {
        let source = self.qdq_of(qdq.input).filter(|source| source.operator == QdqOperator::Quantize);
        qdq.operator == QdqOperator::Dequantize && source.is_some_and(|source| source.same_grid(qdq))
    }

    /// Returns every Q, and every DQ that does not repeat the parameters of its Q.
    pub fn distinct(&self) -> impl Iterator<Item = &QdqNode<'a>> {
        self.qdq_nodes.iter().filter(|qdq| !self.repeats_its_quantize(qdq))
    }

    /// Whether `tensor` is known to hold float32, float16 or bfloat16 values.
    pub fn is_float(&self, tensor: &str) -> bool {
        let found = self.value_info.data_type(tensor).and_then(DataType::of);
        matches!(found, Some(DataType::Float | DataType::Float16 | DataType::Bfloat16))
    }

    /// Returns the Q or DQ that produces `tensor`.
    pub fn qdq_of(&self, tensor: &str) -> Option<&QdqNode<'a>> {
        self.by_output.get(tensor).and_then(|&i| self.qdq_nodes.get(i))
    }

    /// Returns the DQ that produces `tensor`.
    pub fn dequantize_of(&self, tensor: &str) -> Option<&QdqNode<'a>> {
        self.qdq_of(tensor).filter(|qdq| qdq.operator == QdqOperator::Dequantize)
    }

    /// Returns the nodes that read `tensor`, with the input index.
    pub fn users(&self, tensor: &str) -> Vec<(&'a NodeProto, usize)> {
        let uses = self.index.consumers(tensor).iter();
        uses.filter_map(|&(node, input)| Some((self.graph.node.get(node)?, input))).collect()
    }

    /// Returns the Q nodes that read `tensor`.
    pub fn quantizes_of(&self, tensor: &str) -> Vec<&QdqNode<'a>> {
        let outputs = self.users(tensor).into_iter().filter(|(_, input)| *input == 0);
        let readers = outputs.filter_map(|(node, _)| self.qdq_of(node.output.first()?));
        readers.filter(|qdq| qdq.operator == QdqOperator::Quantize).collect()
    }

    /// Returns the nodes that read `tensor` directly, or behind Q, DQ and operators that only move or cast values.
    pub fn operators_reading(&self, tensor: &str) -> Vec<(&'a NodeProto, usize)> {
        let mut open = vec![tensor];
        let mut seen = BTreeSet::from([tensor]);
        let mut found = Vec::new();
        while let Some(name) = open.pop() {
            for (node, input) in self.users(name) {
                match node.output.first() {
                    Some(output) if is_transparent(node) && input == 0 => {
                        if seen.insert(output) {
                            open.push(output);
                        }
                    }
                    _ => found.push((node, input)),
                }
            }
        }
        found
    }

    /// Returns the version of the operator set `domain`; the default set is "".
    pub fn opset(&self, domain: &str) -> Option<i64> {
        let mut imports = self.model.opset_import.iter();
        imports.find(|set| plain_domain(set.domain()) == plain_domain(domain)).map(|set| set.version())
    }
}

fn is_transparent(node: &NodeProto) -> bool {
    matches!(
        node.op_type(),
        "QuantizeLinear" | "DequantizeLinear" | "Transpose" | "Reshape" | "Identity" | "Squeeze" | "Unsqueeze" | "Cast"
    )
}

/// Returns the role of a constant at input `input` of an operator.
pub fn operand_role(op_type: &str, input: usize) -> Role {
    match (op_type, input) {
        ("MatMul", 0 | 1) | ("Gemm", 0) => Role::Weight,
        ("Conv" | "ConvTranspose" | "Gemm" | "DeformConv", 1) => Role::Weight,
        ("LSTM" | "GRU" | "RNN", 1 | 2) => Role::Weight,
        ("Conv" | "ConvTranspose" | "Gemm", 2) => Role::Bias,
        ("LayerNormalization" | "InstanceNormalization" | "BatchNormalization", 2) => Role::Bias,
        ("LSTM" | "GRU" | "RNN", 3) => Role::Bias,
        _ => Role::Constant,
    }
}
