//! A QuantizeLinear or DequantizeLinear with its decoded parameters.

use crate::onnx::node::from_first;
use crate::onnx::proto::NodeProto;
use crate::scheme::RuleCall;

/// The operator of a Q/DQ node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QdqOperator {
    /// QuantizeLinear.
    Quantize,
    /// DequantizeLinear.
    Dequantize,
}

/// The role of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A tensor that depends on the graph's inputs.
    Activation,
    /// A constant by which an operator multiplies its input.
    Weight,
    /// A constant that such an operator, or a normalization, adds.
    Bias,
    /// Any other constant.
    Constant,
}

impl Role {
    /// The names of all roles in a table.
    pub const NAMES: &'static [&'static str] = &["activation", "weight", "bias", "constant"];

    /// Returns the name of the role in a table.
    pub fn name(self) -> &'static str {
        match self {
            Role::Activation => "activation",
            Role::Weight => "weight",
            Role::Bias => "bias",
            Role::Constant => "constant",
        }
    }

    /// Whether the call's parameter `of` names this role; without `of` every role counts.
    pub(super) fn is_among(self, call: &RuleCall) -> bool {
        call.ops("of").is_empty() || call.lists("of", self.name())
    }
}

/// The scale or the zero point of a Q/DQ node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeInput<T> {
    /// The node has no such input.
    Absent,
    /// The values are computed at run time.
    Computed,
    /// The values, in row-major order, and the shape.
    Constant(Vec<T>, Vec<usize>),
    /// The values cannot be decoded, with the reason.
    Broken(String),
}

impl<T> NodeInput<T> {
    /// Returns the values, if they are constant.
    pub fn known(&self) -> Option<&[T]> {
        match self {
            NodeInput::Constant(values, _) => Some(values),
            _ => None,
        }
    }
}

/// A QuantizeLinear or DequantizeLinear.
#[derive(Debug)]
pub struct QdqNode<'a> {
    /// The node.
    pub node: &'a NodeProto,
    /// The operator.
    pub operator: QdqOperator,
    /// The converted tensor; empty if the node has no input.
    pub input: &'a str,
    /// The result; empty if the node has no output.
    pub output: &'a str,
    /// Integer element type, as its number in `TensorProto.DataType`, if it is known.
    pub data_type: Option<i32>,
    /// Scales.
    pub scale: NodeInput<f32>,
    /// Zero points.
    pub zero_point: NodeInput<i32>,
    /// Attribute `axis`; ONNX's default is 1.
    pub axis: i64,
    /// Rank of the converted tensor, if it is known.
    pub rank: Option<usize>,
    /// Attribute `block_size`; 0 if it is absent.
    pub block_size: i64,
    /// The role of the converted tensor.
    pub role: Role,
}

impl QdqNode<'_> {
    /// Whether the node has several scales, or scales of rank 2 or more.
    pub fn is_per_channel(&self) -> bool {
        match &self.scale {
            NodeInput::Constant(values, shape) => values.len() > 1 || shape.len() > 1,
            _ => false,
        }
    }

    /// Whether both nodes have bit-identical parameters. Parameters computed at run time are equal only if they are the
    /// same tensors.
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
        let axis = |qdq: &QdqNode, other: &QdqNode| match qdq.rank.or(other.rank) {
            Some(rank) => from_first(qdq.axis, rank),
            None => qdq.axis,
        };
        let along = !self.is_per_channel() || axis(self, other) == axis(other, self);
        let types = self.data_type.is_none() || other.data_type.is_none() || self.data_type == other.data_type;
        scales && zero_points && along && types && self.block_size == other.block_size
    }

    /// Returns the parameters as text for messages, such as `scale 5e-1, zero point 3`.
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
