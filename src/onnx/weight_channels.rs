//! The output and the input channel of each value of a weight.

use super::edit::Entries;
use super::node;
use super::proto::NodeProto;

/// The channels of a constant weight at a node's second input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightChannels {
    /// Number of output channels.
    pub n_out: usize,
    /// Number of input channels.
    pub n_in: usize,
    /// Number of groups of channels.
    pub groups: usize,
    /// Number of values per pair of output and input channel.
    pub area: usize,
    /// The output channel of each value of the weight.
    pub outputs: Entries,
    /// The input channel of each value of the weight.
    pub inputs: Entries,
}

impl WeightChannels {
    /// Returns the channels of a node's weight with the shape `weight`; `None` for other operators and ranks.
    pub fn of(node: &NodeProto, weight: &[usize]) -> Option<WeightChannels> {
        let groups = usize::try_from(node::int(node, "group", 1)).ok().filter(|&n| n > 0)?;
        // The weight is a matrix `[rows, columns]` with `area` values per entry. Each group has columns of its own.
        let (rows, columns, area) = match (node.op_type(), weight) {
            ("Conv" | "ConvTranspose", [rows, columns, kernel @ ..]) if !kernel.is_empty() => {
                (*rows, *columns, kernel.iter().product::<usize>())
            }
            ("Gemm" | "MatMul", &[rows, columns]) => (rows, columns, 1),
            _ => return None,
        };
        let groups = if weight.len() == 2 { 1 } else { groups };
        let of_rows = Entries::of_axis(columns * area, rows);
        let of_columns = Entries::of_groups(area, columns, rows / groups * columns * area);
        // In a Gemm with `transB`, as in a Conv, rows are output channels.
        let turned = node.op_type() == "Gemm" && node::int(node, "transB", 0) != 0;
        let (n_out, n_in, outputs, inputs) = match turned || node.op_type() == "Conv" {
            true => (rows, columns * groups, of_rows, of_columns),
            false => (columns * groups, rows, of_columns, of_rows),
        };
        let divides = n_out.is_multiple_of(groups) && n_in.is_multiple_of(groups);
        let some = divides && n_out > 0 && n_in > 0 && area > 0;
        some.then_some(WeightChannels { n_out, n_in, groups, area, outputs, inputs })
    }

    /// Returns the channels of `n` factors, one per channel, like a depthwise convolution with one value per channel.
    pub fn diagonal(n: usize) -> WeightChannels {
        let each = Entries::of_axis(1, n);
        WeightChannels { n_out: n, n_in: n, groups: n, area: 1, outputs: each, inputs: each }
    }

    /// Returns the number of input channels per group.
    pub fn n_in_per_group(&self) -> usize {
        self.n_in / self.groups
    }

    /// Returns the number of output channels per group.
    pub fn n_out_per_group(&self) -> usize {
        self.n_out / self.groups
    }

    /// Returns the output and the input channel of the weight's value at row-major position `i`.
    pub fn ends(&self, i: usize) -> (usize, usize) {
        (self.outputs.of(i), self.inputs.of(i))
    }
}
