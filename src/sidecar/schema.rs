//! The keys of the sidecar, and its text.

use crate::metrics::OutputGroups;
use crate::mixed::Mixed;
use crate::onnx::edit::{ModelEdit, NewBias};
use crate::tune::{Judged, MethodOutcome};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Version of the format. The first number is raised when a reader of an earlier one would go wrong,
/// the second when keys are added.
pub const SCHEMA_VERSION: &str = "2.0";

/// The file.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sidecar {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: String,
    /// Who wrote it.
    pub producer: Producer,
    /// The float model.
    pub model: ModelRecord,
    /// The backend's table.
    pub scheme: SchemeRecord,
    /// How ranges were found.
    pub calibration: CalibrationRecord,
    /// The methods that were tried, in their order.
    #[serde(default)]
    pub methods: Vec<MethodOutcome>,
    /// The channels of the outputs and their groups, as the overlap takes them; empty where nothing was evaluated.
    #[serde(default)]
    pub outputs: Vec<OutputGroups>,
    /// The changes of the prepared float model, in their order; weights of learned rounding come behind.
    #[serde(default)]
    pub edits: Vec<ModelEdit>,
    /// Channel scales in the form of earlier versions of mqq, which this one does not make again; never written.
    #[serde(default, skip_serializing)]
    pub equalization: Option<serde_json::Value>,
    /// Which layers got another precision; absent where that was not asked for.
    pub mixed_precision: Option<Mixed>,
    /// The changes of tuning; absent where nothing was tuned.
    pub tuning: Option<TuningRecord>,
    /// One per quantized activation, in the order of the graph.
    pub activation_encodings: Vec<Encoding>,
    /// One per quantized weight, then one per int32 bias.
    pub param_encodings: Vec<Encoding>,
    /// Nodes with float outputs that compute in float.
    pub float_nodes: Vec<FloatNodeRecord>,
    /// The prepared graph, without attributes and data.
    pub graph: GraphRecord,
    /// As printed.
    pub warnings: Vec<String>,
}

/// Name and version of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Producer {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
}

/// What the sidecar says of the float model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// File name without folders.
    pub file: String,
    /// Of the file's bytes, in hexadecimal.
    pub sha256: String,
    /// Version of the default operator set before and after.
    pub opset: [i64; 2],
    /// What was changed before placement, a line each.
    pub prepared: Vec<String>,
}

/// What the sidecar says of the backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchemeRecord {
    /// Name of the table.
    pub backend: String,
    /// Where its facts are from.
    pub source: String,
    /// The whole table, switches applied.
    pub resolved: serde_json::Value,
}

/// What the sidecar says of the calibration.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    /// Samples observed.
    pub n_samples: usize,
    /// Samples left out because their files could not be read.
    pub n_skipped: usize,
    /// Range observer of the activations, with its options.
    pub activation_observer: String,
    /// Range observer of the weights, with its options.
    pub weight_observer: String,
    /// The file that ranges of activations were taken from, and its format; absent where there was none.
    pub ranges_from: Option<RangesFrom>,
    /// How images became inputs; absent where there were none.
    pub preprocessing: Option<String>,
    /// Shape of each input.
    pub inputs: Vec<InputRecord>,
}

/// What the sidecar says of tuned weights and biases.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuningRecord {
    /// Samples that were learned from.
    pub n_samples: usize,
    /// The network before tuning and after all that was accepted, on held-out samples; absent in earlier versions.
    pub judged: Option<Judged>,
    /// Weights whose scales or integers are not those of the observer.
    pub n_weights: usize,
    /// Those among them whose integers are not the nearest ones.
    pub n_rounded: usize,
    /// Groups of activations whose ranges are not those of the observer.
    pub n_ranges: usize,
    /// Biases in the form of earlier versions of mqq; never written.
    #[serde(default, skip_serializing)]
    pub biases: Vec<NewBias>,
}

/// A file that ranges were taken from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RangesFrom {
    /// File name without folders.
    pub file: String,
    /// Its format, as `docs/formats.md` names it.
    pub format: String,
}

/// An input of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputRecord {
    /// ONNX name.
    pub name: String,
    /// Dimensions during calibration.
    pub shape: Vec<usize>,
}

/// A number, or a list along an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// For the whole tensor.
    One(T),
    /// One per slice of the axis.
    Many(Vec<T>),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> OneOrMany<T> {
        OneOrMany::Many(Vec::new())
    }
}

impl<T> OneOrMany<T> {
    /// The values; one where there is no axis.
    pub fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(value) => std::slice::from_ref(value),
            OneOrMany::Many(values) => values,
        }
    }
}

/// Parameters of one tensor; a real value is `y_scale * (q - y_zero_point)`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Encoding {
    /// ONNX name in the prepared model.
    pub name: String,
    /// The integer that holds the values.
    pub output_dtype: String,
    /// Real units per step.
    pub y_scale: OneOrMany<f32>,
    /// The integer that stands for 0.
    pub y_zero_point: OneOrMany<i32>,
    /// Axis of the scales.
    pub axis: Option<usize>,
    /// Values per scale along the axis, where there is a scale per block.
    pub block_size: Option<usize>,
    /// Bits of the grid.
    pub bits: u8,
    /// Lowest and highest integer of the grid.
    pub q_range: [i32; 2],
    /// Whether the grid is symmetric about 0 by its type.
    pub symmetric: bool,
    /// Dimensions, where they are known.
    pub shape: Option<Vec<usize>>,
    /// The interval that the range observer kept.
    pub range: Option<[f64; 2]>,
    /// Lowest and highest finite value seen.
    pub observed: Option<[f32; 2]>,
    /// The range observer.
    pub observer: Option<String>,
    /// By how much each integer differs from the nearest one, where rounding was learned: zigzag in LEB128,
    /// compressed by zlib, in Base64.
    pub rounding: Option<String>,
    /// NaN and infinite values seen.
    pub n_non_finite: Option<u64>,
    /// Values of a mask of attention seen, which saturate.
    pub n_masked: Option<u64>,
    /// Other tensors with the same quantization parameters.
    pub shared_with: Option<Vec<String>>,
    /// The Clip or Relu that was removed because the grid has its effect.
    pub removed_node: Option<String>,
    /// Whether the network's output of this name is quantized too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_output: bool,
    /// Nodes that read the quantized tensor.
    pub consumers: Vec<String>,
    /// The placement rule that asked for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Why, in words.
    pub reason: String,
}

/// A node that stays float.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloatNodeRecord {
    /// Its name.
    pub node: String,
    /// Its operator.
    pub op_type: String,
    /// The rule that left it float; empty where no rule did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Why, in words.
    pub reason: String,
}

/// The prepared graph, without attributes and data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GraphRecord {
    /// Names of the graph's inputs.
    pub inputs: Vec<String>,
    /// Names of the graph's outputs.
    pub outputs: Vec<String>,
    /// Nodes in their order.
    pub nodes: Vec<NodeRecord>,
}

/// A node of the graph.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its name; its first output where it has none.
    pub name: String,
    /// Its operator.
    pub op_type: String,
    /// Tensors read; empty names are inputs left out.
    pub inputs: Vec<String>,
    /// Tensors made.
    pub outputs: Vec<String>,
    /// Attribute `group` of a convolution, where it is not 1.
    pub group: Option<i64>,
}

impl Sidecar {
    /// The file's text, with a final newline.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}
