//! Rows of a table: the tensors of an operator that may be quantized.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;

/// The tensors of an operator that may be quantized.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpRow {
    /// Type of the inputs that are not constant.
    pub input: Option<String>,
    /// Type of the constant input, and its axis.
    pub weight: Option<WeightRow>,
    /// Type of other constant operands, with one scale each; `None` leaves them float.
    pub constant: Option<String>,
    /// How the bias is stored.
    #[serde(default)]
    pub bias: BiasRow,
    /// Type of the first output.
    pub output: Option<String>,
    /// Tensors that must share quantization parameters, or have prescribed ones.
    pub constraint: Option<Constraint>,
    /// Whether the target computes the operator in float from the integers, which it converts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub float_kernel: bool,
    /// Source of the row's facts, if not the table's.
    pub source: Option<String>,
}

/// Type and axis of a weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightRow {
    /// A name from `types`.
    #[serde(rename = "type")]
    pub qtype: String,
    /// The axis of the scales, for per-channel and per-block types. Blocks lie along the operator's reduction axis
    /// unless a number is given.
    #[serde(default)]
    pub axis: Axis,
}

/// The axis of a weight's scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", expecting = "expected `output`, `columns` or a number")]
pub enum Axis {
    /// The axis of the operator's output channels, which for Gemm depends on `transB`.
    #[default]
    Output,
    /// The columns of a matrix that is the second operand of a MatMul; other constants have one scale.
    Columns,
    /// A fixed axis; negative counts from the last.
    #[serde(untagged)]
    Number(i64),
}

/// How a bias is stored: `float`, `int32`, or `{ type: NAME }`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields, expecting = "expected `float`, `int32` or { type: NAME }")]
pub enum BiasRow {
    /// In float.
    #[default]
    Float,
    /// As int32 whose scale is the product of the scales of input and weight.
    Int32,
    /// On its own per-tensor grid.
    #[serde(untagged)]
    Type {
        /// A name from `types`.
        #[serde(rename = "type")]
        qtype: String,
    },
}

/// Tensors of an operator that must share quantization parameters, or have prescribed ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(
    rename_all = "snake_case",
    deny_unknown_fields,
    expecting = "expected `same_as_input`, `same_as_output`, `same_inputs` or { fixed_output: { scale, zero_point } }"
)]
pub enum Constraint {
    /// The output has the first input's parameters.
    SameAsInput,
    /// All inputs have the output's parameters.
    SameAsOutput,
    /// All inputs share parameters; the output has its own.
    SameInputs,
    /// The output has prescribed parameters, whatever was observed.
    #[serde(untagged)]
    Fixed {
        /// The parameters.
        fixed_output: FixedGrid,
    },
}

/// Parameters that the backend prescribes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedGrid {
    /// Real units per integer step; positive.
    pub scale: f32,
    /// The integer that stands for 0.0.
    pub zero_point: i32,
}

/// Rows that replace those of `ops` in a region of a few nodes. Where a tensor crosses the border of the region, a
/// second QuantizeLinear and DequantizeLinear convert it to the other type. Operators without a row in `ops` are in no
/// region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Rows by operator.
    pub ops: BTreeMap<String, OpRow>,
    /// Source of the rows, and of the conversion.
    pub source: String,
}
