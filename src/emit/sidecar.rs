//! The sidecar: every scale with the reason for it, as JSON. Its format is described in
//! `docs/sidecar.md`; names that AIMET's encodings 2.0 have are used where they mean the same.

use crate::decide::{PlannedActivation, PlannedBias, PlannedWeight, QuantPlan};
use crate::onnx::proto::GraphProto;
use crate::place::{Sites, node_name};
use crate::scheme::{QType, Scheme};
use serde::Serialize;

/// Version of the format; raised when a reader of an earlier one would go wrong.
pub const SCHEMA_VERSION: &str = "1.0";

/// The file.
#[derive(Debug, Clone, Serialize)]
pub struct Sidecar {
    schema_version: &'static str,
    producer: Producer,
    model: ModelFacts,
    scheme: SchemeFacts,
    calibration: CalibrationFacts,
    activation_encodings: Vec<Encoding>,
    param_encodings: Vec<Encoding>,
    float_nodes: Vec<FloatNode>,
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Producer {
    name: &'static str,
    version: &'static str,
}

/// What the sidecar says of the float model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelFacts {
    /// File name without folders.
    pub file: String,
    /// Of the file's bytes, in hexadecimal.
    pub sha256: String,
    /// Version of the default operator set before and after.
    pub opset: [i64; 2],
    /// What was changed before placement, a line each.
    pub prepared: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct SchemeFacts {
    backend: String,
    source: String,
    resolved: Scheme,
}

/// What the sidecar says of the calibration.
#[derive(Debug, Clone, Serialize)]
pub struct CalibrationFacts {
    /// Samples observed.
    pub n_samples: usize,
    /// Samples left out because their files could not be read.
    pub n_skipped: usize,
    /// Range finder of the activations, with its options.
    pub activation_observer: String,
    /// Range finder of the weights, with its options.
    pub weight_observer: String,
    /// How images became inputs; absent where there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preprocessing: Option<String>,
    /// Shape of each input.
    pub inputs: Vec<InputFacts>,
}

/// An input of the model.
#[derive(Debug, Clone, Serialize)]
pub struct InputFacts {
    /// ONNX name.
    pub name: String,
    /// Dimensions during calibration.
    pub shape: Vec<usize>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

fn one_or_many<T>(mut values: Vec<T>, per_channel: bool) -> OneOrMany<T> {
    match values.len() {
        1 if !per_channel => OneOrMany::One(values.remove(0)),
        _ => OneOrMany::Many(values),
    }
}

#[derive(Debug, Clone, Serialize)]
struct Encoding {
    name: String,
    output_dtype: String,
    y_scale: OneOrMany<f32>,
    y_zero_point: OneOrMany<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    axis: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bits: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observed: Option<[f32; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observer: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_non_finite: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_with: Option<Vec<String>>,
    /// The Clip or Relu that was removed because the grid has its effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_node: Option<String>,
    consumers: Vec<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    rule: &'static str,
    reason: String,
}

#[derive(Debug, Clone, Serialize)]
struct FloatNode {
    node: String,
    op_type: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    rule: &'static str,
    reason: String,
}

/// Gathers the file's contents. `graph` is the prepared one, before rewriting.
pub fn sidecar(
    graph: &GraphProto,
    scheme: &Scheme,
    sites: &Sites,
    plan: &QuantPlan,
    model: ModelFacts,
    calibration: CalibrationFacts,
) -> Sidecar {
    let consumers = |nodes: &mut dyn Iterator<Item = usize>| {
        nodes.map(|node_idx| node_name(&graph.node[node_idx]).to_string()).collect()
    };
    let activation = |planned: &PlannedActivation| Encoding {
        name: planned.site.tensor.clone(),
        output_dtype: planned.qtype.dtype(),
        y_scale: OneOrMany::One(planned.params.scale),
        y_zero_point: OneOrMany::One(planned.params.zero_point),
        axis: None,
        block_size: None,
        bits: Some(planned.qtype.bits),
        range: Some([planned.range.min, planned.range.max]),
        observed: planned.observed.map(|(min, max)| [min, max]),
        observer: Some(planned.observer),
        n_non_finite: (planned.n_non_finite > 0).then_some(planned.n_non_finite),
        shared_with: {
            let others = plan.activations.iter().filter(|other| {
                other.site.group == planned.site.group && other.site.tensor != planned.site.tensor
            });
            let others: Vec<String> = others.map(|other| other.site.tensor.clone()).collect();
            (!others.is_empty()).then_some(others)
        },
        removed_node: planned
            .removed_clip()
            .map(|clip| node_name(&graph.node[clip.node]).to_string()),
        consumers: consumers(&mut planned.site.edges.iter().map(|edge| edge.0)),
        rule: planned.site.rule,
        reason: planned.site.reason.clone(),
    };
    let weight = |planned: &PlannedWeight| Encoding {
        name: planned.site.tensor.clone(),
        output_dtype: planned.qtype.dtype(),
        y_scale: one_or_many(
            planned.params.iter().map(|params| params.scale).collect(),
            planned.site.axis.is_some(),
        ),
        y_zero_point: one_or_many(
            planned.params.iter().map(|params| params.zero_point).collect(),
            planned.site.axis.is_some(),
        ),
        axis: planned.site.axis,
        block_size: planned.site.block,
        bits: Some(planned.qtype.bits),
        range: None,
        observed: Some([planned.observed.0, planned.observed.1]),
        observer: Some(planned.observer),
        n_non_finite: None,
        shared_with: None,
        removed_node: None,
        consumers: consumers(&mut planned.site.edges.iter().map(|edge| edge.0)),
        rule: "",
        reason: match planned.dead.len() {
            0 => "weight".to_string(),
            n => format!("weight; {n} channels are all zero"),
        },
    };
    let bias = |planned: &PlannedBias| Encoding {
        name: planned.site.tensor.clone(),
        output_dtype: planned.qtype.as_ref().map_or("int32".into(), QType::dtype),
        y_scale: one_or_many(planned.scales.clone(), planned.scales.len() > 1),
        y_zero_point: OneOrMany::One(planned.zero_point),
        axis: (planned.scales.len() > 1).then_some(0),
        block_size: None,
        bits: Some(planned.qtype.as_ref().map_or(32, |qtype| qtype.bits)),
        range: None,
        observed: None,
        observer: None,
        n_non_finite: None,
        shared_with: None,
        removed_node: None,
        consumers: consumers(&mut std::iter::once(planned.site.edge.0)),
        rule: "",
        reason: match planned.qtype {
            None => format!("bias; scale of `{}` times scale of the weight", planned.site.input),
            Some(_) => "bias on a grid of its own".to_string(),
        },
    };
    let removed = plan.activations.iter().filter_map(|planned| planned.removed_clip());
    let removed: Vec<usize> = removed.map(|clip| clip.node).collect();
    Sidecar {
        schema_version: SCHEMA_VERSION,
        producer: Producer { name: "mqq", version: env!("CARGO_PKG_VERSION") },
        model,
        scheme: SchemeFacts {
            backend: scheme.name.clone(),
            source: scheme.source.clone(),
            resolved: scheme.clone(),
        },
        calibration,
        activation_encodings: plan.activations.iter().map(activation).collect(),
        param_encodings: plan
            .weights
            .iter()
            .map(weight)
            .chain(plan.biases.iter().map(bias))
            .collect(),
        float_nodes: sites
            .float_nodes
            .iter()
            .filter(|float| !removed.contains(&float.node))
            .map(|float| FloatNode {
                node: node_name(&graph.node[float.node]).to_string(),
                op_type: graph.node[float.node].op_type().to_string(),
                rule: float.rule,
                reason: float.reason.clone(),
            })
            .collect(),
        warnings: plan.warnings.clone(),
    }
}

impl Sidecar {
    /// Lines for people: what was changed, and every node that stays float with its reason.
    pub fn details(&self) -> Vec<String> {
        let changes = self.model.prepared.iter().map(|change| format!("prepared: {change}"));
        let floats = self
            .float_nodes
            .iter()
            .map(|float| format!("float: {} `{}`: {}", float.op_type, float.node, float.reason));
        changes.chain(floats).collect()
    }

    /// The file's text, with a final newline.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}
