//! The keys of the sidecar, and its JSON text.

use crate::metrics::OutputGroups;
use crate::mixed::{LayerSensitivity, Mixed};
use crate::onnx::edit::{ModelEdit, NewBias};
use crate::onnx::inputs::ShapeRange;
use crate::tune::{EvaluatedTask, Judged, MethodOutcome, TensorErrors};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;

/// Version of the format. The first number is raised when a change would mislead readers of an earlier version, the
/// second when keys are added.
pub const SCHEMA_VERSION: &str = "3.4";

/// The sidecar.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sidecar {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: String,
    /// The program that wrote the sidecar.
    pub producer: Producer,
    /// Record of the float model.
    pub model: ModelRecord,
    /// Record of the written model; absent in sidecars of earlier versions.
    pub quantized: Option<QuantizedRecord>,
    /// Record of the backend's table.
    pub scheme: SchemeRecord,
    /// Record of the calibration.
    pub calibration: CalibrationRecord,
    /// Outcomes of the methods, in the order in which they were tried.
    #[serde(default)]
    pub methods: Vec<MethodOutcome>,
    /// The network's task, whose metric evaluates changes as well; absent if it is not known.
    pub task: Option<EvaluatedTask>,
    /// Channels of the outputs and their groups, as the overlap takes them; empty if nothing was evaluated.
    #[serde(default)]
    pub outputs: Vec<OutputGroups>,
    /// Edits of the prepared float model, in order. Weights of learned rounding are replaced after these edits.
    #[serde(default)]
    pub edits: Vec<ModelEdit>,
    /// Channel scales in the form of earlier versions of mqq, which this version cannot repeat; never written.
    #[serde(default, skip_serializing)]
    pub equalization: Option<serde_json::Value>,
    /// Result of mixed precision; absent if the user did not ask for it.
    pub mixed_precision: Option<Mixed>,
    /// Result of tuning layers; absent if nothing was tuned.
    pub tuning: Option<TuningRecord>,
    /// Error of each tensor of the quantized network; absent if nothing was tuned.
    pub tensor_errors: Option<TensorErrors>,
    /// Cost of each layer's own precision, highest first; absent without `--report`, or if mixed precision has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensitivity: Vec<LayerSensitivity>,
    /// Parameters of each quantized activation, in the order of the graph.
    pub activation_encodings: Vec<Encoding>,
    /// Parameters of each quantized weight, then of each quantized bias.
    pub param_encodings: Vec<Encoding>,
    /// Nodes with float outputs that compute in float.
    pub float_nodes: Vec<FloatNodeRecord>,
    /// The prepared graph, without attributes and data.
    pub graph: GraphRecord,
    /// The printed warnings.
    pub warnings: Vec<String>,
}

/// Name and version of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Producer {
    /// Name of the program.
    pub name: String,
    /// Version of the program.
    pub version: String,
}

/// Record of the float model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// File name without folders.
    pub file: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Version of the default operator set before and after preparation.
    pub opset: [i64; 2],
    /// Changes by preparation, before placement, one line each.
    pub prepared: Vec<String>,
}

/// Record of the written model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantizedRecord {
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

/// Record of the backend's table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchemeRecord {
    /// Name of the table.
    pub backend: String,
    /// Source of the table's facts.
    pub source: String,
    /// The whole table, with switches applied.
    pub resolved: serde_json::Value,
}

/// Record of the calibration.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    /// Number of observed samples.
    pub n_samples: usize,
    /// Number of samples that were skipped because their files could not be read.
    pub n_skipped: usize,
    /// Range observer of the activations, with its options.
    pub activation_observer: String,
    /// Range observer of the weights, with its options.
    pub weight_observer: String,
    /// The file with given ranges of activations, and its format; absent if no ranges were given.
    pub ranges_from: Option<RangesFrom>,
    /// Description of the preprocessing of images; absent without images.
    pub preprocessing: Option<String>,
    /// Options of the preprocessing, as in a file for `--preprocess`; absent without images, and in sidecars of earlier
    /// versions.
    pub preprocessing_options: Option<serde_json::Value>,
    /// The inputs with their shapes.
    pub inputs: Vec<InputRecord>,
}

/// Record of tuned weights and biases.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuningRecord {
    /// Number of samples that tuning learned from.
    pub n_samples: usize,
    /// Figures of the network before tuning and with all accepted methods, on held-out samples; absent in sidecars of
    /// earlier versions.
    pub judged: Option<Judged>,
    /// Number of weights whose scales or integers differ from the observer's.
    pub n_weights: usize,
    /// Number of weights whose integers are not all the nearest ones.
    pub n_rounded: usize,
    /// Number of activation groups whose ranges differ from the observer's.
    pub n_ranges: usize,
    /// Biases in the form of earlier versions of mqq; never written.
    #[serde(default, skip_serializing)]
    pub biases: Vec<NewBias>,
}

/// A file with given ranges.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RangesFrom {
    /// File name without folders.
    pub file: String,
    /// Format of the file, as `docs/formats.md` names it.
    pub format: String,
}

/// An input of the model.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputRecord {
    /// ONNX name.
    pub name: String,
    /// Shape during calibration; the shape of the largest sample if shapes differ.
    pub shape: Vec<usize>,
    /// Range of the input's shapes over the samples; absent if all samples have one shape.
    pub shapes: Option<ShapeRange>,
}

/// One value, or a list along an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected one value or a list of values")]
pub enum OneOrMany<T> {
    /// One value for the whole tensor.
    One(T),
    /// One value per slice of the axis.
    Many(Vec<T>),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> OneOrMany<T> {
        OneOrMany::Many(Vec::new())
    }
}

impl<T> OneOrMany<T> {
    /// Returns the values; a single one without an axis.
    pub fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(value) => std::slice::from_ref(value),
            OneOrMany::Many(values) => values,
        }
    }
}

/// Quantization parameters of one tensor. A real value is `y_scale * (q - y_zero_point)`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Encoding {
    /// ONNX name in the prepared model.
    pub name: String,
    /// Name of the stored integer type.
    pub output_dtype: String,
    /// Scale, in real units per step.
    pub y_scale: OneOrMany<f32>,
    /// Zero point: the integer that stands for 0.
    pub y_zero_point: OneOrMany<i32>,
    /// Axis of the scales.
    pub axis: Option<usize>,
    /// Values per scale along the axis, for scales per block.
    pub block_size: Option<usize>,
    /// Bits of the grid.
    pub bits: u8,
    /// Lowest and highest integer of the grid.
    pub q_range: [i32; 2],
    /// Whether the integer type is used symmetrically about 0.
    pub symmetric: bool,
    /// Dimensions of the tensor, if they are known.
    pub shape: Option<Vec<usize>>,
    /// The range inside which values are not clipped.
    pub range: Option<[f64; 2]>,
    /// Lowest and highest finite value that was observed.
    pub observed: Option<[f32; 2]>,
    /// Name of the range observer.
    pub observer: Option<String>,
    /// Difference of each integer from the nearest one, for learned rounding: zigzag in LEB128, compressed by zlib, in
    /// Base64.
    pub rounding: Option<String>,
    /// Histogram of the values, if they were counted.
    pub histogram: Option<HistogramRecord>,
    /// Number of NaN and infinite values that were observed.
    pub n_non_finite: Option<u64>,
    /// Number of observed values of an attention mask. They saturate.
    pub n_masked: Option<u64>,
    /// Other tensors with the same quantization parameters.
    pub shared_with: Option<Vec<String>>,
    /// The Clip or Relu that was removed because the range clips the same values.
    pub removed_node: Option<String>,
    /// Whether the network's output of this name is quantized, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_output: bool,
    /// Nodes that read the quantized tensor.
    pub consumers: Vec<String>,
    /// The placement rule that quantizes the tensor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The reason for the quantization, in words.
    pub reason: String,
}

/// The histogram of a tensor's values.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HistogramRecord {
    /// Shares of the values in intervals of the same width, from the lowest to the highest observed value.
    pub shares: Vec<f32>,
    /// Ranges that range observers would choose for the tensor alone, by the observers' spelling; empty if they were
    /// not determined.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<String, [f64; 2]>,
}

/// A node that stays float.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloatNodeRecord {
    /// Name of the node.
    pub node: String,
    /// Operator of the node.
    pub op_type: String,
    /// The quantized node that computes this node as well; absent for a node that runs in float.
    pub fused_into: Option<String>,
    /// The placement rule that left the node float; empty if no rule did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The reason, in words.
    pub reason: String,
}

/// The prepared graph, without attributes and data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GraphRecord {
    /// Names of the graph's inputs.
    pub inputs: Vec<String>,
    /// Names of the graph's outputs.
    pub outputs: Vec<String>,
    /// Nodes of the graph, in order.
    pub nodes: Vec<NodeRecord>,
}

/// A node of the graph.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Name of the node; its first output if it has no name.
    pub name: String,
    /// Operator of the node.
    pub op_type: String,
    /// Names of the input tensors; empty for omitted inputs.
    pub inputs: Vec<String>,
    /// Names of the output tensors.
    pub outputs: Vec<String>,
    /// Attribute `group` of a convolution, if it is not 1.
    pub group: Option<i64>,
}

impl Sidecar {
    /// Returns the file's text, with a final newline.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}
