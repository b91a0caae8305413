//! Finds the equalization groups of a graph.
//!
//! From the input of every layer with a constant weight, the search goes to the tensor's producer and other readers,
//! until every path ends at a constant that can absorb the channel scales. If one path ends without such a constant,
//! the whole group is skipped, with the reason.

mod operands;

use super::channels::{Channels, FlowDirection, channels_beyond};
use super::{EqualizationGroup, GroupEnd, Reason, Skipped};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::{self, node_name};
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::tensor;
use crate::onnx::value_info::ValueInfos;
use crate::onnx::weight_channels::WeightChannels;
use std::collections::BTreeSet;

/// Returns every group of `graph`, and the layer inputs that are in no group. Each tensor is in at most one group.
pub fn find(graph: &GraphProto, value_info: &ValueInfos) -> (Vec<EqualizationGroup>, Vec<Skipped>) {
    let index = GraphIndex::new(graph);
    let (mut groups, mut skipped): (Vec<EqualizationGroup>, Vec<Skipped>) = (Vec::new(), Vec::new());
    for node in graph.node.iter().filter(|node| node::is_standard(node)) {
        let Some((tensor, channels)) = layer_input(node, &index, value_info) else { continue };
        let known = groups.iter().any(|group| group.tensors.contains_key(tensor))
            || skipped.iter().any(|skipped| skipped.tensor == *tensor);
        if known {
            continue;
        }
        match group(graph, &index, value_info, tensor, channels) {
            Ok(group) => groups.push(group),
            Err(reason) => skipped.push(Skipped { tensor: tensor.to_string(), reason }),
        }
    }
    (groups, skipped)
}

/// Returns the input of a layer with a constant weight, and the input's channels. A Mul by one factor per channel
/// counts as a layer.
pub(super) fn layer_input<'a>(
    node: &'a NodeProto,
    index: &GraphIndex,
    value_info: &ValueInfos,
) -> Option<(&'a str, Channels)> {
    let shape = |name: &String| tensor::shape(index.initializer(name)?).ok();
    if node.op_type() == "Mul" {
        let slot = index.constant_operand(node)?;
        let (scales, tensor) = (shape(&node.input[slot])?, &node.input[1 - slot]);
        let rank = value_info.shape(tensor)?.len();
        let along = |axis: usize| (axis + rank).checked_sub(scales.len());
        let mut wide = scales.iter().enumerate().filter(|(_, dim)| **dim > 1);
        let ((axis, &n), None) = (wide.next()?, wide.next()) else { return None };
        return Some((tensor, Channels { axis: along(axis)?, run: 1, first: 0, n }));
    }
    let weight_channels = WeightChannels::of(node, &shape(node.input.get(1)?)?)?;
    let tensor = node.input.first()?;
    let axis = input_axis(node, value_info.shape(tensor).map_or(0, <[usize]>::len));
    Some((tensor, Channels { axis, run: 1, first: 0, n: weight_channels.n_in }))
}

/// Returns the axis of a layer's input channels.
fn input_axis(node: &NodeProto, rank: usize) -> usize {
    match node.op_type() {
        "Conv" | "ConvTranspose" => 1,
        _ => rank.saturating_sub(1),
    }
}

fn group(
    graph: &GraphProto,
    index: &GraphIndex,
    value_info: &ValueInfos,
    tensor: &str,
    channels: Channels,
) -> Result<EqualizationGroup, Reason> {
    let (mut tensor, mut channels) = (tensor.to_string(), channels);
    // No tensor is a start twice, which bounds the number of starts.
    for _ in 0..=graph.node.len() {
        let group = EqualizationGroup { tensor: tensor.clone(), n: channels.n, ..EqualizationGroup::default() };
        let mut growth = Growth { graph, index, value_info, group, shifted: BTreeSet::new(), pending: Vec::new() };
        match growth.grow(&tensor, channels) {
            Ok(()) if growth.group.n < 2 => return Err(Reason::OneChannel),
            Ok(()) => return Ok(growth.group),
            Err(Stop::Skipped(reason)) => return Err(reason),
            Err(Stop::Wider(output, wider)) => (tensor, channels) = (output, wider),
        }
    }
    Err(Reason::Misaligned(tensor))
}

enum Stop {
    Skipped(Reason),
    /// The layer reads a part of the group's channels, as behind a Concat, or entries of them, as behind a Flatten. The
    /// search starts again from this tensor.
    Wider(String, Channels),
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Stop {
        Stop::Skipped(reason)
    }
}

struct Growth<'a> {
    graph: &'a GraphProto,
    index: &'a GraphIndex<'a>,
    value_info: &'a ValueInfos,
    group: EqualizationGroup,
    /// Positions of nodes whose constant summand is already scaled.
    shifted: BTreeSet<usize>,
    /// Tensors to visit.
    pending: Vec<(String, Channels)>,
}

impl Growth<'_> {
    fn grow(&mut self, tensor: &str, channels: Channels) -> Result<(), Stop> {
        self.pending.push((tensor.to_string(), channels));
        while let Some((tensor, channels)) = self.pending.pop() {
            match self.group.tensors.get(&tensor) {
                Some(known) if *known == channels => continue,
                Some(_) => return Err(Reason::Misaligned(tensor).into()),
                None => {}
            }
            if !channels.fits(self.shape(&tensor)?) || !self.value_info.is_float(&tensor) {
                return Err(Reason::Unknown(tensor).into());
            }
            if self.index.is_output(&tensor) {
                return Err(Reason::NetworkOutput(tensor).into());
            }
            self.group.tensors.insert(tensor.clone(), channels);
            let Some(maker) = self.index.producer_idx(&tensor) else {
                return Err(Reason::NoProducer(tensor).into());
            };
            self.backward(maker, &tensor, channels)?;
            for (reader, slot) in self.index.value_readers(&tensor) {
                if slot == usize::MAX {
                    return Err(Reason::Nested(tensor).into());
                }
                self.forward(reader, slot, &tensor, channels)?;
            }
        }
        Ok(())
    }

    fn shape(&self, tensor: &str) -> Result<&[usize], Reason> {
        self.value_info.shape(tensor).ok_or_else(|| Reason::Unknown(tensor.to_string()))
    }

    fn refused(&self, node: &NodeProto) -> Stop {
        let (node, op_type) = (node_name(node).to_string(), node.op_type().to_string());
        Reason::Operator { node, op_type }.into()
    }

    fn backward(&mut self, node_idx: usize, tensor: &str, channels: Channels) -> Result<(), Stop> {
        let node = &self.graph.node[node_idx];
        if !node::is_standard(node) || node.output.first().is_none_or(|output| output != tensor) {
            return Err(self.refused(node));
        }
        match node.op_type() {
            "Conv" | "ConvTranspose" | "Gemm" | "MatMul" => {
                self.layer(node_idx, tensor, channels, FlowDirection::Backward)?
            }
            "LayerNormalization"
            | "RMSNormalization"
            | "SimplifiedLayerNormalization"
            | "BatchNormalization"
            | "InstanceNormalization" => {
                self.gain(node_idx, tensor, channels)?;
            }
            "Mul" | "Add" | "Sub" => self.elementwise(node_idx, tensor, channels, FlowDirection::Backward)?,
            "Concat" => self.concatenated(node, tensor, channels)?,
            _ => {
                let input = node.input.first().cloned().unwrap_or_default();
                let moved = self.through(node, tensor, &input, channels, FlowDirection::Backward);
                let moved = moved.map_err(|stop| self.restart_at_planes(node, &input).unwrap_or(stop))?;
                self.pending.push((input, moved));
            }
        }
        Ok(())
    }

    fn forward(&mut self, node_idx: usize, slot: usize, tensor: &str, channels: Channels) -> Result<(), Stop> {
        let node = &self.graph.node[node_idx];
        let output = node.output.first().cloned().unwrap_or_default();
        if !node::is_standard(node) || output.is_empty() {
            return Err(self.refused(node));
        }
        match node.op_type() {
            "Conv" | "ConvTranspose" | "Gemm" | "MatMul" if slot == 0 => {
                self.layer(node_idx, tensor, channels, FlowDirection::Forward)?;
            }
            "Mul" | "Add" | "Sub" => self.elementwise(node_idx, tensor, channels, FlowDirection::Forward)?,
            "Concat" => {
                let shape = self.shape(&output)?;
                let axis = node::axis_position(node::int(node, "axis", 1), shape.len());
                if axis != channels.axis {
                    self.pending.push((output, channels));
                } else if !self.group.tensors.contains_key(&output) {
                    let n = shape[axis] / channels.run;
                    return Err(Stop::Wider(output, Channels { first: 0, n, ..channels }));
                }
            }
            _ if slot == 0 => {
                let moved = self.through(node, tensor, &output, channels, FlowDirection::Forward)?;
                self.pending.push((output, moved));
            }
            _ => return Err(self.refused(node)),
        }
        Ok(())
    }

    /// Returns a new start with whole channels at `input`, if `node` is a reshape that turned planes into entries.
    fn restart_at_planes(&self, node: &NodeProto, input: &str) -> Option<Stop> {
        let shape = self.value_info.shape(input)?;
        let planes = matches!(node.op_type(), "Flatten" | "Reshape") && shape.len() > 2;
        let channels = Channels { axis: 1, run: 1, first: 0, n: shape.get(1).copied()? };
        planes.then(|| Stop::Wider(input.to_string(), channels))
    }

    /// Returns the position of the channels beyond a node that lets channel scales pass.
    fn through(
        &self,
        node: &NodeProto,
        near: &str,
        far: &str,
        channels: Channels,
        direction: FlowDirection,
    ) -> Result<Channels, Stop> {
        self.ensure_constants_pass(node)?;
        let axes = self.index.axes(node).unwrap_or_default();
        let (near, far) = (self.shape(near)?, self.shape(far)?);
        channels_beyond(node, &axes, channels, near, far, direction).ok_or_else(|| self.refused(node))
    }

    /// Fails if the constants of a node do not let channel scales pass.
    fn ensure_constants_pass(&self, node: &NodeProto) -> Result<(), Stop> {
        let operand = |slot: usize| node.input.get(slot).filter(|name| !name.is_empty());
        match node.op_type() {
            "Clip" => {
                let bounds = self.index.clip_bounds(node);
                let (min, max) = bounds.ok_or_else(|| self.refused(node))?;
                let (min, max) = (min.unwrap_or(f32::MIN), max.unwrap_or(f32::MAX));
                let open = |bound: f32, end: f32| bound == 0.0 || bound.abs() >= end.abs();
                if !open(min, f32::MIN) || !open(max, f32::MAX) {
                    let node = node_name(node).to_string();
                    return Err(Reason::Bound { node, bounds: [min, max] }.into());
                }
            }
            "Pad" => {
                let value = match operand(2) {
                    None => Some(node::float(node, "value").unwrap_or(0.0)),
                    Some(name) => self.index.floats(name).and_then(|values| values.first().copied()),
                };
                let zero = value == Some(0.0);
                let constant = node::text(node, "mode", "constant") == "constant";
                if operand(3).is_some() || constant && !zero {
                    return Err(self.refused(node));
                }
            }
            "Dropout" if operand(2).is_some() => return Err(self.refused(node)),
            _ => {}
        }
        Ok(())
    }

    fn concatenated(&mut self, node: &NodeProto, tensor: &str, channels: Channels) -> Result<(), Stop> {
        let rank = self.shape(tensor)?.len();
        let axis = node::axis_position(node::int(node, "axis", 1), rank);
        let mut first = channels.first;
        for input in &node.input {
            if axis != channels.axis {
                self.pending.push((input.clone(), channels));
                continue;
            }
            let len = self.shape(input)?.get(axis).copied().unwrap_or(0);
            if len == 0 || len % channels.run != 0 {
                return Err(Reason::Misaligned(input.clone()).into());
            }
            let n = len / channels.run;
            self.pending.push((input.clone(), Channels { first, n, ..channels }));
            first += n;
        }
        Ok(())
    }
}
