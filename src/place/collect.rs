//! Turns the marks into the placement: activations, weights, biases, and the nodes that stay float.

use super::draft::Mark;
use super::gates::SKIP_FUSED_GATES;
use super::outputs::QUANTIZE_OUTPUTS;
use super::trace::{BINARY, POINTWISE};
use super::{
    ActivationQuantizer, BiasQuantizer, Draft, Edge, FloatCause, FloatNode, NOT_SELECTED, Placement, WeightQuantizer,
    node_name, softmax,
};
use crate::onnx::node;
use crate::onnx::proto::NodeProto;
use crate::scheme::{Axis, BiasRow, Constraint, FixedGrid, Granularity, OpRow, WeightStorage};
use std::collections::{BTreeMap, BTreeSet};

impl<'a> Draft<'a> {
    /// Builds the placement from the marks.
    pub fn finish(self) -> Placement {
        let mut placement = Placement::default();
        self.collect_activations(&mut placement);
        self.collect_weights(&mut placement);
        let roles = softmax::roles(self.graph, &self.index);
        let role_of = |tensor: &String| roles.get(tensor.as_str()).copied();
        placement.activations.iter_mut().for_each(|quantizer| quantizer.softmax = role_of(&quantizer.tensor));
        placement.weights.iter_mut().for_each(|quantizer| quantizer.softmax = role_of(&quantizer.tensor));
        self.collect_float_nodes(&mut placement);
        placement.is_transformer = !self.linear.is_empty() && self.is_transformer();
        placement.tails = self.detector_tails();
        placement.joins = self.joins();
        placement
    }

    fn collect_activations(&self, placement: &mut Placement) {
        let inputs = self.graph.input.iter().map(|value| value.name());
        let outputs = self.graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
        let of_outputs = self.values_of_outputs();
        // Tensors of a group share quantization parameters only if they have one type.
        let mut groups: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for tensor in inputs.chain(outputs).filter(|name| !name.is_empty()) {
            let uses = self.index.consumers(tensor);
            // Tensors that a subgraph captures stay float: those uses cannot be rewired.
            let rewirable =
                uses.iter().copied().filter(|edge| edge.1 != usize::MAX && !self.float_edges.contains(edge));
            let output = self.network_outputs.get(tensor);
            let whole = self.quantized_tensors.get(tensor);
            let edges: Vec<Edge> = match whole {
                Some(_) => rewirable.collect(),
                None => rewirable.filter(|edge| self.edges.contains_key(edge)).collect(),
            };
            let whole = whole.filter(|_| !edges.is_empty());
            let mark = edges.iter().find_map(|edge| self.edges.get(edge)).or(whole).or(output);
            let Some(mark) = mark else { continue };
            // The float tensor must have no reader left: neither a use nor an output of the network.
            let only_quantized = edges.len() == uses.len() && (output.is_some() || !self.index.is_output(tensor));
            let clip = self.clips.get(tensor).filter(|_| only_quantized).cloned();
            let n_groups = groups.len();
            let qtype = self.qtype_of(tensor, &edges);
            let group = (self.group_of(tensor), qtype.clone());
            let mut reason = mark.reason.clone();
            if self.narrow_tensors.contains(tensor) && self.joins_apart() {
                reason.push_str("; with its own scale, because the tensors joined with it have much wider ranges");
            }
            let is_of_linear = edges.iter().any(|(reader, _)| self.linear.contains(reader));
            placement.activations.push(ActivationQuantizer {
                tensor: tensor.to_string(),
                qtype,
                edges,
                network_output: output.is_some(),
                holds_all: of_outputs.contains(tensor) || self.scheme.weight_storage == WeightStorage::Dynamic,
                linear: is_of_linear,
                clip,
                group: *groups.entry(group).or_insert(n_groups),
                fixed: self.fixed_output(tensor).map(|(_, fixed)| fixed),
                softmax: None,
                rule: mark.rule,
                reason,
            });
        }
    }

    /// Type and parameters that the producer's row prescribes.
    pub(super) fn fixed_output(&self, tensor: &str) -> Option<(&'a str, FixedGrid)> {
        let row = self.table_row(self.index.producer_idx(tensor)?)?;
        match (row.constraint, &row.output) {
            (Some(Constraint::Fixed { fixed_output: fixed }), Some(output)) => Some((output, fixed)),
            _ => None,
        }
    }

    /// The type of a tensor, by priority: the prescribed type, the type assigned to its group, the type that its first
    /// reader with a row asks for, the type of its producer.
    fn qtype_of(&self, tensor: &str, edges: &[Edge]) -> String {
        if let Some((qtype, _)) = self.fixed_output(tensor) {
            return qtype.to_string();
        }
        if let Some(qtype) = self.group_types.get(self.group_of(tensor)) {
            return qtype.clone();
        }
        let row = |node_idx: usize| self.table_row(node_idx);
        let of_reader =
            edges.iter().find_map(|edge| self.input_types.get(edge).cloned().or(row(edge.0)?.input.clone()));
        let of_producer = || row(self.index.producer_idx(tensor)?)?.output.clone();
        let any = || self.scheme.ops.values().find_map(|row| row.input.clone());
        of_reader.or_else(of_producer).or_else(any).unwrap_or_default()
    }

    fn collect_weights(&self, placement: &mut Placement) {
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            if !self.is_quantized(node_idx) || self.is_copy(node_idx) {
                continue;
            }
            placement.quantized_nodes.push(node_idx);
            let Some(row) = self.row(node_idx) else { continue };
            let weight_input = self.weight_input(node_idx);
            if let Some(qtype) = &row.constant {
                for (input_idx, tensor) in node.input.iter().enumerate() {
                    let bias = row.weight.is_some() && input_idx >= 2;
                    let is_float = self.index.float_initializer(tensor).is_some();
                    if is_float && weight_input != Some(input_idx) && !bias {
                        let edge = (node_idx, input_idx);
                        self.add_weight(
                            placement,
                            tensor,
                            qtype,
                            None,
                            self.shared_with_output(placement, row, node),
                            edge,
                        );
                    }
                }
            }
            let (Some(weight_row), Some(input_idx)) = (&row.weight, weight_input) else { continue };
            let tensor = &node.input[input_idx];
            let rank = self.index.initializer(tensor).map_or(0, |t| t.dims.len());
            let qtype = self.weight_types.get(&node_idx).unwrap_or(&weight_row.qtype);
            let granularity = self.scheme.types[qtype].granularity;
            let axis = match granularity {
                Granularity::PerTensor => None,
                Granularity::PerChannel => Some(node::output_axis(node, input_idx)),
                Granularity::PerBlock => Some(node::reduction_axis(node, input_idx)),
            };
            let axis = axis.and_then(|default| match weight_row.axis {
                Axis::Columns if granularity == Granularity::PerChannel => node::columns(input_idx, rank),
                Axis::Number(number) => Some(node::axis_position(number, rank)),
                Axis::Columns | Axis::Output => Some(node::axis_position(default, rank)),
            });
            let weight = self.add_weight(placement, tensor, qtype, axis, None, (node_idx, input_idx));
            placement.biases.extend(match &row.bias {
                BiasRow::Int32 if input_idx == 1 => self.bias_of(node_idx, weight, None),
                BiasRow::Type { qtype } => self.bias_of(node_idx, weight, Some(qtype)),
                BiasRow::Int32 | BiasRow::Float => None,
            });
        }
    }

    /// Adds a use of a constant. Returns the constant's index in [`Placement::weights`].
    fn add_weight(
        &self,
        placement: &mut Placement,
        tensor: &str,
        qtype: &str,
        axis: Option<usize>,
        shares_with: Option<&str>,
        edge: Edge,
    ) -> usize {
        let same = |quantizer: &WeightQuantizer| {
            let WeightQuantizer { tensor: name, axis: other, shares_with: shared, .. } = quantizer;
            name == tensor && *other == axis && quantizer.qtype == qtype && shared.as_deref() == shares_with
        };
        let weight = placement.weights.iter().position(same).unwrap_or_else(|| {
            placement.weights.push(WeightQuantizer {
                tensor: tensor.to_string(),
                qtype: qtype.to_string(),
                axis,
                block: self.scheme.types[qtype].block_size,
                shares_with: shares_with.map(str::to_string),
                edges: Vec::new(),
                softmax: None,
            });
            placement.weights.len() - 1
        });
        placement.weights[weight].edges.push(edge);
        weight
    }

    /// The quantized output of a node whose inputs and output share parameters.
    fn shared_with_output<'n>(&self, placement: &Placement, row: &OpRow, node: &'n NodeProto) -> Option<&'n str> {
        let shares = matches!(row.constraint, Some(Constraint::SameAsInput | Constraint::SameAsOutput));
        let output = node.output.first().filter(|_| shares)?;
        placement.activations.iter().any(|quantizer| quantizer.tensor == *output).then_some(output)
    }

    /// Returns the bias of a node, with its own type if `qtype` names one. An int32 bias must be a vector, and the
    /// node's input must be quantized.
    fn bias_of(&self, node_idx: usize, weight: usize, qtype: Option<&String>) -> Option<BiasQuantizer> {
        let node = &self.graph.node[node_idx];
        let tensor = node.input.get(2)?;
        let is_vector = self.index.float_initializer(tensor)?.dims.len() == 1;
        let has_scale = || is_vector && !node::is_scaled(node) && self.is_quantized_edge((node_idx, 0));
        (qtype.is_some() || has_scale()).then(|| BiasQuantizer {
            tensor: tensor.clone(),
            qtype: qtype.cloned(),
            input: node.input[0].clone(),
            weight,
            edge: (node_idx, 2),
        })
    }

    fn collect_float_nodes(&self, placement: &mut Placement) {
        let quantized: BTreeSet<usize> = placement.quantized_nodes.iter().copied().collect();
        for (node_idx, node) in self.graph.node.iter().enumerate() {
            let float = node.output.iter().any(|name| self.value_info.is_float(name));
            if quantized.contains(&node_idx) || !float || self.is_copy(node_idx) {
                continue;
            }
            let float = match self.float.get(&node_idx) {
                Some(Mark { rule, reason }) => {
                    let is_gate = *rule == SKIP_FUSED_GATES;
                    let layer = if is_gate { self.fuses_into(node_idx, true) } else { None };
                    let is_passed = reason == NOT_SELECTED && POINTWISE.contains(&node.op_type());
                    let cause = match self.why_untouched(node_idx) {
                        fused @ FloatCause::Fused(_) if is_passed => fused,
                        _ => layer.map_or(FloatCause::Rule, FloatCause::Fused),
                    };
                    FloatNode { node: node_idx, cause, rule, reason: reason.clone() }
                }
                None => {
                    let cause = self.why_untouched(node_idx);
                    let reason = match cause {
                        FloatCause::Fused(into) => {
                            format!("fused into `{}`", node_name(&self.graph.node[into]))
                        }
                        FloatCause::NotListed => {
                            format!("the backend's table has no row for {}", node.op_type())
                        }
                        _ => "no placement rule quantizes its inputs".to_string(),
                    };
                    FloatNode { node: node_idx, cause, rule: "", reason }
                }
            };
            placement.float_nodes.push(float);
        }
    }

    fn why_untouched(&self, node_idx: usize) -> FloatCause {
        let node = &self.graph.node[node_idx];
        let fuses_into = self.fuses_into(node_idx, POINTWISE.contains(&node.op_type()));
        // A table that quantizes the output of a layer behind certain operators quantizes it in front of all others.
        let mut outputs = self.scheme.placement.iter().filter(|call| call.rule == QUANTIZE_OUTPUTS);
        let is_fused = outputs.all(|call| call.lists("past", node.op_type()));
        match self.before_quantizer.get(&node_idx).copied().or(fuses_into.filter(|_| is_fused)) {
            Some(layer) => FloatCause::Fused(layer),
            None if !self.scheme.ops.contains_key(node.op_type()) => FloatCause::NotListed,
            None => FloatCause::Alone,
        }
    }

    /// Returns the layer that the node is fused to; for a part of an activation function also an elementwise operator.
    /// A layer with only its weight quantized computes in float: nothing is fused to it.
    fn fuses_into(&self, node_idx: usize, is_activation: bool) -> Option<usize> {
        let backbone = self.backbone(self.graph.node[node_idx].output.first()?);
        let layer = backbone.filter(|backbone| !self.weights_alone.contains(backbone));
        layer.or_else(|| if is_activation { self.elementwise_before(node_idx) } else { None })
    }

    /// Returns the quantized Add, Mul or other [`BINARY`] operator whose result the node reads, directly or through
    /// other activation functions.
    fn elementwise_before(&self, node_idx: usize) -> Option<usize> {
        let before = |node_idx: &usize| {
            let mut inputs = self.graph.node[*node_idx].input.iter().filter(|name| !self.is_constant(name));
            self.index.producer_idx(inputs.next()?)
        };
        let passes = |&node_idx: &usize| {
            let op = self.graph.node[node_idx].op_type();
            !self.is_quantized(node_idx) && (POINTWISE.contains(&op) || op == "Mul")
        };
        let first = std::iter::successors(before(&node_idx), before).find(|node_idx| !passes(node_idx))?;
        Some(first).filter(|&it| self.is_quantized(it) && BINARY.contains(&self.graph.node[it].op_type()))
    }
}
