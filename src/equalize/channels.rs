//! Positions of a group's channels in tensors, and how operators move them.

use crate::onnx::node;
use crate::onnx::proto::NodeProto;
use crate::quant::ChannelScaling;

/// The position of a group's channels in a tensor. Entry `i` along `axis` belongs to channel `first + i / run` of the
/// group. A Flatten turns planes into runs of entries. The inputs of a Concat start at different channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// The axis of the channels.
    pub axis: usize,
    /// Number of adjacent entries per channel.
    pub run: usize,
    /// The group's channel at the first entry.
    pub first: usize,
    /// Number of channels of the group that the tensor has.
    pub n: usize,
}

impl Channels {
    /// Returns the group's channel at entry `i` along the axis.
    pub fn of(self, i: usize) -> usize {
        self.first + i / self.run
    }

    /// Returns the number of entries along the axis.
    pub fn n_entries(self) -> usize {
        self.n * self.run
    }

    /// Returns the scale of each entry along the axis, from `scales`, one per channel of the group.
    pub fn by_entry(self, scales: &[f32]) -> Vec<f32> {
        (0..self.n_entries()).map(|i| scales[self.of(i)]).collect()
    }

    /// Whether a tensor of this shape can have these channels.
    pub fn fits(self, shape: &[usize]) -> bool {
        shape.get(self.axis) == Some(&self.n_entries())
    }

    /// Returns the range of the group's channels that the tensor has.
    pub fn range(self) -> std::ops::Range<usize> {
        self.first..self.first + self.n
    }

    /// Returns the factors on a tensor with these channels if `scales`, one per channel of the group, divide it.
    pub fn scaling(self, scales: &[f32]) -> ChannelScaling {
        let by = scales[self.range()].iter().map(|factor| factor.recip()).collect();
        ChannelScaling::new(self.axis, self.run, by)
    }

    /// Returns the position after a reshape from the shape `from` to the shape `to`: an axis that holds the channels in
    /// order, in runs. `None` if there is no such axis.
    fn reshaped(self, from: &[usize], to: &[usize]) -> Option<Channels> {
        let period = from[self.axis + 1..].iter().product::<usize>() * self.run;
        to.iter().enumerate().find_map(|(axis, &len)| {
            let inner: usize = to[axis + 1..].iter().product();
            let fits = inner > 0 && period.is_multiple_of(inner) && len == self.n * period / inner;
            fits.then(|| Channels { axis, run: period / inner, ..self })
        })
    }
}

/// A direction through a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowDirection {
    /// From the input to the output.
    Forward,
    /// From the output to the input.
    Backward,
}

/// Returns the position of the channels at the other end of a node that only moves, pools or rectifies values, so that
/// positive channel scales pass. `None` if the operator mixes channels or depends on their magnitude.
///
/// `near` is the shape at the known end, `far` the shape at the other end. `axes` are the axes of a reduction.
pub fn channels_beyond(
    node: &NodeProto,
    axes: &[i64],
    channels: Channels,
    near: &[usize],
    far: &[usize],
    direction: FlowDirection,
) -> Option<Channels> {
    if !channels.fits(near) {
        return None;
    }
    let kept = (near.len() == far.len() && channels.fits(far)).then_some(channels);
    match node.op_type() {
        "Relu" | "LeakyRelu" | "PRelu" | "Identity" | "Dropout" | "Clip" => kept,
        "MaxPool" | "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool" => kept.filter(|kept| kept.axis == 1),
        "Pad" => kept,
        "ReduceMean" | "ReduceMax" | "ReduceSum" => {
            let (input, output) = if direction == FlowDirection::Forward { (near, far) } else { (far, near) };
            let reduced =
                |axis: usize| axes.is_empty() || axes.iter().any(|&a| node::axis_position(a, input.len()) == axis);
            let one = |(axis, &dim): (usize, &usize)| if reduced(axis) { 1 } else { dim };
            let with_ones: Vec<usize> = input.iter().enumerate().map(one).collect();
            match direction {
                FlowDirection::Forward if channels.fits(&with_ones) => channels.reshaped(&with_ones, output),
                FlowDirection::Forward => None,
                FlowDirection::Backward => {
                    let moved = channels.reshaped(output, &with_ones);
                    moved.filter(|moved| moved.fits(input))
                }
            }
        }
        "Upsample" => kept.filter(|kept| kept.axis == 1),
        "Resize" => {
            let mode = node::text(node, "coordinate_transformation_mode", "half_pixel");
            kept.filter(|kept| kept.axis == 1 && mode != "tf_crop_and_resize")
        }
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => channels.reshaped(near, far),
        "Transpose" => {
            let perm = node::attribute(node, "perm").map(|attribute| attribute.ints.clone());
            let perm = perm.unwrap_or_else(|| (0..near.len() as i64).rev().collect());
            let axis = match direction {
                FlowDirection::Forward => perm.iter().position(|&from| from as usize == channels.axis)?,
                FlowDirection::Backward => usize::try_from(*perm.get(channels.axis)?).ok()?,
            };
            Some(Channels { axis, ..channels }).filter(|moved| moved.fits(far))
        }
        _ => None,
    }
}
