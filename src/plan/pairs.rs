//! Weights for kernels that add two products in 16 bits.
//!
//! CPUs with AVX2 or AVX-512 and no VNNI multiply unsigned by signed bytes with `vpmaddubsw`, which adds the
//! products of two neighbours and saturates at 16 bits. With activations up to 255 that cannot happen as
//! long as the two weights add up to no more than 128: most channels of a real network keep all 8 bits, and
//! only those with a heavier pair need a wider scale. Neighbours follow each other in the order in which
//! the kernels lie: input channels first, then the kernel's positions. Depthwise convolutions have kernels
//! of their own that add in 32 bits.

use crate::onnx::node;
use crate::onnx::proto::NodeProto;

/// Which weights of a row are multiplied side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs {
    /// Input channels of a row.
    channels: usize,
    /// Positions of the kernel.
    spatial: usize,
    /// Largest sum of two neighbours of one sign, in integer steps.
    pub limit: i32,
}

impl Pairs {
    /// The pairs of the weight of `shape` at an input of `node`, row by output channel; `None` where
    /// products are not added in 16 bits.
    pub fn of(node: &NodeProto, input_idx: usize, shape: &[usize], limit: Option<u16>) -> Option<Pairs> {
        let limit = i32::from(limit?);
        match (node.op_type(), shape) {
            ("Conv", [_, 1, ..]) => None,
            ("Conv", [_, channels, kernel @ ..]) => {
                Some(Pairs { channels: *channels, spatial: kernel.iter().product(), limit })
            }
            ("Gemm" | "MatMul", [_, _]) => {
                let axis = node::axis_position(node::reduction_axis(node, input_idx), 2);
                Some(Pairs { channels: shape[axis], spatial: 1, limit })
            }
            _ => None,
        }
    }

    /// The neighbours of weight `k` of a row, in ONNX order (channel, then position). With an odd number of
    /// channels pairs may begin at any of them, so both neighbours count.
    pub fn neighbours(&self, k: usize) -> impl Iterator<Item = usize> + use<> {
        let Pairs { channels, spatial, .. } = *self;
        let n = channels * spatial;
        let at = k % spatial.max(1) * channels + k / spatial.max(1);
        let even = at.is_multiple_of(2);
        let both = !channels.is_multiple_of(2);
        let before = (at > 0 && (both || !even)).then(|| at - 1);
        let after = (at + 1 < n && (both || even)).then_some(at + 1);
        before.into_iter().chain(after).map(move |at| at % channels * spatial + at / channels)
    }

    /// Bounds of weight `k` of the row `q`, given its neighbours; 0 is always inside.
    pub fn bounds(&self, q: impl Fn(usize) -> i32, k: usize) -> (i32, i32) {
        let mut bounds = (-self.limit, self.limit);
        for neighbour in self.neighbours(k) {
            let beside = q(neighbour);
            bounds = (bounds.0.max(-self.limit - beside.min(0)), bounds.1.min(self.limit - beside.max(0)));
        }
        (bounds.0.min(0), bounds.1.max(0))
    }

    /// The heaviest pair of a row of integers, as a share of the limit.
    pub fn load(&self, q: &[i32]) -> f64 {
        let pair = |k: usize| {
            let sums = self
                .neighbours(k)
                .map(move |other| (q[k].max(0) + q[other].max(0)).max(-(q[k].min(0) + q[other].min(0))));
            sums.max().unwrap_or(0)
        };
        let heaviest = (0..q.len()).map(pair).max().unwrap_or(0);
        f64::from(heaviest) / f64::from(self.limit.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conv(shape: &[usize]) -> Option<Pairs> {
        let node = NodeProto { op_type: Some("Conv".into()), ..Default::default() };
        Pairs::of(&node, 1, shape, Some(128))
    }

    #[test]
    fn neighbours_are_channels_of_one_position() {
        // Two channels, three positions: ONNX order is c0p0 c0p1 c0p2 c1p0 c1p1 c1p2.
        let pairs = conv(&[8, 2, 1, 3]).unwrap();
        assert_eq!(pairs.neighbours(0).collect::<Vec<_>>(), [3]);
        assert_eq!(pairs.neighbours(4).collect::<Vec<_>>(), [1]);
        // Three channels: c0 of the second position follows c2 of the first.
        let odd = conv(&[8, 3, 1, 2]).unwrap();
        assert_eq!(odd.neighbours(1).collect::<Vec<_>>(), [4, 3]);
        assert_eq!(conv(&[8, 1, 3, 3]), None);
    }

    #[test]
    fn bounds_keep_the_sum_of_a_pair_below_the_limit() {
        let pairs = conv(&[1, 2, 1, 1]).unwrap();
        assert_eq!(pairs.load(&[100, 60]), 1.25);
        assert_eq!(pairs.load(&[100, -100]), 100.0 / 128.0);
        assert_eq!(pairs.bounds(|_| 100, 1), (-128, 28));
        assert_eq!(pairs.bounds(|_| -127, 0), (-1, 128));
    }
}
