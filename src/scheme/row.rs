//! Rows of a table: what may be quantized at one operator.

use serde::{Deserialize, Serialize};

/// What may be quantized at one operator.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpRow {
    /// Type of the inputs that are not constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Type of the constant input, and its axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<WeightRow>,
    /// Type of other constant operands, one scale each; they stay float without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant: Option<String>,
    /// How the bias is stored.
    #[serde(default)]
    pub bias: BiasRow,
    /// Type of the first output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Tensors that must share quantization parameters, or have given ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Constraint>,
    /// Where the row's facts are from, if not from the table's source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Type and axis of a weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightRow {
    /// A name of `types`.
    #[serde(rename = "type")]
    pub qtype: String,
    /// The axis of the scales. Only for per-channel types, and for per-block ones, whose blocks lie along
    /// the reduction axis of the operator unless a number is given.
    #[serde(default)]
    pub axis: Axis,
}

/// The axis of a weight's scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "AxisForm", into = "AxisForm")]
pub enum Axis {
    /// The axis of the operator's output channels, which for Gemm depends on `transB`.
    #[default]
    Output,
    /// The columns of a matrix that is the second operand of a MatMul; another constant has one scale.
    Columns,
    /// A fixed axis; negative counts from the last.
    Number(i64),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected `output`, `columns` or a number")]
enum AxisForm {
    Number(i64),
    Name(String),
}

impl TryFrom<AxisForm> for Axis {
    type Error = String;

    fn try_from(form: AxisForm) -> Result<Axis, String> {
        match form {
            AxisForm::Number(axis) => Ok(Axis::Number(axis)),
            AxisForm::Name(name) if name == "output" => Ok(Axis::Output),
            AxisForm::Name(name) if name == "columns" => Ok(Axis::Columns),
            AxisForm::Name(name) => Err(format!("axis is `{name}`, expected `output`, `columns` or a number")),
        }
    }
}

impl From<Axis> for AxisForm {
    fn from(axis: Axis) -> AxisForm {
        match axis {
            Axis::Output => AxisForm::Name("output".into()),
            Axis::Columns => AxisForm::Name("columns".into()),
            Axis::Number(axis) => AxisForm::Number(axis),
        }
    }
}

/// How a bias is stored: `float`, `int32`, or `{ type: NAME }`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "BiasForm", into = "BiasForm")]
pub enum BiasRow {
    /// As it is.
    #[default]
    Float,
    /// As int32 with the scale of the input times that of the weight.
    Int32,
    /// On a grid of its own: a name of `types`, per tensor.
    Type(String),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected `float`, `int32` or { type: NAME }")]
enum BiasForm {
    Name(String),
    Type(TypeName),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TypeName {
    #[serde(rename = "type")]
    qtype: String,
}

impl TryFrom<BiasForm> for BiasRow {
    type Error = String;

    fn try_from(form: BiasForm) -> Result<BiasRow, String> {
        match form {
            BiasForm::Name(name) if name == "float" => Ok(BiasRow::Float),
            BiasForm::Name(name) if name == "int32" => Ok(BiasRow::Int32),
            BiasForm::Type(TypeName { qtype }) => Ok(BiasRow::Type(qtype)),
            BiasForm::Name(name) => Err(format!("bias is `{name}`, expected `float`, `int32` or {{ type: NAME }}")),
        }
    }
}

impl From<BiasRow> for BiasForm {
    fn from(row: BiasRow) -> BiasForm {
        match row {
            BiasRow::Float => BiasForm::Name("float".into()),
            BiasRow::Int32 => BiasForm::Name("int32".into()),
            BiasRow::Type(qtype) => BiasForm::Type(TypeName { qtype }),
        }
    }
}

/// Tensors of an operator that must share quantization parameters, or have given ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ConstraintForm", into = "ConstraintForm")]
pub enum Constraint {
    /// The output has the first input's parameters.
    SameAsInput,
    /// All inputs have the output's parameters.
    SameAsOutput,
    /// All inputs share parameters; the output has its own.
    SameInputs,
    /// The output has these parameters, whatever was observed.
    FixedOutput(FixedGrid),
}

/// Parameters that the backend prescribes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedGrid {
    /// Real units per integer step; above 0.
    pub scale: f32,
    /// The integer that stands for 0.0.
    pub zero_point: i32,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected `same_as_input`, `same_as_output`, `same_inputs` or { fixed_output: { scale, zero_point } }"
)]
enum ConstraintForm {
    Name(String),
    Fixed(FixedOutput),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FixedOutput {
    fixed_output: FixedGrid,
}

impl TryFrom<ConstraintForm> for Constraint {
    type Error = String;

    fn try_from(form: ConstraintForm) -> Result<Constraint, String> {
        match form {
            ConstraintForm::Name(name) if name == "same_as_input" => Ok(Constraint::SameAsInput),
            ConstraintForm::Name(name) if name == "same_as_output" => Ok(Constraint::SameAsOutput),
            ConstraintForm::Name(name) if name == "same_inputs" => Ok(Constraint::SameInputs),
            ConstraintForm::Fixed(FixedOutput { fixed_output }) => Ok(Constraint::FixedOutput(fixed_output)),
            ConstraintForm::Name(name) => Err(format!(
                "constraint is `{name}`, expected `same_as_input`, `same_as_output`, `same_inputs` or \
                 {{ fixed_output: {{ scale, zero_point }} }}"
            )),
        }
    }
}

impl From<Constraint> for ConstraintForm {
    fn from(constraint: Constraint) -> ConstraintForm {
        match constraint {
            Constraint::SameAsInput => ConstraintForm::Name("same_as_input".into()),
            Constraint::SameAsOutput => ConstraintForm::Name("same_as_output".into()),
            Constraint::SameInputs => ConstraintForm::Name("same_inputs".into()),
            Constraint::FixedOutput(fixed_output) => ConstraintForm::Fixed(FixedOutput { fixed_output }),
        }
    }
}
