//! Constants that are scaled channel by channel.

use super::{Channels, EqualizationGroup};
use crate::onnx::edit::{Entries, ModelEdit, ScaledChannels};
use anyhow::{Result, ensure};

/// A constant that changes with the channel scales of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledConstant {
    /// Name of the initializer.
    pub tensor: String,
    /// Which entry of the channels each of its values is for.
    pub(super) entries: Entries,
    pub(super) channels: Channels,
    /// Whether it is multiplied by the channel scales, as at a reader; otherwise divided, as at a producer.
    pub multiply: bool,
}

impl EqualizationGroup {
    /// What divides the channels by `scales`: the producers make them smaller, the readers make up for it.
    ///
    /// # Errors
    /// If there is not one factor per channel, a finite one above 0.
    pub fn edits(&self, scales: &[f32]) -> Result<Vec<ModelEdit>> {
        ensure!(scales.len() == self.n, "tensor `{}`: {} factors, expected {}", self.tensor, scales.len(), self.n);
        let bad = scales.iter().find(|factor| !(factor.is_finite() && **factor > 0.0));
        ensure!(bad.is_none(), "tensor `{}`: factor {bad:?}, expected one above 0", self.tensor);
        let scaled = |constant: &ScaledConstant| ScaledChannels {
            tensor: constant.tensor.clone(),
            entries: constant.entries,
            factors: constant.channels.by_entry(scales),
            multiply: constant.multiply,
        };
        Ok(self.constants.iter().map(scaled).map(ModelEdit::ScaleChannels).collect())
    }
}
