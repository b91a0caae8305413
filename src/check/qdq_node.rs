//! One QuantizeLinear or DequantizeLinear, its parameters decoded.

use crate::onnx::proto::NodeProto;
use crate::scheme::RuleCall;

/// Which of the two operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QdqOperator {
    /// QuantizeLinear.
    Quantize,
    /// DequantizeLinear.
    Dequantize,
}

/// What the tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It depends on the graph's inputs.
    Activation,
    /// The constant that a weighted operator multiplies with.
    Weight,
    /// The constant that a weighted operator adds.
    Bias,
    /// Any other constant.
    Constant,
}

impl Role {
    /// The names of all roles in a table.
    pub const NAMES: &'static [&'static str] = &["activation", "weight", "bias", "constant"];

    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Role::Activation => "activation",
            Role::Weight => "weight",
            Role::Bias => "bias",
            Role::Constant => "constant",
        }
    }

    /// Whether parameter `of` of the call names it; every role is meant where it is not given.
    pub(super) fn is_among(self, call: &RuleCall) -> bool {
        call.ops("of").is_empty() || call.lists("of", self.name())
    }
}

/// Scale or zero point of one node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeInput<T> {
    /// The node has no such input.
    Absent,
    /// It has, but the values are computed.
    Computed,
    /// The values, in row-major order, and the shape.
    Constant(Vec<T>, Vec<usize>),
    /// They do not decode; why.
    Broken(String),
}

impl<T> NodeInput<T> {
    /// The values, where they are known.
    pub fn known(&self) -> Option<&[T]> {
        match self {
            NodeInput::Constant(values, _) => Some(values),
            _ => None,
        }
    }
}

/// One QuantizeLinear or DequantizeLinear.
#[derive(Debug)]
pub struct QdqNode<'a> {
    /// The node.
    pub node: &'a NodeProto,
    /// Which operator.
    pub operator: QdqOperator,
    /// The tensor that is converted; empty where the node lacks it.
    pub input: &'a str,
    /// The result; empty where the node lacks it.
    pub output: &'a str,
    /// Element type on the integer side, by its number in `TensorProto.DataType`, where it is known.
    pub data_type: Option<i32>,
    /// Scales.
    pub scale: NodeInput<f32>,
    /// Zero points.
    pub zero_point: NodeInput<i32>,
    /// Attribute `axis`; ONNX's default is 1.
    pub axis: i64,
    /// Attribute `block_size`; 0 where there is none.
    pub block_size: i64,
    /// What the tensor is for.
    pub role: Role,
}

impl QdqNode<'_> {
    /// Whether there is more than one scale.
    pub fn is_per_channel(&self) -> bool {
        match &self.scale {
            NodeInput::Constant(values, shape) => values.len() > 1 || shape.len() > 1,
            _ => false,
        }
    }

    /// Whether both convert with the same parameters, bit for bit. Parameters that are computed are the
    /// same only where they are the same tensors.
    pub fn same_grid(&self, other: &QdqNode) -> bool {
        let input = |qdq: &QdqNode, i: usize| qdq.node.input.get(i).cloned();
        let scales = match (self.scale.known(), other.scale.known()) {
            (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
            _ => input(self, 1).is_some() && input(self, 1) == input(other, 1),
        };
        let zero = |qdq: &QdqNode| match &qdq.zero_point {
            NodeInput::Absent => Some(vec![0]),
            NodeInput::Constant(values, _) if values.iter().all(|z| *z == 0) => Some(vec![0]),
            values => values.known().map(<[i32]>::to_vec),
        };
        let zero_points = match (zero(self), zero(other)) {
            (Some(a), Some(b)) => a == b,
            _ => input(self, 2) == input(other, 2),
        };
        let along = !self.is_per_channel() || self.axis == other.axis;
        let types = self.data_type.is_none() || other.data_type.is_none() || self.data_type == other.data_type;
        scales && zero_points && along && types && self.block_size == other.block_size
    }

    /// `scale 0.5, zero point 3`, for messages.
    pub fn parameters(&self) -> String {
        let scale = match self.scale.known() {
            Some([scale]) => format!("scale {scale:e}"),
            Some(scales) => format!("{} scales", scales.len()),
            None => "a computed scale".to_string(),
        };
        match self.zero_point.known() {
            Some([zero_point]) => format!("{scale}, zero point {zero_point}"),
            Some(_) => format!("{scale} with zero points"),
            None => format!("{scale}, no zero point"),
        }
    }
}
