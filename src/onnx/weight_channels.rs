//! The output and the input channel of each value of a weight.

use super::edit::Entries;
use super::node;
use super::proto::NodeProto;

/// The channels of a constant weight at a node's second input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightChannels {
    /// Output channels.
    pub n_out: usize,
    /// Input channels.
    pub n_in: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Values per pair of output and input channel.
    pub area: usize,
    /// The output channel of each value of the weight.
    pub outputs: Entries,
    /// The input channel of each value of the weight.
    pub inputs: Entries,
}

impl WeightChannels {
    /// The weight of a node, with this shape; `None` for other operators and ranks.
    pub fn of(node: &NodeProto, weight: &[usize]) -> Option<WeightChannels> {
        let groups = usize::try_from(node::int(node, "group", 1)).ok().filter(|&n| n > 0)?;
        // The weight is `[rows, columns]` with `area` values each; each group has its own columns.
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
        // Rows are outputs.
        let turned = node.op_type() == "Gemm" && node::int(node, "transB", 0) != 0;
        let (n_out, n_in, outputs, inputs) = match turned || node.op_type() == "Conv" {
            true => (rows, columns * groups, of_rows, of_columns),
            false => (columns * groups, rows, of_columns, of_rows),
        };
        let divides = n_out.is_multiple_of(groups) && n_in.is_multiple_of(groups);
        let some = divides && n_out > 0 && n_in > 0 && area > 0;
        some.then_some(WeightChannels { n_out, n_in, groups, area, outputs, inputs })
    }

    /// One factor per channel, like a depthwise convolution with one value.
    pub fn diagonal(n: usize) -> WeightChannels {
        let each = Entries::of_axis(1, n);
        WeightChannels { n_out: n, n_in: n, groups: n, area: 1, outputs: each, inputs: each }
    }

    /// Input channels per group.
    pub fn n_in_per_group(&self) -> usize {
        self.n_in / self.groups
    }

    /// Output channels per group.
    pub fn n_out_per_group(&self) -> usize {
        self.n_out / self.groups
    }

    /// Output and input channel of the weight's value `i`, in row-major order.
    pub fn ends(&self, i: usize) -> (usize, usize) {
        (self.outputs.of(i), self.inputs.of(i))
    }
}
