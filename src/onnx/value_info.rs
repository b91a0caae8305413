//! Element types and shapes of tensors, as far as they are known without a run of the model.

use super::graph::activations;
use super::node::plain_domain;
use super::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use super::tensor::{self, DataType};
use std::collections::BTreeMap;

/// Element type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ValueInfo {
    /// Element type, as its number in `TensorProto.DataType`.
    pub data_type: Option<i32>,
    /// Dimensions, outermost first, where all are known.
    pub shape: Option<Vec<usize>>,
}

/// Operators whose outputs have the type of any input.
const OF_ONE_TYPE: &[&str] = &[
    "Add", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Concat", "Conv", "ConvTranspose",
    "DeformConv", "Div", "Einsum", "Gemm", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
    "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Range", "Sub", "Sum",
];
/// Operators whose outputs have types that do not follow from their inputs' types, or are no tensors.
const OF_OTHER_KINDS: &[&str] = &[
    "If", "Loop", "Scan", "SequenceAt", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceMap",
    "SequenceEmpty", "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement",
    "ImageDecoder", "RegexFullMatch", "StringSplit",
];

const FLOATS: [i32; 3] = [DataType::Float as i32, DataType::Float16 as i32, DataType::Bfloat16 as i32];

/// Whether a node's output has the type of its first input. ONNX Runtime's own operators may give floats for integers.
fn is_kept(node: &NodeProto, of_input: i32) -> bool {
    plain_domain(node.domain()).is_empty() || node.op_type().starts_with("QLinear") || FLOATS.contains(&of_input)
}

/// Element types and shapes of tensors, by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ValueInfos {
    by_name: BTreeMap<String, ValueInfo>,
}

impl ValueInfos {
    /// Returns the types and shapes of the model's initializers, inputs, outputs and `value_info`, and the element
    /// types that follow from them.
    pub fn of_model(model: &ModelProto) -> ValueInfos {
        let mut value_info = ValueInfos::default();
        let Some(graph) = &model.graph else { return value_info };
        for value in graph.value_info.iter().chain(&graph.output).chain(&graph.input) {
            value_info.insert(value.name(), value_info_of(value));
        }
        for initializer in &graph.initializer {
            let shape = tensor::shape(initializer).ok();
            let of_initializer = ValueInfo { data_type: initializer.data_type, shape };
            value_info.insert(initializer.name(), of_initializer);
        }
        value_info.propagate_types(graph);
        value_info
    }

    /// Returns the element types that follow from the graph's inputs and initializers along its nodes, whatever types it
    /// declares for the tensors that nodes compute.
    pub fn computed(graph: &GraphProto) -> ValueInfos {
        let mut value_info = ValueInfos::default();
        for value in &graph.input {
            value_info.insert(value.name(), value_info_of(value));
        }
        for initializer in &graph.initializer {
            value_info.insert(initializer.name(), ValueInfo { data_type: initializer.data_type, shape: None });
        }
        value_info.propagate_types(graph);
        value_info
    }

    /// Adds the type and shape of `tensor`. A known type or shape stays if `value_info` has none.
    pub fn insert(&mut self, tensor: &str, value_info: ValueInfo) {
        let known = self.by_name.entry(tensor.to_string()).or_default();
        known.data_type = value_info.data_type.or(known.data_type);
        if value_info.shape.is_some() {
            known.shape = value_info.shape;
        }
    }

    /// Gives `copy` the type and shape of `tensor`.
    pub fn copy(&mut self, tensor: &str, copy: &str) {
        if let Some(known) = self.by_name.get(tensor).cloned() {
            self.insert(copy, known);
        }
    }

    /// Adds the types and shapes in `other`.
    pub fn extend(&mut self, other: &ValueInfos) {
        for (tensor, value_info) in &other.by_name {
            self.insert(tensor, value_info.clone());
        }
    }

    /// Whether `tensor` holds float32 values.
    pub fn is_float(&self, tensor: &str) -> bool {
        self.by_name.get(tensor).and_then(|value_info| value_info.data_type) == Some(DataType::Float as i32)
    }

    /// Returns the number of values of the largest tensor with known shape that depends on the inputs of `model`; 0 if
    /// there is none. Initializers and tensors computed from them alone do not count, as they exist once for all
    /// samples.
    pub fn largest_activation(&self, model: &ModelProto) -> usize {
        let Some(graph) = &model.graph else { return 0 };
        let shapes = activations(graph).into_iter().filter_map(|name| self.shape(name));
        shapes.map(|shape| shape.iter().product::<usize>()).max().unwrap_or(0)
    }

    /// Returns the element type of `tensor`, as its number in `TensorProto.DataType`, if it is known.
    pub fn data_type(&self, tensor: &str) -> Option<i32> {
        self.by_name.get(tensor).and_then(|value_info| value_info.data_type)
    }

    /// Returns the shape of `tensor`, if it is known.
    pub fn shape(&self, tensor: &str) -> Option<&[usize]> {
        self.by_name.get(tensor)?.shape.as_deref()
    }

    /// Propagates element types along the nodes, which are in topological order.
    fn propagate_types(&mut self, graph: &GraphProto) {
        for node in &graph.node {
            for (slot, output) in node.output.iter().enumerate().filter(|(_, o)| !o.is_empty()) {
                if self.by_name.get(output).is_some_and(|value_info| value_info.data_type.is_some()) {
                    continue;
                }
                let of_input = |i: usize| {
                    let name = node.input.get(i)?;
                    self.by_name.get(name).and_then(|value_info| value_info.data_type)
                };
                let attribute = |name: &str| node.attribute.iter().find(|a| a.name() == name);
                let named = |name: &str| attribute(name).map(|a| a.i() as i32).filter(|&named| named != 0);
                let data_type = match (node.op_type(), slot) {
                    _ if !matches!(plain_domain(node.domain()), "" | "com.microsoft") => None,
                    ("Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin" | "NonMaxSuppression", _) | ("TopK", 1) => {
                        Some(DataType::Int64 as i32)
                    }
                    ("MaxPool", 1) => Some(DataType::Int64 as i32),
                    (
                        "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "Not" | "And" | "Or" | "Xor"
                        | "IsNaN" | "IsInf",
                        _,
                    ) => Some(DataType::Bool as i32),
                    ("Cast" | "BitCast", _) => named("to"),
                    ("CastLike", _) => of_input(1),
                    ("Multinomial", _) => named("dtype").or(Some(DataType::Int32 as i32)),
                    ("RandomNormal" | "RandomUniform", _) => named("dtype").or(Some(DataType::Float as i32)),
                    ("RandomNormalLike" | "RandomUniformLike" | "Bernoulli" | "EyeLike", _) => {
                        named("dtype").or_else(|| of_input(0))
                    }
                    ("BlackmanWindow" | "HammingWindow" | "HannWindow" | "MelWeightMatrix", _) => {
                        named("output_datatype").or(Some(DataType::Float as i32))
                    }
                    ("ConvInteger" | "MatMulInteger", _) => Some(DataType::Int32 as i32),
                    ("QLinearConv" | "QLinearMatMul", _) => of_input(7),
                    ("SequenceLength", _) | ("Unique", 1..) => Some(DataType::Int64 as i32),
                    ("TfIdfVectorizer", _) => Some(DataType::Float as i32),
                    ("ConstantOfShape", _) => Some(
                        attribute("value").and_then(|a| a.t.as_ref()).map_or(DataType::Float as i32, |t| t.data_type()),
                    ),
                    ("Constant", _) => attribute("value").and_then(|a| a.t.as_ref()).map(|t| t.data_type()),
                    ("QuantizeLinear", _) => {
                        let named = named("output_dtype");
                        match node.input.get(2).filter(|zero_point| !zero_point.is_empty()) {
                            Some(_) => of_input(2),
                            None => named.or(Some(DataType::Uint8 as i32)),
                        }
                    }
                    ("DynamicQuantizeLinear", 0 | 2) => Some(DataType::Uint8 as i32),
                    // The type of the scale.
                    ("DequantizeLinear", _) => named("output_dtype").or_else(|| of_input(1)),
                    ("Where", _) => of_input(1).or_else(|| of_input(2)),
                    ("OneHot", _) => of_input(2),
                    // The first inputs are ids, the third is the embedding table.
                    ("EmbedLayerNormalization", 0) => of_input(2),
                    ("EmbedLayerNormalization", 1) => Some(DataType::Int32 as i32),
                    ("Dropout", 1) => Some(DataType::Bool as i32),
                    ("RMSNormalization", _) => of_input(1).or_else(|| of_input(0)),
                    (op, _) if OF_OTHER_KINDS.contains(&op) => None,
                    (op, _) if OF_ONE_TYPE.contains(&op) => (0..node.input.len()).find_map(of_input),
                    _ => of_input(0).filter(|&of_input| is_kept(node, of_input)),
                };
                self.insert(output, ValueInfo { data_type, shape: None });
            }
        }
    }
}

fn value_info_of(value: &ValueInfoProto) -> ValueInfo {
    let tensor = value.tensor_type();
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref()).and_then(|shape| {
        let dims = shape.dim.iter();
        dims.map(|dim| dim.dim_value.filter(|&n| n >= 0).map(|n| n as usize)).collect()
    });
    ValueInfo { data_type: tensor.map(|tensor| tensor.elem_type()), shape }
}
