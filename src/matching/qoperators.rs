//! Replaces operators on integers by float operators between DequantizeLinear and QuantizeLinear.
//!
//! Source: ONNX, `QLinearConv`, `QLinearMatMul`; ONNX Runtime, `docs/ContribOperators.md`, and its quantizer's
//! `onnxruntime/python/tools/quantization/operators`.

use crate::onnx::graph::GraphIndex;
use crate::onnx::integers::scale_values;
use crate::onnx::names::Names;
use crate::onnx::node::{attribute, float, int, make, node_name, set_int, take};
use crate::onnx::proto::{ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor;
use std::collections::{BTreeMap, BTreeSet};

/// The input indices of an operand of an operator on integers: of the integers, their scale and their zero point.
type IntegerInput = [usize; 3];

/// The signature of an operator on integers.
struct QOperator {
    name: &'static str,
    /// Name of the float operator.
    float: &'static str,
    inputs: &'static [IntegerInput],
    /// Input indices of the result's scale and zero point.
    output: [usize; 2],
    /// Input index of an int32 bias. Its scale is the product of the scales of the first two operands.
    bias: Option<usize>,
}

const fn unary(name: &'static str, float: &'static str) -> QOperator {
    QOperator { name, float, inputs: &[[0, 1, 2]], output: [3, 4], bias: None }
}

const fn binary(name: &'static str, float: &'static str) -> QOperator {
    QOperator { name, float, inputs: &[[0, 1, 2], [3, 4, 5]], output: [6, 7], bias: None }
}

const OPERATORS: &[QOperator] = &[
    QOperator { bias: Some(8), ..binary("QLinearConv", "Conv") },
    binary("QLinearMatMul", "MatMul"),
    QOperator { bias: Some(6), output: [7, 8], ..binary("QGemm", "Gemm") },
    binary("QLinearAdd", "Add"),
    binary("QLinearMul", "Mul"),
    unary("QLinearGlobalAveragePool", "GlobalAveragePool"),
    unary("QLinearAveragePool", "AveragePool"),
    unary("QLinearReduceMean", "ReduceMean"),
    unary("QLinearLeakyRelu", "LeakyRelu"),
    unary("QLinearSigmoid", "Sigmoid"),
    unary("QLinearSoftmax", "Softmax"),
    // The operands, three inputs each, follow the result's scale and zero point.
    QOperator { name: "QLinearConcat", float: "Concat", inputs: &[], output: [0, 1], bias: None },
];

/// A model with Q/DQ in place of operators on integers.
pub struct AsQdq {
    /// The model.
    pub model: ModelProto,
    /// Names of integer tensors of the given model, by the name of the new DequantizeLinear that reads them.
    pub integers: BTreeMap<String, String>,
}

/// Returns the model with Q/DQ in place of QLinearConv and other operators on integers, and with a DequantizeLinear
/// behind each QuantizeLinear. Unknown operators stay unchanged.
pub fn as_qdq(mut model: ModelProto) -> AsQdq {
    let mut added = Added::default();
    if let Some(graph) = &mut model.graph {
        let mut names = Names::of(graph);
        let index = GraphIndex::new(graph);
        for node in &graph.node {
            let operator = OPERATORS.iter().find(|operator| operator.name == node.op_type());
            let expansion = Expansion { node, index: &index, names: &mut names, added: Added::default() };
            match operator.and_then(|operator| expansion.expanded(operator)) {
                Some(expanded) => added.extend(expanded),
                None => added.nodes.push(node.clone()),
            }
        }
        added.dequantize(&mut names);
        graph.node = added.nodes;
        graph.initializer.extend(added.constants);
    }
    AsQdq { model, integers: added.integers }
}

/// Parts to add to a graph.
#[derive(Default)]
struct Added {
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    integers: BTreeMap<String, String>,
}

impl Added {
    fn extend(&mut self, other: Added) {
        self.nodes.extend(other.nodes);
        self.constants.extend(other.constants);
        self.integers.extend(other.integers);
    }

    /// Adds a DequantizeLinear behind each QuantizeLinear that has none.
    fn dequantize(&mut self, names: &mut Names) {
        let is = |node: &NodeProto, op_type: &str| node.op_type() == op_type;
        let dequantized = self.nodes.iter().filter(|node| is(node, "DequantizeLinear"));
        let dequantized: BTreeSet<String> = dequantized.filter_map(|node| node.input.first().cloned()).collect();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in std::mem::take(&mut self.nodes) {
            let integers = node.output.first().filter(|it| is(&node, "QuantizeLinear") && !dequantized.contains(*it));
            let inverse = integers.map(|integers| {
                let result = names.fresh(&format!("{integers}_DequantizeLinear"));
                self.integers.insert(result.clone(), integers.clone());
                let mut inverse = NodeProto { op_type: Some("DequantizeLinear".to_string()), ..node.clone() };
                inverse.name = Some(result.clone());
                inverse.input = [integers].into_iter().chain(node.input.iter().skip(1)).cloned().collect();
                inverse.output = vec![result];
                inverse.attribute.retain(|attribute| matches!(attribute.name(), "axis" | "block_size"));
                inverse
            });
            nodes.push(node);
            nodes.extend(inverse);
        }
        self.nodes = nodes;
    }
}

/// The replacement of one node.
struct Expansion<'a> {
    node: &'a NodeProto,
    index: &'a GraphIndex<'a>,
    names: &'a mut Names,
    added: Added,
}

impl Expansion<'_> {
    fn input(&self, i: usize) -> &str {
        self.node.input.get(i).map_or("", String::as_str)
    }

    /// Returns the nodes and constants of the replacement; `None` if the node does not match the signature, the scale
    /// of its bias is unknown, or its channels are last.
    fn expanded(mut self, operator: &QOperator) -> Option<Added> {
        let result = self.node.output.first()?;
        if int(self.node, "channels_last", 0) != 0 {
            return None;
        }
        let triples: Vec<IntegerInput> = match operator.inputs {
            [] => (0..self.node.input.len().checked_sub(2)? / 3).map(|i| [3 * i + 2, 3 * i + 3, 3 * i + 4]).collect(),
            inputs => inputs.to_vec(),
        };
        let mut inputs = Vec::new();
        for (position, at) in triples.iter().enumerate() {
            let [values, scale, zero_point] = at.map(|i| self.input(i).to_string());
            inputs.push(self.dequantized(&values, &scale, &zero_point, self.axis(operator, position)));
        }
        if let Some(bias) = operator.bias.map(|i| self.input(i).to_string()).filter(|name| !name.is_empty()) {
            let scale = self.bias_scale(&triples)?;
            inputs.push(self.dequantized(&bias, &scale, "", 0));
        }
        let [scale, zero_point] = operator.output.map(|i| self.input(i).to_string());
        // A QGemm without a scale of the result has a float result.
        let float = if scale.is_empty() { result.clone() } else { self.names.fresh(&format!("{result}_float")) };
        let mut node = self.node.clone();
        take(&mut node, "channels_last");
        take(&mut node, "opset");
        node.op_type = Some(operator.float.to_string());
        node.domain = None;
        node.name = Some(node_name(self.node).to_string());
        node.input = inputs;
        node.output = vec![float.clone()];
        self.added.nodes.push(node);
        if !scale.is_empty() {
            let name = self.names.fresh(&format!("{result}_QuantizeLinear"));
            let inputs = [float.as_str(), &scale, &zero_point];
            let n = if zero_point.is_empty() { 2 } else { 3 };
            self.added.nodes.push(make("QuantizeLinear", &name, &inputs[..n], result));
        }
        Some(self.added)
    }

    /// Returns the axis of the scales of the operand at `position`.
    fn axis(&self, operator: &QOperator, position: usize) -> i64 {
        match (operator.float, position) {
            ("MatMul", 0) => -2,
            ("MatMul", _) => -1,
            ("Gemm", 1) => i64::from(int(self.node, "transB", 0) == 0),
            _ => 0,
        }
    }

    /// Adds a DequantizeLinear and returns its result.
    fn dequantized(&mut self, values: &str, scale: &str, zero_point: &str, axis: i64) -> String {
        let result = self.names.fresh(&format!("{values}_DequantizeLinear"));
        let n = if zero_point.is_empty() { 2 } else { 3 };
        let mut node = make("DequantizeLinear", &result, &[values, scale, zero_point][..n], &result);
        set_int(&mut node, "axis", axis);
        self.added.nodes.push(node);
        self.added.integers.insert(result.clone(), values.to_string());
        result
    }

    /// Adds an initializer with the scales of the bias, and returns its name; `None` if the scales of the operands are
    /// not constant.
    fn bias_scale(&mut self, triples: &[IntegerInput]) -> Option<String> {
        let scales = |at: &IntegerInput| scale_values(self.index.initializer(self.input(at[1]))?).ok();
        let [input, weight] = [scales(triples.first()?)?, scales(triples.get(1)?)?];
        let alpha = attribute(self.node, "alpha").and_then(|_| float(self.node, "alpha")).unwrap_or(1.0);
        let [input] = input[..] else { return None };
        let products: Vec<f32> = weight.iter().map(|weight| alpha * input * weight).collect();
        let shape: &[usize] = if products.len() == 1 { &[] } else { &[products.len()] };
        let name = self.names.fresh(&format!("{}_scale", self.node.output.first()?));
        self.added.constants.push(tensor::from_f32(&name, shape, &products).ok()?);
        Some(name)
    }
}
