//! The sidecar's contents from a finished plan.

use super::packed::pack;
use super::sidecar::{
    CalibrationFacts, Encoding, EqualizationFacts, FloatNode, GraphFacts, ModelFacts, NodeFacts,
    OneOrMany, Producer, SCHEMA_VERSION, SchemeFacts, Sidecar, TuningFacts,
};
use crate::mixed::Mixed;
use crate::onnx::node::attribute;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::value_info::ValueInfos;
use crate::place::Placement;
use crate::plan::{PlannedActivation, PlannedBias, PlannedWeight, QuantPlan};
use crate::scheme::{QType, Scheme, SymmetryName};
use anyhow::Result;

fn one_or_many<T>(mut values: Vec<T>, per_channel: bool) -> OneOrMany<T> {
    match values.len() {
        1 if !per_channel => OneOrMany::One(values.remove(0)),
        _ => OneOrMany::Many(values),
    }
}

fn q_range(qtype: &QType) -> [i32; 2] {
    let grid = qtype.grid();
    [grid.q_min(), grid.q_max()]
}

fn is_symmetric(qtype: &QType) -> bool {
    qtype.symmetry == SymmetryName::Symmetric
}

/// Gathers the file's contents. `graph` is the prepared one, before rewriting; `value_info` are its.
///
/// # Errors
/// If the graph lacks a weight of the plan.
#[allow(clippy::too_many_arguments)]
pub fn sidecar(
    graph: &GraphProto,
    value_info: &ValueInfos,
    scheme: &Scheme,
    placement: &Placement,
    plan: &QuantPlan,
    model: ModelFacts,
    calibration: CalibrationFacts,
    equalization: Option<EqualizationFacts>,
    mixed_precision: Option<Mixed>,
    tuning: Option<TuningFacts>,
) -> Result<Sidecar> {
    let consumers = |nodes: &mut dyn Iterator<Item = usize>| {
        nodes.map(|node_idx| node_name(&graph.node[node_idx]).to_string()).collect()
    };
    let shape = |tensor: &str| value_info.shape(tensor).map(<[usize]>::to_vec);
    let activation = |planned: &PlannedActivation| Encoding {
        name: planned.quantizer.tensor.clone(),
        output_dtype: planned.qtype.dtype(),
        y_scale: OneOrMany::One(planned.params.scale),
        y_zero_point: OneOrMany::One(planned.params.zero_point),
        axis: None,
        block_size: None,
        bits: planned.qtype.bits,
        q_range: q_range(&planned.qtype),
        symmetric: is_symmetric(&planned.qtype),
        shape: shape(&planned.quantizer.tensor),
        range: Some([planned.range.min, planned.range.max]),
        observed: planned.observed.map(|(min, max)| [min, max]),
        observer: Some(planned.observer.to_string()),
        rounding: None,
        n_non_finite: (planned.n_non_finite > 0).then_some(planned.n_non_finite),
        n_masked: (planned.n_masked > 0).then_some(planned.n_masked),
        shared_with: {
            let others = plan.activations.iter().filter(|other| {
                other.quantizer.group == planned.quantizer.group
                    && other.quantizer.tensor != planned.quantizer.tensor
            });
            let others: Vec<String> = others.map(|other| other.quantizer.tensor.clone()).collect();
            (!others.is_empty()).then_some(others)
        },
        removed_node: planned
            .removed_clip()
            .map(|clip| node_name(&graph.node[clip.node]).to_string()),
        network_output: planned.quantizer.network_output,
        consumers: consumers(&mut planned.quantizer.edges.iter().map(|edge| edge.0)),
        rule: planned.quantizer.rule.to_string(),
        reason: planned.quantizer.reason.clone(),
    };
    let rounding = |planned: &PlannedWeight| match planned.learned {
        true => planned.differences(graph).and_then(|all| pack(&all)).map(Some),
        false => Ok(None),
    };
    let weight = |planned: &PlannedWeight| -> Result<Encoding> {
        Ok(Encoding {
            name: planned.quantizer.tensor.clone(),
            output_dtype: planned.qtype.dtype(),
            y_scale: one_or_many(
                planned.params.iter().map(|params| params.scale).collect(),
                planned.quantizer.axis.is_some(),
            ),
            y_zero_point: one_or_many(
                planned.params.iter().map(|params| params.zero_point).collect(),
                planned.quantizer.axis.is_some(),
            ),
            axis: planned.quantizer.axis,
            block_size: planned.quantizer.block,
            bits: planned.qtype.bits,
            q_range: q_range(&planned.qtype),
            symmetric: is_symmetric(&planned.qtype),
            shape: Some(planned.shape.clone()),
            range: None,
            observed: Some([planned.observed.0, planned.observed.1]),
            observer: Some(planned.observer.to_string()),
            rounding: rounding(planned)?,
            n_non_finite: None,
            n_masked: None,
            shared_with: None,
            removed_node: None,
            network_output: false,
            consumers: consumers(&mut planned.quantizer.edges.iter().map(|edge| edge.0)),
            rule: String::new(),
            reason: match planned.dead.len() {
                0 => "weight".to_string(),
                n => format!("weight; {n} channels are zero, or nearly"),
            },
        })
    };
    let bias = |planned: &PlannedBias| Encoding {
        name: planned.quantizer.tensor.clone(),
        output_dtype: planned.qtype.as_ref().map_or("int32".into(), QType::dtype),
        y_scale: one_or_many(planned.scales.clone(), planned.scales.len() > 1),
        y_zero_point: OneOrMany::One(planned.zero_point),
        axis: (planned.scales.len() > 1).then_some(0),
        block_size: None,
        bits: planned.qtype.as_ref().map_or(32, |qtype| qtype.bits),
        q_range: planned.qtype.as_ref().map_or([i32::MIN, i32::MAX], q_range),
        symmetric: planned.qtype.as_ref().is_none_or(is_symmetric),
        shape: Some(planned.shape.clone()),
        range: None,
        observed: None,
        observer: None,
        rounding: None,
        n_non_finite: None,
        n_masked: None,
        shared_with: None,
        removed_node: None,
        network_output: false,
        consumers: consumers(&mut std::iter::once(planned.quantizer.edge.0)),
        rule: String::new(),
        reason: match planned.qtype {
            None => {
                format!("bias; scale of `{}` times scale of the weight", planned.quantizer.input)
            }
            Some(_) => "bias on a grid of its own".to_string(),
        },
    };
    let removed = plan.activations.iter().filter_map(|planned| planned.removed_clip());
    let removed: Vec<usize> = removed.map(|clip| clip.node).collect();
    let weights = plan.weights.iter().map(weight).collect::<Result<Vec<Encoding>>>()?;
    Ok(Sidecar {
        schema_version: SCHEMA_VERSION.to_string(),
        producer: Producer { name: "mqq".into(), version: env!("CARGO_PKG_VERSION").into() },
        model,
        scheme: SchemeFacts {
            backend: scheme.name.clone(),
            source: scheme.source.clone(),
            resolved: serde_json::to_value(scheme).unwrap_or_default(),
        },
        calibration,
        equalization,
        mixed_precision,
        tuning,
        activation_encodings: plan.activations.iter().map(activation).collect(),
        param_encodings: weights.into_iter().chain(plan.biases.iter().map(bias)).collect(),
        float_nodes: placement
            .float_nodes
            .iter()
            .filter(|float| !removed.contains(&float.node))
            .map(|float| FloatNode {
                node: node_name(&graph.node[float.node]).to_string(),
                op_type: graph.node[float.node].op_type().to_string(),
                rule: float.rule.to_string(),
                reason: float.reason.clone(),
            })
            .collect(),
        graph: graph_facts(graph),
        warnings: plan.warnings.clone(),
    })
}

fn graph_facts(graph: &GraphProto) -> GraphFacts {
    let is_constant = |name: &str| graph.initializer.iter().any(|tensor| tensor.name() == name);
    let inputs = graph.input.iter().map(|value| value.name().to_string());
    let node_facts = |node: &NodeProto| NodeFacts {
        name: node_name(node).to_string(),
        op_type: node.op_type().to_string(),
        inputs: node.input.clone(),
        outputs: node.output.clone(),
        group: attribute(node, "group").map(|attribute| attribute.i()).filter(|&group| group != 1),
    };
    GraphFacts {
        inputs: inputs.filter(|name| !is_constant(name)).collect(),
        outputs: graph.output.iter().map(|value| value.name().to_string()).collect(),
        nodes: graph.node.iter().map(node_facts).collect(),
    }
}
