//! The records of tensors and nodes, from the quantized graph of a run.

use super::packed::pack;
use super::schema::{Encoding, FloatNodeRecord, GraphRecord, HistogramRecord, NodeRecord, OneOrMany};
use crate::onnx::node::{attribute, node_name};
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::value_info::ValueInfos;
use crate::place::{FloatCause, Placement};
use crate::plan::{PlannedActivation, PlannedBias, PlannedWeight, QuantPlan};
use crate::quant::Symmetry;
use crate::scheme::QType;
use anyhow::Result;
use rayon::prelude::*;

/// The quantized graph of a run, from which the records of its tensors and nodes are made.
pub struct Record<'a> {
    /// The prepared graph, before rewriting.
    pub graph: &'a GraphProto,
    /// Types and shapes of the graph's tensors.
    pub value_info: &'a ValueInfos,
    /// Quantizers and float nodes of the graph.
    pub placement: &'a Placement,
    /// Parameters of all quantizers.
    pub plan: &'a QuantPlan,
}

impl Record<'_> {
    /// Returns the parameters of the activations. `histograms` has one entry per activation of the plan; `None` if its
    /// values were not counted.
    pub fn activations(&self, histograms: Vec<Option<HistogramRecord>>) -> Vec<Encoding> {
        let activations = self.plan.activations.iter().zip(histograms);
        activations.map(|(planned, histogram)| self.activation(planned, histogram)).collect()
    }

    /// Returns the parameters of the weights, then those of the biases.
    ///
    /// # Errors
    /// If the graph lacks a weight of the plan.
    pub fn params(&self) -> Result<Vec<Encoding>> {
        let weights: Vec<Result<Encoding>> = self.plan.weights.par_iter().map(|planned| self.weight(planned)).collect();
        let biases = self.plan.biases.iter().map(|planned| Ok(self.bias(planned)));
        weights.into_iter().chain(biases).collect()
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
    pub fn float_nodes(&self) -> Vec<FloatNodeRecord> {
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

    /// Returns the graph without attributes and data.
    pub fn graph(&self) -> GraphRecord {
        let is_constant = |name: &str| self.graph.initializer_named(name).is_some();
        let inputs = self.graph.input.iter().map(|value| value.name().to_string());
        let node_record = |node: &NodeProto| NodeRecord {
            name: node_name(node).to_string(),
            op_type: node.op_type().to_string(),
            inputs: node.input.clone(),
            outputs: node.output.clone(),
            group: attribute(node, "group").map(|attribute| attribute.i()).filter(|&group| group != 1),
        };
        GraphRecord {
            inputs: inputs.filter(|name| !is_constant(name)).collect(),
            outputs: self.graph.output.iter().map(|value| value.name().to_string()).collect(),
            nodes: self.graph.node.iter().map(node_record).collect(),
        }
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
