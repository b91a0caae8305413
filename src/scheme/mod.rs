//! Backend tables: the operators that a target runs on integers, and how.
//!
//! In: a YAML file of `backends/`, or a user's own, which may extend another. Out: a checked [`Scheme`]. Nothing else
//! in the crate knows a backend's name; a new backend is a file and a line in `backends::BUILT_IN`.

mod call;
mod check;
mod layers;
mod load;
mod locate;
mod mixed;
mod qtype;
mod row;
mod table_error;

pub use call::{Catalog, Parameter, ParameterKind, RuleCall, Takes};
pub use layers::is_path;
pub use load::{files, resolve, resolve_wider, resolve_with};
pub use locate::line_of;
pub use mixed::{FIRST_OPSET, FLOAT, Precision, WIDE_OPSET};
pub use qtype::{Granularity, QType, ScaleDivisor, ScaleKind};
pub use row::{Axis, BiasRow, Constraint, FixedGrid, OpRow, Region, WeightRow};

use crate::diag::none_of;
use crate::quant::Codes;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The table of a backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// The name on the command line and in output file names.
    pub name: String,
    /// Other names of a built-in table; a table that extends it does not inherit them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// One-line description.
    #[serde(default)]
    pub description: String,
    /// Command or call that loads the written model in the target, with `{model}` for its path; or a sentence on the
    /// use of the model, without `{model}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// Name of the built-in table of wider types that replaces this one for transformers and for networks that this one
    /// breaks; a table that extends this one does not inherit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wider: Option<String>,
    /// Source of the table's facts.
    pub source: String,
    /// Minimum version of the default operator set for the table's types and operators.
    pub min_opset: i64,
    /// Whether the target requires fixed input dimensions; the written model then has the shapes of the calibration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub static_shapes: bool,
    /// Whether operators that spell out a GELU or an L2 normalization become one, Gelu or LpNormalization.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fuse_operators: bool,
    /// Whether divisions by constants, and squares, become products, and differences with constants become sums.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multiply_and_add: bool,
    /// How an inserted Mul by channel scales runs; `None` if none may be inserted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insert_scales: Option<InsertedScales>,
    /// Integer types by the names used in the rows.
    pub types: BTreeMap<String, QType>,
    /// Range observers, unless the command line names others.
    pub observers: ObserverNames,
    /// How quantized weights are stored.
    #[serde(default)]
    pub weight_storage: WeightStorage,
    /// Named changes to `types` that the command line may switch on.
    #[serde(default)]
    pub switches: BTreeMap<String, Switch>,
    /// One row per operator that may be quantized; all other operators stay float.
    pub ops: BTreeMap<String, OpRow>,
    /// Rows of a region of wider types; `None` if the target has no such region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Region>,
    /// Placement rules, in the order in which they run.
    pub placement: Vec<RuleCall>,
    /// Rules for models with Q/DQ for this target, besides those of ONNX itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub check: Vec<RuleCall>,
    /// Precisions that single layers may have instead of the types of their rows, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mixed: BTreeMap<String, Precision>,
    /// Formats that are written beside the model.
    #[serde(default)]
    pub emit: Vec<String>,
}

impl Scheme {
    /// Whether the written model has ranges of activations if weights are stored like this. If not, the run needs no
    /// data.
    pub fn has_ranges(&self, storage: WeightStorage) -> bool {
        let mut rows = self.ops.values();
        storage != WeightStorage::Dynamic && rows.any(|row| row.input.is_some() || row.output.is_some())
    }

    /// Whether inserted Muls by channel scales run in float.
    pub fn scales_in_float(&self) -> bool {
        self.insert_scales == Some(InsertedScales::Float)
    }

    /// Whether the real values of all types are integers times a scale.
    pub fn has_affine_codes(&self) -> bool {
        self.types.values().all(|qtype| qtype.kind == Codes::Affine)
    }

    /// Whether single nodes of a network may run in float: the table has no check that refuses them.
    pub fn allows_float_nodes(&self) -> bool {
        !self.check.iter().any(|call| call.rule == "no_float_nodes")
    }

    /// Turns on the switch `name`.
    ///
    /// # Errors
    /// If the table has no such switch.
    pub fn switch_on(&mut self, name: &str) -> Result<()> {
        let switch = self.switches.get(name).cloned().ok_or_else(|| {
            let unknown = format!("switch `{name}` is unknown to backend `{}`", self.name);
            none_of(unknown, name, self.switches.keys().map(String::as_str))
        })?;
        self.types.extend(switch.types);
        self.ops.extend(switch.ops);
        Ok(())
    }
}

/// Names of range observers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObserverNames {
    /// Observer of activations.
    pub activation: String,
    /// Observer of weights.
    pub weight: String,
}

/// How an inserted Mul by channel scales runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", expecting = "expected `float` or `quantized`")]
pub enum InsertedScales {
    /// In float, before the quantization.
    Float,
    /// On quantized tensors, like other nodes.
    Quantized,
}

/// How a quantized weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(
    rename_all = "snake_case",
    deny_unknown_fields,
    expecting = "expected `integer`, `float`, `dynamic` or { nbits: { accuracy_level } }"
)]
pub enum WeightStorage {
    /// As integers with a DequantizeLinear.
    #[default]
    Integer,
    /// As floats with QuantizeLinear and DequantizeLinear.
    Float,
    /// As integers of a MatMulInteger, whose other input a DynamicQuantizeLinear quantizes on each run. As with
    /// `Integer` for an operator that a MatMulInteger cannot replace.
    Dynamic,
    /// As integers in blocks of ONNX Runtime's `MatMulNBits`. As with `Integer` for an operator that a `MatMulNBits`
    /// cannot replace.
    #[serde(untagged)]
    Nbits {
        /// Attributes of the operator that do not follow from the weight.
        nbits: NbitsOptions,
    },
}

/// Attributes of a `MatMulNBits` that do not follow from its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbitsOptions {
    /// Lowest precision that the kernel may round activations to: 1 for float32, 2 for float16, 3 for bfloat16, 4 for
    /// int8 per block; 0 omits the attribute.
    pub accuracy_level: u8,
}

/// A named variant of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// One-line description.
    pub description: String,
    /// Types that replace those with the same name.
    #[serde(default)]
    pub types: BTreeMap<String, QType>,
    /// Rows that replace those with the same name.
    #[serde(default)]
    pub ops: BTreeMap<String, OpRow>,
}
