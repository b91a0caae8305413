//! Extremes of the channels of a tensor.

use super::Extremes;

/// Lowest and highest finite value per entry of a tensor's last axis, over samples in any order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChannelExtremes {
    /// One entry per channel; empty before the first sample, or where samples have different numbers of channels.
    pub by_channel: Vec<Extremes>,
    is_uneven: bool,
}

impl ChannelExtremes {
    /// Returns the given extremes; `None` stands for samples with different numbers of channels.
    pub fn of(by_channel: Option<Vec<Extremes>>) -> ChannelExtremes {
        ChannelExtremes { is_uneven: by_channel.is_none(), by_channel: by_channel.unwrap_or_default() }
    }

    /// Whether samples have different numbers of channels.
    pub fn is_uneven(&self) -> bool {
        self.is_uneven
    }

    /// Adds the values of a tensor of `shape`, in row-major order.
    pub fn observe(&mut self, shape: &[usize], values: &[f32]) {
        let n = shape.last().copied().unwrap_or(0);
        let mut seen = ChannelExtremes { by_channel: vec![Extremes::NONE; n], is_uneven: n == 0 };
        for row in values.chunks_exact(n.max(1)) {
            for (channel, &value) in seen.by_channel.iter_mut().zip(row).filter(|(_, value)| value.is_finite()) {
                channel.widen(Extremes { min: value, max: value });
            }
        }
        self.merge(&seen);
    }

    /// Adds the extremes of other samples.
    pub fn merge(&mut self, other: &ChannelExtremes) {
        if self.by_channel.is_empty() && !self.is_uneven {
            self.clone_from(other);
            return;
        }
        self.is_uneven |=
            other.is_uneven || !other.by_channel.is_empty() && self.by_channel.len() != other.by_channel.len();
        self.by_channel.iter_mut().zip(&other.by_channel).for_each(|(all, part)| all.widen(*part));
        if self.is_uneven {
            self.by_channel.clear();
        }
    }
}
