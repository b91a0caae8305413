//! Weights for kernels that add two products in 16 bits.
//!
//! CPUs with AVX2 or AVX-512 and no VNNI multiply unsigned by signed bytes with `vpmaddubsw`, which adds the products
//! of two neighbors and saturates at 16 bits. With activations up to 255 it cannot saturate as long as the two weights
//! add up to at most 128: most channels of a real network keep all 8 bits, and only those with a heavier pair need a
//! wider scale. Neighbors are adjacent in the kernels' memory layout: input channels first, then kernel positions.
//! Depthwise convolutions with one output channel per group have their own kernels, which add in 32 bits.

use crate::onnx::node;
use crate::onnx::proto::NodeProto;

/// The weights of a row that are multiplied in pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs {
    /// Input channels of a row.
    channels: usize,
    /// Kernel positions.
    spatial: usize,
    /// Largest sum of two neighbors with the same sign, in integer steps.
    pub limit: i32,
}

impl Pairs {
    /// Returns the pairs in each output channel of a weight with `shape` at an input of `node`; `None` if the kernel
    /// does not add products in 16 bits, or `limit` is `None`.
    pub fn of(node: &NodeProto, input_idx: usize, shape: &[usize], limit: Option<u16>) -> Option<Pairs> {
        let limit = i32::from(limit?);
        match (node.op_type(), shape) {
            ("Conv", [n, 1, ..]) if *n > 1 && node::int(node, "group", 1) == *n as i64 => None,
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

    /// Returns the positions of the neighbors of weight `k` of a row, in ONNX order (channel, then kernel position).
    /// With an odd number of channels a pair may begin at any channel, so both neighbors count.
    pub fn neighbours(&self, k: usize) -> impl Iterator<Item = usize> + use<> {
        let Pairs { channels, spatial, .. } = *self;
        let n = channels * spatial;
        let is_matrix = spatial <= 1;
        let at = if is_matrix { k } else { k % spatial * channels + k / spatial };
        let even = at.is_multiple_of(2);
        let both = !channels.is_multiple_of(2);
        let before = (at > 0 && (both || !even)).then(|| at - 1);
        let after = (at + 1 < n && (both || even)).then_some(at + 1);
        before
            .into_iter()
            .chain(after)
            .map(move |at| if is_matrix { at } else { at % channels * spatial + at / channels })
    }

    /// Returns the smallest and the largest integer that weight `k` of the row `q` may have beside its neighbors; 0 is
    /// always allowed.
    pub fn bounds(&self, q: impl Fn(usize) -> i32, k: usize) -> (i32, i32) {
        let mut bounds = (-self.limit, self.limit);
        for neighbour in self.neighbours(k) {
            let beside = q(neighbour);
            bounds = (bounds.0.max(-self.limit - beside.min(0)), bounds.1.min(self.limit - beside.max(0)));
        }
        (bounds.0.min(0), bounds.1.max(0))
    }

    /// Returns the largest sum of a pair in a row of integers, divided by the limit.
    pub fn load(&self, q: &[i32]) -> f64 {
        let Pairs { channels, spatial, .. } = *self;
        let of_position = |position: usize| q.iter().skip(position).step_by(spatial);
        let ordered: Vec<i32> = (0..spatial).flat_map(of_position).copied().collect();
        let sum = |pair: &[i32]| (pair[0].max(0) + pair[1].max(0)).max(-(pair[0].min(0) + pair[1].min(0)));
        let heaviest = match channels.is_multiple_of(2) {
            true => ordered.chunks_exact(2).map(sum).max(),
            false => ordered.windows(2).map(sum).max(),
        };
        let heaviest = heaviest.unwrap_or(0);
        f64::from(heaviest) / f64::from(self.limit.max(1))
    }
}
