//! Constants at the ends of a group: weights, gains, channel scales and summands.

use super::super::edit::{ScaledConstant, is_own};
use super::{Channels, End, Growth, Pending, Reason, Stop, WeightChannels};
use crate::onnx::edit::Entries;
use crate::onnx::node;
use crate::onnx::node::node_name;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor;

/// Its slot, how its entries lie along the axis of the channels, where there is one per channel, and the
/// other operand.
type ConstantOperand<'n> = (usize, Option<Entries>, &'n str);

impl Growth<'_> {
    /// The weight at the second input.
    pub(super) fn weight_channels(&self, node: &NodeProto) -> Result<WeightChannels, Reason> {
        let no_weight = || Reason::NoWeight(node_name(node).to_string());
        let name = node.input.get(1).ok_or_else(no_weight)?;
        let shape = self.constant_shape(node, name)?;
        WeightChannels::of(node, &shape).ok_or_else(no_weight)
    }

    pub(super) fn constant_shape(&self, node: &NodeProto, name: &str) -> Result<Vec<usize>, Reason> {
        let shape = self.index.initializer(name).and_then(|tensor| tensor::shape(tensor).ok());
        shape.ok_or_else(|| Reason::NoWeight(node_name(node).to_string()))
    }

    /// Adds a constant to those that are scaled.
    pub(super) fn edit(
        &mut self,
        name: &str,
        entries: Entries,
        channels: Channels,
        multiply: bool,
    ) -> Result<(), Reason> {
        match is_own(self.index, name) {
            None => Err(Reason::NoWeight(name.to_string())),
            Some(false) => Err(Reason::Shared(name.to_string())),
            Some(true) => {
                let tensor = name.to_string();
                self.group.constants.push(ScaledConstant { tensor, entries, channels, multiply });
                Ok(())
            }
        }
    }

    /// Gain and bias of a normalization: one per channel, after everything else.
    pub(super) fn gain(&mut self, node_idx: usize, tensor: &str, channels: Channels) -> Result<(), Stop> {
        let node = &self.graph.node[node_idx];
        let rank = self.shape(tensor)?.len();
        let fits = match node.op_type() {
            "LayerNormalization" => {
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
            let entries = Entries::of_axis(1, channels.n_entries());
            self.edit(name, entries, channels, false)?;
        }
        self.group.producers.push(End::new(node_idx, 1, None, tensor, channels));
        Ok(())
    }

    /// The constant operand of a node with two, and the other one.
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
        // A constant that is larger than the tensor makes it larger.
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

    /// A constant summand is divided as the tensor is; once for a node.
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

    pub(super) fn elementwise_backward(
        &mut self,
        node_idx: usize,
        tensor: &str,
        channels: Channels,
        pending: &mut Vec<Pending>,
    ) -> Result<(), Stop> {
        let node = &self.graph.node[node_idx];
        let constant = self.constant_operand(node, channels)?;
        match (node.op_type(), constant) {
            ("Mul", Some((slot, Some(entries), _))) => {
                self.edit(&node.input[slot], entries, channels, false)?;
                self.group.producers.push(End::new(node_idx, slot, None, tensor, channels));
            }
            ("Mul", Some((_, None, other))) => pending.push((other.to_string(), channels)),
            ("Mul", None) => return Err(self.refused(node)),
            (_, Some((slot, entries, other))) => {
                self.summand(node_idx, slot, entries, channels)?;
                pending.push((other.to_string(), channels));
            }
            (_, None) => {
                for input in &node.input {
                    if self.shape(input)? != self.shape(tensor)? {
                        return Err(self.refused(node));
                    }
                    pending.push((input.clone(), channels));
                }
            }
        }
        Ok(())
    }

    pub(super) fn elementwise_forward(
        &mut self,
        node_idx: usize,
        slot: usize,
        tensor: &str,
        channels: Channels,
        pending: &mut Vec<Pending>,
    ) -> Result<(), Stop> {
        let node = &self.graph.node[node_idx];
        let output = node.output[0].clone();
        match (node.op_type(), self.constant_operand(node, channels)?) {
            ("Mul", Some((constant, Some(entries), _))) => {
                self.edit(&node.input[constant], entries, channels, true)?;
                let weight_channels = WeightChannels::diagonal(channels.n_entries());
                let weight_channels = Some(weight_channels);
                self.group.consumers.push(End::new(node_idx, constant, weight_channels, tensor, channels));
            }
            ("Mul", None) => return Err(self.refused(node)),
            ("Mul", Some((_, None, _))) => pending.push((output, channels)),
            (_, Some((constant, entries, _))) => {
                debug_assert_ne!(slot, constant);
                self.summand(node_idx, constant, entries, channels)?;
                pending.push((output, channels));
            }
            (_, None) => {
                if self.shape(&output)? != self.shape(tensor)? {
                    return Err(self.refused(node));
                }
                pending.push((output, channels));
            }
        }
        Ok(())
    }
}
