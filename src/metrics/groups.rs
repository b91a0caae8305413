//! Channels of outputs, and groups of channels that share a figure.

use crate::diag::count;
use serde::{Deserialize, Serialize};

/// The channel axis and the channel groups of an output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputGroups {
    /// ONNX name of the output.
    pub output: String,
    /// The channel axis; absent if the output has one channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub axis: Option<usize>,
    /// Groups of channels; empty if the output has no overlap.
    pub groups: Vec<ChannelGroup>,
}

/// Channels that share one figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelGroup {
    /// `sparse` for channels with rare large values, otherwise `dense`.
    pub kind: String,
    /// Number of channels.
    pub n_channels: usize,
    /// Positions along the axis, such as `0-3, 5`.
    pub channels: String,
}

impl ChannelGroup {
    /// Describes the group, such as `80 channels of rare large values (5-84)` or, if it is dense, `5 channels (0-4)`.
    pub fn describe(&self) -> String {
        let values = if self.kind == "sparse" { " of rare large values" } else { "" };
        format!("{}{values} ({})", count(self.n_channels, "channel"), self.channels)
    }
}
