//! Other units for the channels of a tensor.

/// A factor per channel of a tensor: the tensor with other units is each channel times its factor.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelScaling {
    /// The axis of the channels.
    axis: usize,
    /// Entries of one channel along the axis, side by side.
    run: usize,
    /// One factor per channel, in the order of the axis.
    factors: Vec<f32>,
}

impl ChannelScaling {
    /// Channels along `axis`, each of `run` entries side by side.
    pub fn new(axis: usize, run: usize, factors: Vec<f32>) -> ChannelScaling {
        ChannelScaling { axis, run, factors }
    }

    /// Entries along the axis of the channels.
    pub fn n_entries(&self) -> usize {
        self.factors.len() * self.run
    }

    /// What entry `i` along the axis of the channels is multiplied by.
    pub fn of(&self, i: usize) -> f32 {
        self.factors[i / self.run]
    }

    /// Scales the values of a tensor of `shape`, in row-major order; `out` gets them.
    pub fn apply(&self, shape: &[usize], values: &[f32], out: &mut Vec<f32>) {
        let inner = shape.iter().skip(self.axis + 1).product::<usize>();
        let parts = values.chunks((inner * self.run).max(1)).zip(self.factors.iter().cycle());
        out.clear();
        parts.for_each(|(part, by)| out.extend(part.iter().map(|value| value * by)));
    }
}
