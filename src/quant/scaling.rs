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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_has_its_factor() {
        let scaling = ChannelScaling::new(1, 2, vec![0.5, 4.0]);
        let mut out = vec![9.0];
        scaling.apply(&[2, 4, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &mut out);
        assert_eq!(out, [0.5, 1.0, 12.0, 16.0, 2.5, 3.0, 28.0, 32.0]);
        assert_eq!((0..4).map(|i| scaling.of(i)).collect::<Vec<f32>>(), [0.5, 0.5, 4.0, 4.0]);
    }
}
