//! Channel scales that make tensors easier to quantize and keep the float outputs.
//!
//! In: a prepared float model and statistics of its channels on calibration samples. Out: the same model with other
//! weights, and the reason for every chain of tensors that was skipped. It does not quantize. Where no node can absorb
//! channel scales, it proposes to insert a Mul.
//!
//! An [`EqualizationGroup`] is a set of tensors whose channels can be divided by channel scales: their producers are
//! scaled down, their readers scaled up, and every operator between lets positive scales pass. Cross-layer equalization
//! (Nagel et al. 2019, arXiv 1906.04721, section 4.1) and SmoothQuant's smoothing (Xiao et al. 2022, arXiv 2211.10438)
//! are the same transformation after different producers. Outputs stay the same up to float rounding; for powers of two
//! they are bit-identical.

mod channel_scales;
mod channels;
mod descent;
mod edit;
mod insert;
mod objective;
mod search;
mod shift;
mod statistics;

pub use channel_scales::{ScaleOptions, choose};
pub use channels::{Channels, FlowDirection, channels_beyond};
pub use edit::ScaledConstant;
pub use insert::{describe_inserted, groups_of_inserted, insertable, with_inserted};
pub use search::find;
pub use shift::{own_bias, shift};
pub use statistics::{ChannelStatistics, ObservedTensor, observed_tensors};

use crate::onnx::weight_channels::WeightChannels;
use std::collections::BTreeMap;
use std::fmt;

/// Tensors that share channel scales.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EqualizationGroup {
    /// The tensor at which the search started. It names the group.
    pub tensor: String,
    /// Number of channels.
    pub n: usize,
    /// Position of the channels in each tensor.
    pub tensors: BTreeMap<String, Channels>,
    /// Nodes that produce the tensors and can scale them down.
    pub producers: Vec<GroupEnd>,
    /// Nodes that read the tensors and can scale them up.
    pub consumers: Vec<GroupEnd>,
    /// Constants that change with the channel scales.
    pub constants: Vec<ScaledConstant>,
}

/// A node at an end of a group: a producer or a reader.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupEnd {
    /// Position of the node in the graph.
    pub node: usize,
    /// Index of the input that holds the weight.
    pub slot: usize,
    /// The channels of the weight; `None` for a producer with one factor per channel, such as a normalization.
    pub weight_channels: Option<WeightChannels>,
    /// The tensor of the group that the node produces or reads.
    pub tensor: String,
    /// The channels of that tensor.
    pub channels: Channels,
}

impl GroupEnd {
    fn new(
        node: usize,
        slot: usize,
        weight_channels: Option<WeightChannels>,
        tensor: &str,
        channels: Channels,
    ) -> GroupEnd {
        GroupEnd { node, slot, weight_channels, tensor: tensor.to_string(), channels }
    }
}

/// A tensor without channel scales.
#[derive(Debug, Clone, PartialEq)]
pub struct Skipped {
    /// The tensor, which a layer with a constant weight reads.
    pub tensor: String,
    /// The reason.
    pub reason: Reason,
}

/// The reason that a tensor gets no channel scales.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// The tensor is an input of the network, or a constant.
    NoProducer(String),
    /// The tensor is an output of the network.
    NetworkOutput(String),
    /// An operator on the way mixes the channels, or depends on their magnitude.
    Operator {
        /// Name of the node.
        node: String,
        /// Operator of the node.
        op_type: String,
    },
    /// A Clip on the way has a bound for all channels, which channel scales would change per channel.
    Bound {
        /// Name of the node.
        node: String,
        /// Lower and upper bound of the Clip.
        bounds: [f32; 2],
    },
    /// A layer on the way has no constant float32 weight of a supported form.
    NoWeight(String),
    /// A tensor that channel scales would change is not a float32 constant.
    NotConstant(String),
    /// A constant on the way has other readers, or is an output.
    Shared(String),
    /// A constant on the way does not have one entry per channel.
    NotPerChannel(String),
    /// A tensor's shape or type is unknown, or it is not float32.
    Unknown(String),
    /// Two paths through the graph order the channels of this tensor differently.
    Misaligned(String),
    /// A subgraph reads the tensor.
    Nested(String),
    /// There is only one channel.
    OneChannel,
    /// No channel scales promise a gain.
    NoGain,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Reason::NoProducer(tensor) => write!(f, "`{tensor}` is an input of the network or a constant"),
            Reason::NetworkOutput(tensor) => write!(f, "`{tensor}` is an output of the network"),
            Reason::Operator { node, op_type } => write!(f, "channel scales cannot pass {op_type} `{node}`"),
            Reason::Bound { node, bounds: [min, max] } => {
                write!(f, "Clip `{node}` has the bounds {min} and {max} for all channels")
            }
            Reason::NoWeight(node) => write!(f, "node `{node}` has no constant float32 weight of a supported form"),
            Reason::NotConstant(tensor) => write!(f, "`{tensor}` is not a float32 constant"),
            Reason::Shared(tensor) => write!(f, "other nodes also read the constant `{tensor}`"),
            Reason::NotPerChannel(tensor) => write!(f, "the constant `{tensor}` does not have one value per channel"),
            Reason::Unknown(tensor) => write!(f, "`{tensor}` has an unknown shape, or is not float32"),
            Reason::Misaligned(tensor) => write!(f, "two paths to `{tensor}` order its channels differently"),
            Reason::Nested(tensor) => write!(f, "`{tensor}` is an input of a nested graph"),
            Reason::OneChannel => write!(f, "there is only one channel"),
            Reason::NoGain => write!(f, "no channel scales promise a gain"),
        }
    }
}
