//! A node with a constant weight as a matrix product: patches of the input times rows of the weight.

use crate::engine::Value;
use crate::onnx::node;
use crate::onnx::proto::NodeProto;

/// Conv, Gemm or MatMul over one group of channels at a time: `y[p, o] = sum_k patch[p, k] * row[o, k]`,
/// with `p` over all positions, `o` over the group's output channels and `k` over its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerProduct {
    kind: ProductKind,
    /// Output channels of all groups.
    pub n_out: usize,
    /// Weights per output channel.
    pub n_in: usize,
    /// Groups of channels.
    pub groups: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum ProductKind {
    /// Weight `[out, in / groups, kernel…]`.
    Conv { window: Window },
    /// Weight `[in, out / groups, kernel…]`.
    ConvTranspose { window: Window },
    /// Weight `[in, out]`, or `[out, in]` where transposed.
    Product { transposed: bool },
}

/// Kernel parameters over two spatial axes (one axis counts as `[1, n]`).
#[derive(Debug, Clone, PartialEq)]
struct Window {
    kernel: [usize; 2],
    strides: [usize; 2],
    /// Padding before the first position.
    pads: [isize; 2],
    dilations: [usize; 2],
}

fn ints(node: &NodeProto, name: &str) -> Option<Vec<i64>> {
    node::attribute(node, name).map(|attribute| attribute.ints.clone())
}

/// Returns the two spatial values of an attribute: `default` where it is absent, `[default, n]` for one axis.
fn pair(values: Option<Vec<i64>>, default: i64) -> Option<[i64; 2]> {
    match values.as_deref() {
        None | Some([]) => Some([default, default]),
        Some([n]) => Some([default, *n]),
        Some([h, w]) => Some([*h, *w]),
        _ => None,
    }
}

/// Returns the sizes of two spatial axes; one axis counts as `[1, n]`.
fn two(spatial: &[usize]) -> Option<[usize; 2]> {
    match *spatial {
        [w] => Some([1, w]),
        [h, w] => Some([h, w]),
        _ => None,
    }
}

/// Reads the strides and dilations; `None` for three axes, or a value that is not positive.
fn steps(node: &NodeProto) -> Option<([usize; 2], [usize; 2])> {
    let unsigned = |values: [i64; 2]| Some([values[0].try_into().ok()?, values[1].try_into().ok()?]);
    let strides: [usize; 2] = unsigned(pair(ints(node, "strides"), 1)?)?;
    let dilations: [usize; 2] = unsigned(pair(ints(node, "dilations"), 1)?)?;
    (strides.iter().chain(&dilations).all(|n| *n > 0)).then_some((strides, dilations))
}

/// Returns the padding before the first position. The padding at the end is implied by the output's shape.
fn declared_pads(node: &NodeProto) -> Option<[isize; 2]> {
    match ints(node, "pads").unwrap_or_default()[..] {
        [] => Some([0, 0]),
        [left, _] => Some([0, left as isize]),
        [top, left, _, _] => Some([top as isize, left as isize]),
        _ => None,
    }
}

impl LayerProduct {
    /// Returns the node as a matrix product, for an input like `input` and a second input (the weight) of shape
    /// `weight`. `None` for other operators, three spatial axes, a transposed or scaled Gemm, and a ConvTranspose with
    /// implicit padding.
    pub fn of(node: &NodeProto, weight: &[usize], input: &Value) -> Option<LayerProduct> {
        match (node.op_type(), weight) {
            ("Conv" | "ConvTranspose", &[first, per_group, ref spatial @ ..]) => {
                LayerProduct::convolution(node, [first, per_group], spatial, input.shape())
            }
            ("Gemm", &[a, b]) => {
                if node::int(node, "transA", 0) != 0 || node::is_scaled(node) {
                    return None;
                }
                let transposed = node::output_axis(node, 1) == 0;
                let (n_in, n_out) = if transposed { (b, a) } else { (a, b) };
                Some(LayerProduct { kind: ProductKind::Product { transposed }, n_out, n_in, groups: 1 })
            }
            ("MatMul", &[n_in, n_out]) if input.shape().len() >= 2 => {
                Some(LayerProduct { kind: ProductKind::Product { transposed: false }, n_out, n_in, groups: 1 })
            }
            _ => None,
        }
    }

    /// Describes a convolution with a weight of shape `[first, per_group, spatial…]`: output channels and input
    /// channels per group, or input channels and output channels per group where it is transposed.
    fn convolution(
        node: &NodeProto,
        [first, per_group]: [usize; 2],
        spatial: &[usize],
        input: &[usize],
    ) -> Option<LayerProduct> {
        let transposed = node.op_type() == "ConvTranspose";
        let (kernel, size) = (two(spatial)?, two(input.get(2..)?)?);
        let (strides, dilations) = steps(node)?;
        let groups = usize::try_from(node::int(node, "group", 1)).ok().filter(|&n| n > 0)?;
        let mut pads = [0isize; 2];
        match node::attribute(node, "auto_pad").map_or(&b""[..], |attr| attr.s()) {
            b"" | b"NOTSET" => pads = declared_pads(node)?,
            b"VALID" => {}
            _ if transposed => return None,
            same => {
                for axis in 0..2 {
                    let reach = (kernel[axis] - 1) * dilations[axis] + 1;
                    let n_positions = size[axis].div_ceil(strides[axis].max(1));
                    let total = (n_positions.saturating_sub(1) * strides[axis] + reach).saturating_sub(size[axis]);
                    let before = if same == b"SAME_LOWER" { total.div_ceil(2) } else { total / 2 };
                    pads[axis] = before as isize;
                }
            }
        }
        // `output_shape` sets the padding by rules of its own.
        if transposed && node::attribute(node, "output_shape").is_some() {
            return None;
        }
        let window = Window { kernel, strides, pads, dilations };
        let area = kernel[0] * kernel[1];
        let (kind, n_out, n_in, n_read) = match transposed {
            true => (ProductKind::ConvTranspose { window }, per_group * groups, first / groups * area, first),
            false => (ProductKind::Conv { window }, first, per_group * area, per_group * groups),
        };
        let fits = first % groups == 0 && input[1] == n_read && n_in > 0 && n_out > 0;
        fits.then_some(LayerProduct { kind, n_out, n_in, groups })
    }

    /// Returns the weight axis of output channels.
    pub fn out_axis(&self) -> usize {
        match self.kind {
            ProductKind::Conv { .. } | ProductKind::Product { transposed: true } => 0,
            ProductKind::ConvTranspose { .. } | ProductKind::Product { transposed: false } => 1,
        }
    }

    /// Returns the index into the weight of row `o`, column `k`.
    pub fn at(&self, o: usize, k: usize) -> usize {
        match &self.kind {
            ProductKind::Product { transposed: false } => k * self.n_out + o,
            ProductKind::ConvTranspose { window } => {
                let spatial: usize = window.kernel.iter().product();
                let per_group = self.n_out / self.groups;
                let channel = o / per_group * (self.n_in / spatial) + k / spatial;
                (channel * per_group + o % per_group) * spatial + k % spatial
            }
            _ => o * self.n_in + k,
        }
    }

    /// Returns the number of positions in one sample's output `y`.
    pub fn n_positions(&self, y: &Value) -> usize {
        y.shape().iter().product::<usize>() / self.n_out.max(1)
    }

    /// Returns the index into the output `y` of channel `o` at position `p`.
    pub fn out_at(&self, y: &Value, o: usize, p: usize) -> usize {
        match self.kind {
            ProductKind::Product { .. } => p * self.n_out + o,
            ProductKind::Conv { .. } | ProductKind::ConvTranspose { .. } => {
                let area: usize = y.shape()[2..].iter().product();
                (p / area * self.n_out + o) * area + p % area
            }
        }
    }

    /// Returns the patches of group `group` at the positions `positions` of the output `y`: `[positions, n_in]`,
    /// row-major.
    pub fn patches(&self, x: &Value, y: &Value, group: usize, positions: &[usize]) -> Vec<f32> {
        let Some(values) = x.f32s() else { return Vec::new() };
        let mut patches = Vec::with_capacity(positions.len() * self.n_in);
        let window = match &self.kind {
            ProductKind::Conv { window } | ProductKind::ConvTranspose { window } => window,
            ProductKind::Product { .. } => {
                for &p in positions {
                    patches.extend_from_slice(&values[p * self.n_in..(p + 1) * self.n_in]);
                }
                return patches;
            }
        };
        let (Some([height, width]), Some([_, out_width])) = (two(&x.shape()[2..]), two(&y.shape()[2..])) else {
            return Vec::new();
        };
        let transposed = matches!(self.kind, ProductKind::ConvTranspose { .. });
        let kernel = window.kernel;
        let source = |axis: usize, at: usize, tap: usize, size: usize| window.source(transposed, axis, at, tap, size);
        let out_area: usize = y.shape()[2..].iter().product();
        let per_group = self.n_in / (kernel[0] * kernel[1]);
        let channels = per_group * self.groups;
        for &p in positions {
            let (image, at) = (p / out_area, p % out_area);
            for channel in group * per_group..(group + 1) * per_group {
                let plane = (image * channels + channel) * height * width;
                for i in 0..kernel[0] {
                    let row = source(0, at / out_width, i, height);
                    for j in 0..kernel[1] {
                        let column = source(1, at % out_width, j, width);
                        let hit = row.zip(column);
                        patches.push(hit.map_or(0.0, |(row, column)| values[plane + row * width + column]));
                    }
                }
            }
        }
        patches
    }
}

impl Window {
    /// Returns the index on `axis` of the input, of length `size`, that the kernel's `tap` reads for the output index
    /// `at`. `None` in the padding, and between the positions of a transposed convolution.
    fn source(&self, transposed: bool, axis: usize, at: usize, tap: usize, size: usize) -> Option<usize> {
        let (stride, reach) = (self.strides[axis], (tap * self.dilations[axis]) as isize);
        let source = if transposed {
            let from = usize::try_from(at as isize + self.pads[axis] - reach).ok()?;
            from.is_multiple_of(stride).then_some(from / stride)?
        } else {
            usize::try_from((at * stride) as isize - self.pads[axis] + reach).ok()?
        };
        (source < size).then_some(source)
    }
}
