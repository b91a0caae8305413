//! The layers that get precisions, and the size of their weights.

use crate::onnx::graph::{Edge, GraphIndex};
use crate::onnx::node::{self, PRODUCTS, node_name};
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::place::{Assigned, Placement};
use crate::plan::QuantPlan;
use crate::scheme::{Constraint, FLOAT, Precision, QType, Scheme};
use std::collections::{BTreeMap, BTreeSet};

/// A node that computes on quantized inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedLayer {
    /// Position in the graph.
    pub node: usize,
    /// Name of the node.
    pub name: String,
    /// Operator type.
    pub op_type: String,
    /// Number of values in the layer's constant weights.
    pub n_weights: usize,
    /// The type of the layer's weight; `None` where it has none.
    pub weight: Option<String>,
    /// The type of the activations that the layer reads.
    pub activation: Option<String>,
    /// Whether a neighboring tensor has prescribed quantization parameters.
    pub is_prescribed: bool,
}

/// Returns the quantized nodes of `placement` that compute. Operators that only move values are left out, because they
/// add no error.
pub fn layers(graph: &GraphProto, placement: &Placement, scheme: &Scheme) -> Vec<QuantizedLayer> {
    let index = GraphIndex::new(graph);
    let nodes = placement.quantized_nodes.iter().filter_map(|&i| Some((i, graph.node.get(i)?)));
    let layer = |(node_idx, node): (usize, &NodeProto)| {
        let constraint = scheme.ops.get(node.op_type()).and_then(|row| row.constraint);
        let reads = |edges: &[(usize, usize)]| edges.iter().any(|edge| edge.0 == node_idx);
        let weights = || placement.weights.iter().filter(|quantizer| reads(&quantizer.edges));
        let n_weights = match PRODUCTS.contains(&node.op_type()) {
            true => weights().filter_map(|quantizer| index.initializer(&quantizer.tensor)).map(n_values).sum(),
            false => 0,
        };
        let weight = weights().next().filter(|_| n_weights > 0).map(|quantizer| quantizer.qtype.clone());
        if weight.is_none() && constraint == Some(Constraint::SameAsInput) {
            return None;
        }
        let read = || placement.activations.iter().filter(|quantizer| reads(&quantizer.edges));
        let fixed = matches!(constraint, Some(Constraint::Fixed { .. }));
        Some(QuantizedLayer {
            node: node_idx,
            name: node_name(node).to_string(),
            op_type: node.op_type().to_string(),
            n_weights,
            weight,
            activation: read().next().map(|quantizer| quantizer.qtype.clone()),
            is_prescribed: fixed || read().any(|quantizer| quantizer.fixed.is_some()),
        })
    };
    nodes.filter_map(layer).collect()
}

fn n_values(tensor: &TensorProto) -> usize {
    tensor.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).product()
}

/// Returns the bits per value in the file.
fn stored_bits(qtype: &QType) -> u32 {
    u32::from(qtype.storage_bits.unwrap_or(qtype.bits))
}

impl QuantizedLayer {
    /// Returns the bits per value of the layer's weights in `precision`, or in the layer's own precision for `None`.
    pub fn weight_bits(&self, precision: Option<&str>, scheme: &Scheme) -> u32 {
        let types = precision.and_then(|name| scheme.mixed.get(name));
        if precision == Some(FLOAT) {
            return 32;
        }
        let name = types.and_then(|types| types.weight.as_ref()).or(self.weight.as_ref());
        name.and_then(|name| scheme.types.get(name)).map_or(32, stored_bits)
    }

    /// Whether the precision `name` is wider than the layer's own.
    pub fn is_promoted_by(&self, name: &str, scheme: &Scheme) -> bool {
        let Some(precision) = scheme.mixed.get(name) else { return false };
        if name == FLOAT {
            return true;
        }
        let bits =
            |name: &Option<String>| name.as_ref().and_then(|name| scheme.types.get(name)).map(|qtype| qtype.bits);
        let wider = |new: &Option<String>, own: &Option<String>| bits(new) > bits(own) && own.is_some();
        let Precision { activation, weight, .. } = precision;
        let activation = !self.is_prescribed && wider(activation, &self.activation);
        activation || wider(weight, &self.weight)
    }

    /// Gives the layer a precision of the table.
    pub fn assign(&self, name: &str, reason: &str, scheme: &Scheme, assigned: &mut Assigned) {
        self.clear(assigned);
        if name == FLOAT {
            assigned.float.insert(self.node, reason.to_string());
        }
        let Some(precision) = scheme.mixed.get(name) else { return };
        if let Some(qtype) = precision.activation.as_ref().filter(|_| !self.is_prescribed) {
            assigned.activations.insert(self.node, qtype.clone());
        }
        if let Some(qtype) = precision.weight.as_ref().filter(|_| self.weight.is_some()) {
            assigned.weights.insert(self.node, qtype.clone());
        }
    }

    /// Gives the layer back its own precision.
    pub fn clear(&self, assigned: &mut Assigned) {
        assigned.float.remove(&self.node);
        assigned.activations.remove(&self.node);
        assigned.weights.remove(&self.node);
    }
}

/// Constant weights of a model, and their size under a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WeightCost {
    weights: BTreeMap<String, ConstantWeight>,
}

#[derive(Debug, Clone, PartialEq)]
struct ConstantWeight {
    n_values: usize,
    uses: BTreeSet<Edge>,
}

impl WeightCost {
    /// Finds the float constants with two axes or more that convolutions and matrix products read.
    pub fn of(graph: &GraphProto) -> WeightCost {
        let index = GraphIndex::new(graph);
        let mut cost = WeightCost::default();
        let is_product = |node: &NodeProto| PRODUCTS.contains(&node.op_type()) && node::is_standard(node);
        for (node_idx, node) in graph.node.iter().enumerate().filter(|(_, node)| is_product(node)) {
            for (input_idx, name) in node.input.iter().enumerate().take(2) {
                let Some(tensor) = index.float_initializer(name) else { continue };
                if tensor.dims.len() >= 2 {
                    let new = || ConstantWeight { n_values: n_values(tensor), uses: BTreeSet::new() };
                    cost.weights.entry(name.clone()).or_insert_with(new).uses.insert((node_idx, input_idx));
                }
            }
        }
        cost
    }

    /// Returns the bytes of the weights under `plan`, without scales.
    pub fn bytes(&self, plan: &QuantPlan) -> usize {
        let mut bits = 0;
        for (tensor, ConstantWeight { n_values, uses }) in &self.weights {
            let mut float = uses.clone();
            for planned in plan.weights.iter().filter(|planned| planned.quantizer.tensor == *tensor) {
                bits += n_values * stored_bits(&planned.qtype) as usize;
                float.retain(|edge| !planned.quantizer.edges.contains(edge));
            }
            bits += if float.is_empty() { 0 } else { 32 * n_values };
        }
        bits.div_ceil(8)
    }

    /// Returns the mean bits per weight under `plan`.
    pub fn mean_bits(&self, plan: &QuantPlan) -> f64 {
        8.0 * self.bytes(plan) as f64 / self.n_weights().max(1) as f64
    }

    /// Returns the number of values in all weights.
    pub fn n_weights(&self) -> usize {
        self.weights.values().map(|weight| weight.n_values).sum()
    }
}
