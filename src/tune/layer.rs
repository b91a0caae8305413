//! A node with a constant weight as a matrix product: patches of the input times rows of the weight.

use crate::engine::Value;
use crate::onnx::node;
use crate::onnx::proto::NodeProto;

/// Conv, Gemm or MatMul over one group of channels at a time: `y[p, o] = sum_k patch[p, k] * row[o, k]`,
/// with `p` over all positions, `o` over the group's output channels and `k` over its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    kind: Kind,
    /// Output channels of all groups.
    pub n_out: usize,
    /// Weights per output channel.
    pub n_in: usize,
    /// Groups of channels.
    pub groups: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// Weight `[out, in / groups, kernel…]`; two spatial axes (one axis counts as `[1, n]`).
    Conv { kernel: [usize; 2], strides: [usize; 2], pads: [isize; 2], dilations: [usize; 2] },
    /// Weight `[in, out]`, or `[out, in]` where transposed.
    Product { transposed: bool },
}

fn ints(node: &NodeProto, name: &str) -> Option<Vec<i64>> {
    node::attribute(node, name).map(|attribute| attribute.ints.clone())
}

/// The two spatial values of an attribute: `default` where it is absent, `[default, n]` for one axis.
fn pair(values: Option<Vec<i64>>, default: i64) -> Option<[i64; 2]> {
    match values.as_deref() {
        None | Some([]) => Some([default, default]),
        Some([n]) => Some([default, *n]),
        Some([h, w]) => Some([*h, *w]),
        _ => None,
    }
}

impl Layer {
    /// The node as a matrix product, for an input like `input` and a weight of shape `weight` at its
    /// second place; `None` for what is none: other operators, three spatial axes, a transposed or
    /// scaled Gemm.
    pub fn of(node: &NodeProto, weight: &[usize], input: &Value) -> Option<Layer> {
        match (node.op_type(), weight) {
            ("Conv", [n_out, per_group, spatial @ ..]) => {
                Layer::conv(node, (*n_out, *per_group), spatial, input.shape())
            }
            ("Gemm", &[a, b]) => {
                if node::int(node, "transA", 0) != 0 || node::is_scaled(node) {
                    return None;
                }
                let transposed = node::output_axis(node, 1) == 0;
                let (n_in, n_out) = if transposed { (b, a) } else { (a, b) };
                Some(Layer { kind: Kind::Product { transposed }, n_out, n_in, groups: 1 })
            }
            ("MatMul", &[n_in, n_out]) if input.shape().len() >= 2 => {
                Some(Layer { kind: Kind::Product { transposed: false }, n_out, n_in, groups: 1 })
            }
            _ => None,
        }
    }

    fn conv(
        node: &NodeProto,
        (n_out, per_group): (usize, usize),
        spatial: &[usize],
        input: &[usize],
    ) -> Option<Layer> {
        let kernel = match *spatial {
            [w] => [1, w],
            [h, w] => [h, w],
            _ => return None,
        };
        let size = match *input {
            [_, _, w] => [1, w],
            [_, _, h, w] => [h, w],
            _ => return None,
        };
        let unsigned =
            |values: [i64; 2]| Some([values[0].try_into().ok()?, values[1].try_into().ok()?]);
        let strides: [usize; 2] = unsigned(pair(ints(node, "strides"), 1)?)?;
        let dilations: [usize; 2] = unsigned(pair(ints(node, "dilations"), 1)?)?;
        let groups = usize::try_from(node::int(node, "group", 1)).ok()?;
        let auto_pad = node::attribute(node, "auto_pad").map_or(&b""[..], |attr| attr.s());
        let mut pads = [0isize; 2];
        match auto_pad {
            b"" | b"NOTSET" => {
                // Only the padding before the first position matters: the output says where to stop.
                let declared = ints(node, "pads").unwrap_or_default();
                pads = match declared[..] {
                    [] => [0, 0],
                    [left, _] => [0, left as isize],
                    [top, left, _, _] => [top as isize, left as isize],
                    _ => return None,
                };
            }
            b"VALID" => {}
            same => {
                for axis in 0..2 {
                    let reach = (kernel[axis] - 1) * dilations[axis] + 1;
                    let n_positions = size[axis].div_ceil(strides[axis].max(1));
                    let total = (n_positions.saturating_sub(1) * strides[axis] + reach)
                        .saturating_sub(size[axis]);
                    let before = if same == b"SAME_LOWER" { total.div_ceil(2) } else { total / 2 };
                    pads[axis] = before as isize;
                }
            }
        }
        let divides = groups > 0 && n_out % groups == 0 && input[1] == per_group * groups;
        let n_in = per_group * kernel[0] * kernel[1];
        let kind = Kind::Conv { kernel, strides, pads, dilations };
        (divides && n_in > 0 && n_out > 0).then_some(Layer { kind, n_out, n_in, groups })
    }

    /// The axis of the weight that counts output channels.
    pub fn out_axis(&self) -> usize {
        match self.kind {
            Kind::Conv { .. } | Kind::Product { transposed: true } => 0,
            Kind::Product { transposed: false } => 1,
        }
    }

    /// Position in the weight of row `o`, column `k`.
    pub fn at(&self, o: usize, k: usize) -> usize {
        match self.kind {
            Kind::Product { transposed: false } => k * self.n_out + o,
            _ => o * self.n_in + k,
        }
    }

    /// Positions of one sample's output `y`.
    pub fn n_positions(&self, y: &Value) -> usize {
        y.shape().iter().product::<usize>() / self.n_out.max(1)
    }

    /// Where the output holds channel `o` of position `p`.
    pub fn out_at(&self, y: &Value, o: usize, p: usize) -> usize {
        match self.kind {
            Kind::Product { .. } => p * self.n_out + o,
            Kind::Conv { .. } => {
                let area: usize = y.shape()[2..].iter().product();
                (p / area * self.n_out + o) * area + p % area
            }
        }
    }

    /// The patches of group `group` at the positions `positions` of the output `y`, row by row:
    /// `[positions, n_in]`.
    pub fn patches(&self, x: &Value, y: &Value, group: usize, positions: &[usize]) -> Vec<f32> {
        let Some(values) = x.f32s() else { return Vec::new() };
        let mut patches = Vec::with_capacity(positions.len() * self.n_in);
        let Kind::Conv { kernel, strides, pads, dilations } = self.kind else {
            for &p in positions {
                patches.extend_from_slice(&values[p * self.n_in..(p + 1) * self.n_in]);
            }
            return patches;
        };
        let two = |shape: &[usize]| match *shape {
            [_, _, w] => [1, w],
            [.., h, w] => [h, w],
            _ => [1, 1],
        };
        let ([height, width], [_, out_width]) = (two(x.shape()), two(y.shape()));
        let out_area: usize = y.shape()[2..].iter().product();
        let per_group = self.n_in / (kernel[0] * kernel[1]);
        let channels = per_group * self.groups;
        for &p in positions {
            let (image, at) = (p / out_area, p % out_area);
            let top = (at / out_width * strides[0]) as isize - pads[0];
            let left = (at % out_width * strides[1]) as isize - pads[1];
            for channel in group * per_group..(group + 1) * per_group {
                let plane = (image * channels + channel) * height * width;
                for i in 0..kernel[0] {
                    let row = top + (i * dilations[0]) as isize;
                    let inside = row >= 0 && (row as usize) < height;
                    for j in 0..kernel[1] {
                        let column = left + (j * dilations[1]) as isize;
                        let hit = inside && column >= 0 && (column as usize) < width;
                        patches.push(match hit {
                            true => values[plane + row as usize * width + column as usize],
                            false => 0.0,
                        });
                    }
                }
            }
        }
        patches
    }
}
