//! Backend tables: what a target can run on integers, and how.
//!
//! In: a YAML file of `backends/`, or a user's own. Out: a checked [`Scheme`]. Nothing else in the crate
//! knows a backend's name; a new backend is a file and a line in [`BUILT_IN`].

mod load;

pub use load::{BUILT_IN, resolve};

use crate::diag::did_you_mean;
use crate::quant::{Grid, Symmetry};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One backend's table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// The name on the command line and in output file names.
    pub name: String,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Where the table's facts are from.
    pub source: String,
    /// Lowest version of the default operator set that can express what the table asks for.
    pub min_opset: i64,
    /// Integer types by the names that the rows use.
    pub types: BTreeMap<String, QType>,
    /// Which range finders to use where the command line says nothing.
    pub observers: Observers,
    /// How quantized weights are stored.
    #[serde(default)]
    pub weight_storage: WeightStorage,
    /// Named changes to `types` that the command line may switch on.
    #[serde(default)]
    pub switches: BTreeMap<String, Switch>,
    /// A row per operator that may be quantized; everything else stays float.
    pub ops: BTreeMap<String, OpRow>,
    /// Placement rules, in the order in which they run.
    pub placement: Vec<RuleCall>,
    /// Rules that a model with Q/DQ must keep for this target, beside those of ONNX itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub check: Vec<RuleCall>,
    /// What is written beside the model.
    #[serde(default)]
    pub emit: Vec<String>,
}

impl Scheme {
    /// Applies the variant `name` of the table.
    ///
    /// # Errors
    /// If the table has no such switch.
    pub fn switch_on(&mut self, name: &str) -> Result<()> {
        let names = || self.switches.keys().map(String::as_str);
        let switch = self.switches.get(name).cloned().with_context(|| {
            format!(
                "switch `{name}` is unknown to backend `{}`, expected one of: {}{}",
                self.name,
                names().collect::<Vec<_>>().join(", "),
                did_you_mean(name, names())
            )
        })?;
        self.types.extend(switch.types);
        self.ops.extend(switch.ops);
        Ok(())
    }
}

/// An integer type of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QType {
    /// Bits per value.
    pub bits: u8,
    /// Two's complement or unsigned.
    pub signed: bool,
    /// Symmetric or asymmetric.
    pub symmetry: SymmetryName,
    /// One scale for the tensor or one per slice of an axis.
    #[serde(default)]
    pub granularity: Granularity,
    /// Leaves the lowest integer of a signed grid out.
    #[serde(default)]
    pub narrow_range: bool,
    /// Bits of the integer that holds the value, where it is wider than `bits` (7-bit weights in int8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_bits: Option<u8>,
}

impl QType {
    /// The grid of one scale of this type.
    pub fn grid(&self) -> Grid {
        let symmetry = match self.symmetry {
            SymmetryName::Symmetric => Symmetry::Symmetric,
            SymmetryName::Asymmetric => Symmetry::Asymmetric,
        };
        Grid { bits: self.bits, signed: self.signed, symmetry, narrow_range: self.narrow_range }
    }

    /// The ONNX name of the integer that holds the values.
    pub fn dtype(&self) -> String {
        let bits = self.storage_bits.unwrap_or(self.bits);
        format!("{}int{bits}", if self.signed { "" } else { "u" })
    }
}

/// How a table spells [`Symmetry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymmetryName {
    /// `zero_point` is 0.
    Symmetric,
    /// `zero_point` follows from the range.
    Asymmetric,
}

/// How many scales a tensor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// One.
    #[default]
    PerTensor,
    /// One per slice of an axis.
    PerChannel,
}

/// Names of range finders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observers {
    /// For activations.
    pub activation: String,
    /// For weights.
    pub weight: String,
}

/// How a quantized weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightStorage {
    /// As integers behind a DequantizeLinear.
    #[default]
    Integer,
    /// As floats behind QuantizeLinear and DequantizeLinear.
    Float,
}

/// A named variant of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// One line for people.
    pub description: String,
    /// Types that replace those of the same name.
    #[serde(default)]
    pub types: BTreeMap<String, QType>,
    /// Rows that replace those of the same name.
    #[serde(default)]
    pub ops: BTreeMap<String, OpRow>,
}

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
    /// How the bias is stored.
    #[serde(default)]
    pub bias: BiasRow,
    /// Type of the first output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Tensors that must lie on one grid.
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
    /// The axis of the scales; only for per-channel types.
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
    /// A fixed axis; negative counts from the last.
    Number(i64),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
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
            AxisForm::Name(name) => Err(format!("axis is `{name}`, expected `output` or a number")),
        }
    }
}

impl From<Axis> for AxisForm {
    fn from(axis: Axis) -> AxisForm {
        match axis {
            Axis::Output => AxisForm::Name("output".into()),
            Axis::Number(axis) => AxisForm::Number(axis),
        }
    }
}

/// How a bias is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BiasRow {
    /// As it is.
    #[default]
    Float,
    /// As int32 with the scale of the input times that of the weight.
    Int32,
}

/// Tensors of an operator that must lie on one grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    /// The output lies on the first input's grid.
    SameAsInput,
    /// All inputs lie on the output's grid.
    SameAsOutput,
}

/// A rule with its parameters: `name`, or `name: { parameter: value }`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "RuleForm", into = "RuleForm")]
pub struct RuleCall {
    /// Name of the rule, as in `place::RULES` or `verify::CHECKS`.
    pub rule: String,
    /// Parameters by name.
    pub parameters: BTreeMap<String, Parameter>,
}

/// A parameter of a rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Parameter {
    /// A number.
    Number(i64),
    /// A word.
    Text(String),
    /// A list of operator types or other words.
    Ops(Vec<String>),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum RuleForm {
    Name(String),
    Call(BTreeMap<String, BTreeMap<String, Parameter>>),
}

impl From<RuleForm> for RuleCall {
    fn from(form: RuleForm) -> RuleCall {
        match form {
            RuleForm::Name(rule) => RuleCall { rule, parameters: BTreeMap::new() },
            RuleForm::Call(call) => {
                let names: Vec<&str> = call.keys().map(String::as_str).collect();
                let rule = names.join(", ");
                RuleCall { rule, parameters: call.into_values().next().unwrap_or_default() }
            }
        }
    }
}

impl From<RuleCall> for RuleForm {
    fn from(call: RuleCall) -> RuleForm {
        match call.parameters.is_empty() {
            true => RuleForm::Name(call.rule),
            false => RuleForm::Call(BTreeMap::from([(call.rule, call.parameters)])),
        }
    }
}

impl RuleCall {
    /// A number, or `default` where the table does not give it.
    pub fn number(&self, name: &str, default: i64) -> i64 {
        match self.parameters.get(name) {
            Some(Parameter::Number(value)) => *value,
            _ => default,
        }
    }

    /// A word, where the table gives one.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.parameters.get(name) {
            Some(Parameter::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A list of operator types; empty where the table does not give it.
    pub fn ops(&self, name: &str) -> &[String] {
        match self.parameters.get(name) {
            Some(Parameter::Ops(ops)) => ops,
            _ => &[],
        }
    }
}
