//! Channels of outputs, and groups of channels that share a figure.

use serde::{Deserialize, Serialize};

/// The detected channels of an output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputGroups {
    /// ONNX name.
    pub output: String,
    /// The channel axis; absent where the output has one channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub axis: Option<usize>,
    /// Its groups; empty where it has no overlap.
    pub groups: Vec<ChannelGroup>,
}

/// Channels that share a figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelGroup {
    /// `sparse`, with rare large values, or `dense`.
    pub kind: String,
    /// Number of channels.
    pub n_channels: usize,
    /// Indices along the axis, such as `0-3, 5`.
    pub channels: String,
}

impl ChannelGroup {
    /// Text such as `80 sparse channels (5-84)`.
    pub fn describe(&self) -> String {
        let s = if self.n_channels == 1 { "" } else { "s" };
        format!("{} {} channel{s} ({})", self.n_channels, self.kind, self.channels)
    }
}
