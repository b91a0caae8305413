//! Fills the sidecar from the outcome of a run.

use super::packed::pack;
use super::schema::{
    CalibrationRecord, Encoding, FloatNodeRecord, GraphRecord, HistogramRecord, ModelRecord, NodeRecord, OneOrMany,
    Producer, SCHEMA_VERSION, SchemeRecord, Sidecar, TuningRecord,
};
use crate::metrics::OutputGroups;
use crate::mixed::{LayerSensitivity, Mixed};
use crate::onnx::edit::ModelEdit;
use crate::onnx::node::{attribute, node_name};
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::value_info::ValueInfos;
use crate::place::{FloatCause, Placement};
use crate::plan::{PlannedActivation, PlannedBias, PlannedWeight, QuantPlan};
use crate::quant::Symmetry;
use crate::scheme::{QType, Scheme};
use crate::tune::{EvaluatedTask, MethodOutcome, TensorErrors, Tuned};
use anyhow::Result;
use rayon::prelude::*;

/// The outcome of a run.
pub struct Record<'a> {
    /// The prepared graph, before rewriting.
    pub graph: &'a GraphProto,
    /// Types and shapes of the graph's tensors.
    pub value_info: &'a ValueInfos,
    /// The backend's table, with switches applied.
    pub scheme: &'a Scheme,
    /// Quantizers and float nodes of the graph.
    pub placement: &'a Placement,
    /// Parameters of all quantizers.
    pub plan: &'a QuantPlan,
    /// Histograms of the plan's activations; `None` if their values were not counted.
    pub histograms: Vec<Option<HistogramRecord>>,
    /// Record of the float model.
    pub model: ModelRecord,
    /// Record of the calibration.
    pub calibration: CalibrationRecord,
    /// Outcomes of the methods that were tried.
    pub methods: &'a [MethodOutcome],
    /// The network's task, if it is known.
    pub task: Option<&'a EvaluatedTask>,
    /// Channels of the outputs, if something was evaluated.
    pub outputs: &'a [OutputGroups],
    /// Edits of the prepared float model.
    pub edits: &'a [ModelEdit],
    /// Warnings for the user.
    pub warnings: &'a [String],
    /// Result of mixed precision.
    pub mixed_precision: Option<&'a Mixed>,
    /// Result of tuning layers.
    pub tuned: Option<&'a Tuned>,
    /// Error of each tensor, if it was measured.
    pub tensor_errors: Option<&'a TensorErrors>,
    /// Cost of each layer's own precision, highest first; empty if it was not asked for.
    pub sensitivity: &'a [LayerSensitivity],
}

impl Record<'_> {
    /// Returns the sidecar.
    ///
    /// # Errors
    /// If the graph lacks a weight of the plan.
    pub fn sidecar(self) -> Result<Sidecar> {
        let plan = self.plan;
        let activations = plan.activations.iter().zip(&self.histograms);
        let activations = activations.map(|(planned, histogram)| self.activation(planned, histogram.clone()));
        let weights: Vec<Result<Encoding>> = plan.weights.par_iter().map(|planned| self.weight(planned)).collect();
        let biases = plan.biases.iter().map(|planned| Ok(self.bias(planned)));
        Ok(Sidecar {
            schema_version: SCHEMA_VERSION.to_string(),
            producer: Producer { name: "mqq".into(), version: env!("CARGO_PKG_VERSION").into() },
            activation_encodings: activations.collect(),
            param_encodings: weights.into_iter().chain(biases).collect::<Result<_>>()?,
            float_nodes: self.float_nodes(),
            graph: graph_record(self.graph),
            warnings: self.warnings.to_vec(),
            scheme: SchemeRecord {
                backend: self.scheme.name.clone(),
                source: self.scheme.source.clone(),
                resolved: serde_json::to_value(self.scheme).unwrap_or_default(),
            },
            model: self.model,
            quantized: None,
            calibration: self.calibration,
            methods: self.methods.to_vec(),
            task: self.task.cloned(),
            outputs: self.outputs.to_vec(),
            edits: self.edits.to_vec(),
            equalization: None,
            mixed_precision: self.mixed_precision.cloned(),
            tuning: self.tuned.map(tuning),
            tensor_errors: self.tensor_errors.cloned(),
            sensitivity: self.sensitivity.to_vec(),
        })
    }

    fn names(&self, nodes: impl Iterator<Item = usize>) -> Vec<String> {
        nodes.map(|node_idx| node_name(&self.graph.node[node_idx]).to_string()).collect()
    }

    fn activation(&self, planned: &PlannedActivation, histogram: Option<HistogramRecord>) -> Encoding {
        let quantizer = &planned.quantizer;
        let others = self.plan.activations.iter().map(|other| &other.quantizer);
        let others = others.filter(|o| o.group == quantizer.group && o.tensor != quantizer.tensor);
        let others: Vec<String> = others.map(|other| other.tensor.clone()).collect();
        Encoding {
            y_scale: OneOrMany::One(planned.params.scale),
            y_zero_point: OneOrMany::One(planned.params.zero_point),
            shape: self.value_info.shape(&quantizer.tensor).map(<[usize]>::to_vec),
            range: Some([planned.range.min, planned.range.max]),
            observed: planned.observed.map(|(min, max)| [min, max]),
            observer: Some(planned.observer.to_string()),
            histogram,
            n_non_finite: (planned.n_non_finite > 0).then_some(planned.n_non_finite),
            n_masked: (planned.n_masked > 0).then_some(planned.n_masked),
            shared_with: (!others.is_empty()).then_some(others),
            removed_node: planned.removed_clip().map(|clip| node_name(&self.graph.node[clip.node]).to_string()),
            network_output: quantizer.network_output,
            consumers: self.names(quantizer.edges.iter().map(|edge| edge.0)),
            rule: quantizer.rule.to_string(),
            reason: quantizer.reason.clone(),
            ..plain(&quantizer.tensor, Some(&planned.qtype))
        }
    }

    fn weight(&self, planned: &PlannedWeight) -> Result<Encoding> {
        let quantizer = &planned.quantizer;
        let per_channel = quantizer.axis.is_some();
        let scales = planned.params.iter().map(|params| params.scale).collect();
        let zero_points = planned.params.iter().map(|params| params.zero_point).collect();
        let rounding = match planned.learned {
            true => Some(pack(&planned.differences(self.graph)?)?),
            false => None,
        };
        Ok(Encoding {
            y_scale: one_or_many(scales, per_channel),
            y_zero_point: one_or_many(zero_points, per_channel),
            axis: quantizer.axis,
            block_size: quantizer.block,
            shape: Some(planned.shape.clone()),
            observed: Some([planned.observed.0, planned.observed.1]),
            observer: Some(planned.observer.to_string()),
            rounding,
            consumers: self.names(quantizer.edges.iter().map(|edge| edge.0)),
            reason: match planned.negligible.len() {
                0 => "weight".to_string(),
                n => format!("weight; channels that are zero or nearly zero: {n}"),
            },
            ..plain(&quantizer.tensor, Some(&planned.qtype))
        })
    }

    fn bias(&self, planned: &PlannedBias) -> Encoding {
        let quantizer = &planned.quantizer;
        let per_channel = planned.scales.len() > 1;
        Encoding {
            y_scale: one_or_many(planned.scales.clone(), per_channel),
            y_zero_point: OneOrMany::One(planned.zero_point),
            axis: per_channel.then_some(0),
            shape: Some(planned.shape.clone()),
            consumers: self.names(std::iter::once(quantizer.edge.0)),
            reason: match planned.qtype {
                None => format!("bias; scale: scale of `{}` times scale of the weight", quantizer.input),
                Some(_) => "bias with its own scale".to_string(),
            },
            ..plain(&quantizer.tensor, planned.qtype.as_ref())
        }
    }

    /// Returns the float nodes of the placement, without removed nodes.
    fn float_nodes(&self) -> Vec<FloatNodeRecord> {
        let removed = self.plan.activations.iter().filter_map(|planned| planned.removed_clip());
        let removed: Vec<usize> = removed.map(|clip| clip.node).collect();
        let floats = self.placement.float_nodes.iter();
        let floats = floats.filter(|float| !removed.contains(&float.node)).map(|float| FloatNodeRecord {
            node: node_name(&self.graph.node[float.node]).to_string(),
            op_type: self.graph.node[float.node].op_type().to_string(),
            fused_into: match float.cause {
                FloatCause::Fused(into) => Some(node_name(&self.graph.node[into]).to_string()),
                FloatCause::Rule | FloatCause::NotListed | FloatCause::Alone => None,
            },
            rule: float.rule.to_string(),
            reason: float.reason.clone(),
        });
        floats.collect()
    }
}

fn one_or_many<T>(mut values: Vec<T>, per_channel: bool) -> OneOrMany<T> {
    match values.len() {
        1 if !per_channel => OneOrMany::One(values.remove(0)),
        _ => OneOrMany::Many(values),
    }
}

/// Returns an encoding with the fields that follow from the type; int32 for `None`. The other fields are empty.
fn plain(name: &str, qtype: Option<&QType>) -> Encoding {
    let grid = qtype.map(QType::grid);
    Encoding {
        name: name.to_string(),
        output_dtype: qtype.map_or("int32".into(), QType::dtype),
        bits: qtype.map_or(32, |qtype| qtype.bits),
        q_range: grid.map_or([i32::MIN, i32::MAX], |grid| [grid.q_min(), grid.q_max()]),
        symmetric: qtype.is_none_or(|qtype| qtype.symmetry == Symmetry::Symmetric),
        ..Encoding::default()
    }
}

fn tuning(tuned: &Tuned) -> TuningRecord {
    TuningRecord {
        n_samples: tuned.n_samples,
        judged: Some(tuned.judged.clone()),
        n_weights: tuned.n_weights,
        n_rounded: tuned.n_rounded,
        n_ranges: tuned.n_ranges,
        biases: Vec::new(),
    }
}

fn graph_record(graph: &GraphProto) -> GraphRecord {
    let is_constant = |name: &str| graph.initializer_named(name).is_some();
    let inputs = graph.input.iter().map(|value| value.name().to_string());
    let node_record = |node: &NodeProto| NodeRecord {
        name: node_name(node).to_string(),
        op_type: node.op_type().to_string(),
        inputs: node.input.clone(),
        outputs: node.output.clone(),
        group: attribute(node, "group").map(|attribute| attribute.i()).filter(|&group| group != 1),
    };
    GraphRecord {
        inputs: inputs.filter(|name| !is_constant(name)).collect(),
        outputs: graph.output.iter().map(|value| value.name().to_string()).collect(),
        nodes: graph.node.iter().map(node_record).collect(),
    }
}
