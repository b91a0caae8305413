//! Channel scales of a tensor.

/// One factor per channel of a tensor. Scaling multiplies each channel by its factor.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelScaling {
    /// The axis of the channels.
    axis: usize,
    /// Adjacent entries per channel along the axis.
    run: usize,
    /// One factor per channel, in the order of the axis.
    factors: Vec<f32>,
}

impl ChannelScaling {
    /// Returns factors for channels along `axis`, each of `run` adjacent entries.
    pub fn new(axis: usize, run: usize, factors: Vec<f32>) -> ChannelScaling {
        ChannelScaling { axis, run, factors }
    }

    /// Returns the number of entries along the channel axis.
    pub fn n_entries(&self) -> usize {
        self.factors.len() * self.run
    }

    /// Returns the factor of entry `i` along the channel axis.
    pub fn of(&self, i: usize) -> f32 {
        self.factors[i / self.run]
    }

    /// Writes the scaled values of a tensor of `shape`, in row-major order, to `out`.
    pub fn apply(&self, shape: &[usize], values: &[f32], out: &mut Vec<f32>) {
        let inner = shape.iter().skip(self.axis + 1).product::<usize>();
        let parts = values.chunks((inner * self.run).max(1)).zip(self.factors.iter().cycle());
        out.clear();
        parts.for_each(|(part, by)| out.extend(part.iter().map(|value| value * by)));
    }
}
