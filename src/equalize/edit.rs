//! Constants that channel scales multiply or divide.

use super::{Channels, EqualizationGroup};
use crate::onnx::edit::{Entries, ModelEdit, ScaledChannels};
use anyhow::{Result, ensure};

/// A constant that changes with the channel scales of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledConstant {
    /// Name of the initializer.
    pub tensor: String,
    /// The channel entry of each value.
    pub(super) entries: Entries,
    pub(super) channels: Channels,
    /// Whether the channel scales multiply the constant, as at a reader; otherwise they divide it, as at a producer.
    pub multiply: bool,
}

impl EqualizationGroup {
    /// Returns the edits that divide the channels by `scales`: producers scale down, readers compensate.
    ///
    /// # Errors
    /// If the number of scales is not the number of channels, or a scale is not finite and positive.
    pub fn edits(&self, scales: &[f32]) -> Result<Vec<ModelEdit>> {
        ensure!(
            scales.len() == self.n,
            "tensor `{}`: {} channel scales, expected {}",
            self.tensor,
            scales.len(),
            self.n
        );
        let bad = scales.iter().find(|factor| !(factor.is_finite() && **factor > 0.0));
        ensure!(bad.is_none(), "tensor `{}`: channel scale {bad:?}, expected a number above 0", self.tensor);
        let scaled = |constant: &ScaledConstant| ScaledChannels {
            tensor: constant.tensor.clone(),
            entries: constant.entries,
            factors: constant.channels.by_entry(scales),
            multiply: constant.multiply,
        };
        Ok(self.constants.iter().map(scaled).map(ModelEdit::ScaleChannels).collect())
    }
}
