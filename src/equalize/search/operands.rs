//! Adds the ends of a group and their constants: weights, gains, factors per channel and summands.

use super::super::edit::ScaledConstant;
use super::{Channels, FlowDirection, GroupEnd, Growth, Reason, Stop, input_axis};
use crate::onnx::edit::Entries;
use crate::onnx::node::{self, node_name};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor;
use crate::onnx::weight_channels::WeightChannels;

/// Input index of the constant, its entries along the channel axis if it has one value per channel, and the other
/// operand.
type ConstantOperand<'n> = (usize, Option<Entries>, &'n str);

impl Growth<'_> {
    /// Returns the channels of the weight at the node's second input.
    pub(super) fn weight_channels(&self, node: &NodeProto) -> Result<WeightChannels, Reason> {
        let no_weight = || Reason::NoWeight(node_name(node).to_string());
        let shape = self.constant_shape(node, node.input.get(1).ok_or_else(no_weight)?)?;
        WeightChannels::of(node, &shape).ok_or_else(no_weight)
    }

    pub(super) fn constant_shape(&self, node: &NodeProto, name: &str) -> Result<Vec<usize>, Reason> {
        let shape = self.index.initializer(name).and_then(|tensor| tensor::shape(tensor).ok());
        shape.ok_or_else(|| Reason::NoWeight(node_name(node).to_string()))
    }

    /// Adds a constant that the channel scales multiply or divide.
    pub(super) fn edit(
        &mut self,
        name: &str,
        entries: Entries,
        channels: Channels,
        multiply: bool,
    ) -> Result<(), Reason> {
        let tensor = name.to_string();
        if self.index.float_initializer(name).is_none() {
            return Err(Reason::NotConstant(tensor));
        }
        // A change of the constant must not affect other nodes.
        if !self.index.has_only(name, 1) {
            return Err(Reason::Shared(tensor));
        }
        self.group.constants.push(ScaledConstant { tensor, entries, channels, multiply });
        Ok(())
    }

    /// Adds a layer with a weight that produces or reads the tensor.
    pub(super) fn layer(
        &mut self,
        node_idx: usize,
        tensor: &str,
        channels: Channels,
        direction: FlowDirection,
    ) -> Result<(), Stop> {
        let node = &self.graph.node[node_idx];
        let weight_channels = self.weight_channels(node)?;
        let WeightChannels { n_in, n_out, inputs, outputs, .. } = weight_channels;
        let is_reader = direction == FlowDirection::Forward;
        let (n, entries) = if is_reader { (n_in, inputs) } else { (n_out, outputs) };
        let axis = input_axis(node, self.shape(tensor)?.len());
        let turned = is_reader && node.op_type() == "Gemm" && node::int(node, "transA", 0) != 0;
        if channels.axis != axis || channels.n_entries() != n || turned {
            return Err(Reason::Misaligned(tensor.to_string()).into());
        }
        self.edit(&node.input[1], entries, channels, is_reader)?;
        if let Some(bias) = node.input.get(2).filter(|name| !is_reader && !name.is_empty()) {
            if self.constant_shape(node, bias)?.last() != Some(&n_out) {
                return Err(Reason::NotPerChannel(bias.clone()).into());
            }
            self.edit(bias, Entries::of_axis(1, n_out), channels, false)?;
        }
        self.end(direction, GroupEnd::new(node_idx, 1, Some(weight_channels), tensor, channels));
        Ok(())
    }

    /// Adds a node that produces or reads a tensor of the group.
    fn end(&mut self, direction: FlowDirection, end: GroupEnd) {
        match direction {
            FlowDirection::Forward => self.group.consumers.push(end),
            FlowDirection::Backward => self.group.producers.push(end),
        }
    }

    /// Adds a normalization as a producer, with its gain and bias, both with one value per channel.
    pub(super) fn gain(&mut self, node_idx: usize, tensor: &str, channels: Channels) -> Result<(), Stop> {
        let node = &self.graph.node[node_idx];
        let rank = self.shape(tensor)?.len();
        let fits = match node.op_type() {
            "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization" => {
                let axis = node::axis_position(node::int(node, "axis", -1), rank);
                axis + 1 == rank && channels.axis == axis
            }
            _ => channels.axis == 1 && node::int(node, "training_mode", 0) == 0,
        };
        if !fits {
            return Err(self.refused(node));
        }
        let constants = node.input.iter().skip(1).take(2).filter(|name| !name.is_empty());
        for name in constants {
            if self.constant_shape(node, name)? != [channels.n_entries()] {
                return Err(Reason::NotPerChannel(name.clone()).into());
            }
            self.edit(name, Entries::of_axis(1, channels.n_entries()), channels, false)?;
        }
        self.end(FlowDirection::Backward, GroupEnd::new(node_idx, 1, None, tensor, channels));
        Ok(())
    }

    /// Returns the constant operand of a node with two inputs, and the other operand; `None` if neither is constant.
    fn constant_operand<'n>(
        &self,
        node: &'n NodeProto,
        channels: Channels,
    ) -> Result<Option<ConstantOperand<'n>>, Stop> {
        let [a, b] = node.input.as_slice() else { return Err(self.refused(node)) };
        let (slot, name, other) = match self.index.constant_operand(node) {
            Some(1) => (1, b, a),
            Some(_) if node.op_type() != "Sub" => (0, a, b),
            None if self.index.initializer(a).is_none() => return Ok(None),
            _ => return Err(self.refused(node)),
        };
        let shape = self.shape(other)?;
        // A constant larger than the tensor would broadcast it.
        if node.output.first().and_then(|output| self.value_info.shape(output)) != Some(shape) {
            return Err(self.refused(node));
        }
        let dims = self.constant_shape(node, name)?;
        let axis = (channels.axis + dims.len()).checked_sub(shape.len());
        let entries = axis.and_then(|axis| {
            let inner = dims[axis + 1..].iter().product();
            (dims[axis] > 1).then_some(Entries::of_axis(inner, dims[axis]))
        });
        Ok(Some((slot, entries, other)))
    }

    /// Adds the constant summand of a node, once. The channel scales divide it like the tensor.
    fn summand(
        &mut self,
        node_idx: usize,
        slot: usize,
        entries: Option<Entries>,
        channels: Channels,
    ) -> Result<(), Stop> {
        let name = self.graph.node[node_idx].input[slot].clone();
        let entries = entries.ok_or_else(|| Reason::NotPerChannel(name.clone()))?;
        if self.shifted.insert(node_idx) {
            self.edit(&name, entries, channels, false)?;
        }
        Ok(())
    }

    /// Follows a Mul, Add or Sub that produces or reads the tensor.
    pub(super) fn elementwise(
        &mut self,
        node_idx: usize,
        tensor: &str,
        channels: Channels,
        direction: FlowDirection,
    ) -> Result<(), Stop> {
        let node = &self.graph.node[node_idx];
        let constant = self.constant_operand(node, channels)?;
        let beyond: Vec<&str> = match (direction, &constant) {
            (FlowDirection::Forward, _) => vec![&node.output[0]],
            (FlowDirection::Backward, Some((.., other))) => vec![other],
            (FlowDirection::Backward, None) => node.input.iter().map(String::as_str).collect(),
        };
        match (node.op_type(), constant) {
            ("Mul", Some((slot, Some(entries), _))) => {
                let is_reader = direction == FlowDirection::Forward;
                self.edit(&node.input[slot], entries, channels, is_reader)?;
                let weight_channels = is_reader.then(|| WeightChannels::diagonal(channels.n_entries()));
                self.end(direction, GroupEnd::new(node_idx, slot, weight_channels, tensor, channels));
                return Ok(());
            }
            ("Mul", Some((_, None, _))) => {}
            ("Mul", None) => return Err(self.refused(node)),
            (_, Some((slot, entries, _))) => self.summand(node_idx, slot, entries, channels)?,
            (_, None) => {
                for other in &beyond {
                    if self.shape(other)? != self.shape(tensor)? {
                        return Err(self.refused(node));
                    }
                }
            }
        }
        self.pending.extend(beyond.into_iter().map(|name| (name.to_string(), channels)));
        Ok(())
    }
}
