//! Offsets of channels that go into the biases behind them.
//!
//! A tensor x whose channels lie around c is made as x - c, by another bias of what makes it, and its readers
//! add W c to theirs: a grid then needs to reach less far. This is the absorption of high biases of Nagel et
//! al. 2019 (arXiv 1906.04721, section 4.1), only where it is exact up to float rounding: nothing between the
//! two biases may treat a value by its size, so that a Relu ends it, and no reader may pad with zeros. In a
//! residual stream the branch that an Add brings in makes up for the difference of its two sides.

use super::edit::{change, is_own};
use super::{
    ChannelStatistics, Channels, Declined, LEAST_GAIN_DB, Linear, Reason, Watched, search,
};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::tensor;
use crate::onnx::value_info::ValueInfos;
use anyhow::{Context, Result, ensure};

/// A tensor whose channels can be moved.
#[derive(Debug, Clone, PartialEq)]
pub struct Movable {
    /// ONNX name.
    pub tensor: String,
    /// Where it holds its channels.
    pub channels: Channels,
    moves: Vec<Move>,
}

/// A bias that changes with the offsets c.
#[derive(Debug, Clone, PartialEq)]
struct Move {
    /// Name of the initializer, one value per channel.
    bias: String,
    by: By,
}

#[derive(Debug, Clone, PartialEq)]
enum By {
    /// What makes the tensor: -c.
    Maker,
    /// What is added to it: +c.
    Summand,
    /// What reads it: W c.
    Reader { weight: String, linear: Linear },
}

/// The inputs of layers that can be moved, and of those among `tensors` that cannot the reason.
pub fn movable(
    graph: &GraphProto,
    value_info: &ValueInfos,
    tensors: &[&str],
) -> (Vec<Movable>, Vec<Declined>) {
    let index = GraphIndex::new(graph);
    let search = Search { graph, index: &index, value_info };
    let (mut movable, mut declined): (Vec<Movable>, Vec<Declined>) = (Vec::new(), Vec::new());
    for node in &graph.node {
        let Some((tensor, channels)) = search.layer_input(node) else { continue };
        let known = movable.iter().any(|movable| movable.tensor == tensor)
            || declined.iter().any(|declined| declined.tensor == tensor);
        if known || !tensors.contains(&tensor) {
            continue;
        }
        match search.moves(tensor, channels) {
            Ok(moves) => movable.push(Movable { tensor: tensor.to_string(), channels, moves }),
            Err(reason) => declined.push(Declined { tensor: tensor.to_string(), reason }),
        }
    }
    (movable, declined)
}

impl Movable {
    /// The tensor, to be looked at.
    pub fn watched(&self) -> Watched {
        Watched { tensor: self.tensor.clone(), channels: self.channels }
    }

    /// The middle of each channel's range, where a grid reaches less far without them; `symmetric` is one whose
    /// middle is 0.
    ///
    /// # Errors
    /// If it does not.
    pub fn offsets(&self, seen: &ChannelStatistics, symmetric: bool) -> Result<Vec<f32>, Reason> {
        let ranges = || seen.min.iter().zip(&seen.max).map(|(&min, &max)| (min, max));
        let middle = |(min, max): (f32, f32)| if min <= max { min / 2.0 + max / 2.0 } else { 0.0 };
        let offsets: Vec<f32> = ranges().map(middle).collect();
        let reach = |moved: bool| {
            let (mut low, mut high) = (0.0f64, 0.0f64);
            for ((min, max), &offset) in ranges().zip(&offsets) {
                let offset = if moved { f64::from(offset) } else { 0.0 };
                low = low.min(f64::from(min) - offset);
                high = high.max(f64::from(max) - offset);
            }
            if symmetric { 2.0 * high.max(-low) } else { high - low }
        };
        let gain_db = 20.0 * (reach(false) / reach(true)).log10();
        let finite = offsets.iter().all(|offset| offset.is_finite());
        if finite && gain_db > LEAST_GAIN_DB { Ok(offsets) } else { Err(Reason::NoGain) }
    }
}

/// Takes `offsets` out of the channels of the tensor.
///
/// # Errors
/// If there is not one finite offset per channel, or the graph is not the one that the tensor was found in.
pub fn absorb(graph: &mut GraphProto, movable: &Movable, offsets: &[f32]) -> Result<()> {
    let Movable { tensor, channels, moves } = movable;
    let fits = offsets.len() == channels.n && offsets.iter().all(|offset| offset.is_finite());
    ensure!(fits, "tensor `{tensor}`: expected {} finite offsets", channels.n);
    for Move { bias, by } in moves {
        let added: Vec<f64> = match by {
            By::Maker => offsets.iter().map(|&c| -f64::from(c)).collect(),
            By::Summand => offsets.iter().map(|&c| f64::from(c)).collect(),
            By::Reader { weight, linear } => {
                let found = graph.initializer.iter().find(|tensor| tensor.name() == weight);
                let found = found.with_context(|| format!("initializer `{weight}` does not exist"));
                let mut sums = vec![0.0; linear.n_out];
                for (i, value) in tensor::f32_values(found?)?.into_iter().enumerate() {
                    let (out, from) = linear.ends(i);
                    sums[out] += f64::from(value) * f64::from(offsets[from]);
                }
                sums
            }
        };
        change(graph, bias, |i, value| (f64::from(value) + added[i]) as f32)?;
    }
    Ok(())
}

struct Search<'a> {
    graph: &'a GraphProto,
    index: &'a GraphIndex<'a>,
    value_info: &'a ValueInfos,
}

impl<'a> Search<'a> {
    fn layer_input(&self, node: &'a NodeProto) -> Option<(&'a str, Channels)> {
        self.linear(node)?;
        let (tensor, channels) = search::layer_input(node, self.index, self.value_info)?;
        let turned = node::int(node, "transA", 0) != 0;
        (!turned && channels.fits(self.value_info.shape(tensor)?)).then_some((tensor, channels))
    }

    /// A Conv, Gemm or MatMul with a constant float32 weight.
    fn linear(&self, node: &NodeProto) -> Option<Linear> {
        let layer = matches!(node.op_type(), "Conv" | "Gemm" | "MatMul");
        if !layer || !matches!(node.domain(), "" | "ai.onnx") || node::is_scaled(node) {
            return None;
        }
        let weight = self.index.initializer(node.input.get(1)?)?;
        tensor::f32_values(weight).ok()?;
        Linear::of(node, &tensor::shape(weight).ok()?)
    }

    fn moves(&self, tensor: &str, channels: Channels) -> Result<Vec<Move>, Reason> {
        if self.index.is_output(tensor) {
            return Err(Reason::NetworkOutput(tensor.to_string()));
        }
        let maker = self.index.producer_idx(tensor);
        let maker = maker.ok_or_else(|| Reason::NoProducer(tensor.to_string()))?;
        let mut moves = vec![Move { bias: self.made_by(maker, channels)?, by: By::Maker }];
        for &(reader, slot) in self.index.consumers(tensor) {
            if slot == usize::MAX {
                return Err(Reason::Nested(tensor.to_string()));
            }
            moves.push(self.read_by(reader, slot, channels)?);
        }
        Ok(moves)
    }

    /// The bias that moves what a node makes.
    fn made_by(&self, node_idx: usize, channels: Channels) -> Result<String, Reason> {
        let node = &self.graph.node[node_idx];
        match node.op_type() {
            "Add" => {
                if let Some((constant, _)) = self.constant_summand(node) {
                    return self.own(node, constant, channels);
                }
                let branch = node.input.iter().find_map(|name| self.branch(name, channels));
                branch.ok_or_else(|| Reason::NoBranch(node_name(node).to_string()))
            }
            "LayerNormalization" => {
                let shape = node.output.first().and_then(|output| self.value_info.shape(output));
                let rank = shape.map_or(0, <[usize]>::len);
                let last = node::axis_position(node::int(node, "axis", -1), rank) + 1 == rank;
                self.bias(node, channels).filter(|_| last).ok_or_else(|| refused(node))
            }
            "BatchNormalization" if node::int(node, "training_mode", 0) != 0 => Err(refused(node)),
            "Conv" | "ConvTranspose" | "Gemm" | "BatchNormalization" | "InstanceNormalization"
                if !node::is_scaled(node) =>
            {
                self.bias(node, channels).ok_or_else(|| Reason::NoBias(node_name(node).to_string()))
            }
            _ => Err(refused(node)),
        }
    }

    fn read_by(&self, node_idx: usize, slot: usize, channels: Channels) -> Result<Move, Reason> {
        let node = &self.graph.node[node_idx];
        let name = || node_name(node).to_string();
        if node.op_type() == "Add" && self.constant_summand(node).is_none() {
            let other = node.input.get(1 - slot.min(1)).filter(|_| node.input.len() == 2);
            let branch = other.and_then(|other| self.branch(other, channels));
            let bias = branch.ok_or_else(|| Reason::NoBranch(name()))?;
            return Ok(Move { bias, by: By::Summand });
        }
        let (Some(linear), 0) = (self.linear(node), slot) else { return Err(refused(node)) };
        let same = self.layer_input(node).is_some_and(|(_, found)| found == channels);
        if !same {
            return Err(Reason::Misaligned(node.input[0].clone()));
        }
        if is_padded(node, linear.area) {
            return Err(Reason::Padded(name()));
        }
        let output = &node.output[0];
        let out = Channels { n: linear.n_out, ..channels };
        let bias = match node.op_type() {
            // The constant that the only reader of the product adds.
            "MatMul" => match self.index.consumers(output) {
                &[(add, _)] if !self.index.is_output(output) && add != usize::MAX => {
                    let add = &self.graph.node[add];
                    let summand = self.constant_summand(add).filter(|(_, other)| other == output);
                    summand.and_then(|(constant, _)| self.own(add, constant, out).ok())
                }
                _ => None,
            },
            _ => self.bias(node, out),
        };
        let bias = bias.ok_or_else(|| Reason::NoBias(name()))?;
        Ok(Move { bias, by: By::Reader { weight: node.input[1].clone(), linear } })
    }

    /// The bias of a layer that makes `name` for one Add and nothing else.
    fn branch(&self, name: &str, channels: Channels) -> Option<String> {
        let shape = self.value_info.shape(name).filter(|shape| channels.fits(shape))?;
        let &[(add, slot)] = self.index.consumers(name) else { return None };
        if slot == usize::MAX || self.index.is_output(name) {
            return None;
        }
        let sum = self.graph.node[add].output.first()?;
        if self.value_info.shape(sum) != Some(shape) {
            return None;
        }
        let maker = self.index.producer(name)?;
        match maker.op_type() {
            "Conv" | "ConvTranspose" | "Gemm" if !node::is_scaled(maker) => {
                self.bias(maker, channels)
            }
            "Add" => {
                let (constant, _) = self.constant_summand(maker)?;
                self.own(maker, constant, channels).ok()
            }
            _ => None,
        }
    }

    /// The third input of a node, a bias of its own.
    fn bias(&self, node: &NodeProto, channels: Channels) -> Option<String> {
        let name = node.input.get(2).filter(|name| !name.is_empty())?;
        let shape = tensor::shape(self.index.initializer(name)?).ok()?;
        let fits =
            shape.last() == Some(&channels.n) && shape.iter().product::<usize>() == channels.n;
        (fits && is_own(self.index, name) == Some(true)).then(|| name.clone())
    }

    /// The constant that an Add adds, and the other operand.
    fn constant_summand<'n>(&self, node: &'n NodeProto) -> Option<(&'n str, &'n str)> {
        let slot = self.index.constant_operand(node).filter(|_| node.op_type() == "Add")?;
        Some((&node.input[slot], &node.input[1 - slot]))
    }

    /// `constant`, if it is the node's own and has one value per channel and no others.
    fn own(&self, node: &NodeProto, constant: &str, channels: Channels) -> Result<String, Reason> {
        match is_own(self.index, constant) {
            Some(true) => {}
            Some(false) => return Err(Reason::Shared(constant.to_string())),
            None => return Err(Reason::NoBias(node_name(node).to_string())),
        }
        let shape = self.index.initializer(constant).and_then(|c| tensor::shape(c).ok());
        let output = node.output.first().and_then(|output| self.value_info.shape(output));
        let fits = shape.zip(output).is_some_and(|(shape, output)| {
            let axis = (channels.axis + shape.len()).checked_sub(output.len());
            let per_channel = axis.and_then(|axis| shape.get(axis)) == Some(&channels.n);
            per_channel && shape.iter().product::<usize>() == channels.n
        });
        let not = || Reason::NotPerChannel(constant.to_string());
        fits.then(|| constant.to_string()).ok_or_else(not)
    }
}

fn refused(node: &NodeProto) -> Reason {
    Reason::Operator { node: node_name(node).to_string(), op_type: node.op_type().to_string() }
}

/// Whether a layer sees zeros around its input; `area` is the size of its kernel.
fn is_padded(node: &NodeProto, area: usize) -> bool {
    let pads = node::attribute(node, "pads").is_some_and(|pads| pads.ints.iter().any(|&p| p != 0));
    pads || area > 1 && node::text(node, "auto_pad", "NOTSET").starts_with("SAME")
}
