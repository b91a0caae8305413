//! The channels of outputs, and groups of them that have one figure.

use serde::{Deserialize, Serialize};

/// The channels of an output, as they were found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputGroups {
    /// ONNX name.
    pub output: String,
    /// The axis that counts channels; absent where the output has one channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub axis: Option<usize>,
    /// Its groups; none where it has no say.
    pub groups: Vec<ChannelGroup>,
}

/// Channels that have one figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelGroup {
    /// `sparse`, with rare large values, or `dense`.
    pub kind: String,
    /// Number of channels.
    pub n_channels: usize,
    /// Their positions along the axis, as in `0-3, 5`.
    pub channels: String,
}

impl ChannelGroup {
    /// As `80 sparse channels (5-84)`.
    pub fn describe(&self) -> String {
        let s = if self.n_channels == 1 { "" } else { "s" };
        format!("{} {} channel{s} ({})", self.n_channels, self.kind, self.channels)
    }
}
