//! Backend tables: what a target can run on integers, and how.
//!
//! In: a YAML file of `backends/`, or a user's own, which may extend another. Out: a checked [`Scheme`].
//! Nothing else in the crate knows a backend's name; a new backend is a file and a line in `backends::BUILT_IN`.

mod call;
mod catalog;
mod check;
mod layers;
mod load;
mod locate;
mod mixed;
mod qtype;
mod row;
mod wrong;

pub use call::{Parameter, ParameterKind, RuleCall};
pub use catalog::{Catalog, Takes};
pub use layers::is_path;
pub use load::{files, resolve, resolve_with};
pub use locate::line_of;
pub use mixed::{FLOAT, Precision};
pub use qtype::{Granularity, QType, ScaleDivisor, ScaleKind};
pub use row::{Axis, BiasRow, Constraint, FixedGrid, OpRow, WeightRow};

use crate::diag::none_of;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One backend's table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// The name on the command line and in output file names.
    pub name: String,
    /// What a built-in table is called besides; a table that extends it is not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Name of the built-in table that takes the place of this one where the network is a transformer; a table that extends
    /// this one has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transformers: Option<String>,
    /// Where the table's facts are from.
    pub source: String,
    /// Lowest version of the default operator set that can express what the table asks for.
    pub min_opset: i64,
    /// Whether the target takes only inputs whose every dimension is a number; the written model then has
    /// the shapes that it was calibrated with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub static_shapes: bool,
    /// Whether divisions by constants and squares are to be products, and differences with constants sums.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multiply_and_add: bool,
    /// How a Mul runs that channel scales put in front of a layer; `None` where the graph gets none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insert_scales: Option<InsertedScales>,
    /// Integer types by the names that the rows use.
    pub types: BTreeMap<String, QType>,
    /// Which range observers to use where the command line says nothing.
    pub observers: ObserverNames,
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
    /// What single layers may have instead of the types of their rows, by a name of the table's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mixed: BTreeMap<String, Precision>,
    /// What is written beside the model.
    #[serde(default)]
    pub emit: Vec<String>,
}

impl Scheme {
    /// Whether ranges of activations are written where weights are stored in this way; where not, no data is needed.
    pub fn has_ranges(&self, storage: WeightStorage) -> bool {
        let mut rows = self.ops.values();
        storage != WeightStorage::Dynamic && rows.any(|row| row.input.is_some() || row.output.is_some())
    }

    /// Whether Muls by channel scales run in float.
    pub fn scales_in_float(&self) -> bool {
        self.insert_scales == Some(InsertedScales::Float)
    }

    /// Applies the variant `name` of the table.
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
    /// For activations.
    pub activation: String,
    /// For weights.
    pub weight: String,
}

/// How a Mul by channel scales runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", expecting = "expected `float` or `quantized`")]
pub enum InsertedScales {
    /// In float, in front of the quantization.
    Float,
    /// On quantized tensors, as the other nodes.
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
    /// As integers behind a DequantizeLinear.
    #[default]
    Integer,
    /// As floats behind QuantizeLinear and DequantizeLinear.
    Float,
    /// As integers of a MatMulInteger, whose other input a DynamicQuantizeLinear makes in each run; where that cannot take
    /// the place of an operator, as `Integer`.
    Dynamic,
    /// As integers in blocks of a `MatMulNBits` of ONNX Runtime; where that cannot take the place of an operator, as `Integer`.
    #[serde(untagged)]
    Nbits {
        /// The operator's attributes that do not follow from the weight.
        nbits: NbitsOptions,
    },
}

/// Attributes of a `MatMulNBits` that do not follow from its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbitsOptions {
    /// What the kernel may round activations to: 1 for float32, 2 for float16, 3 for bfloat16, 4 for int8 per block; 0 leaves
    /// the attribute out.
    pub accuracy_level: u8,
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
