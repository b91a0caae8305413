//! Which output and which input channel a value of a weight connects.

use crate::onnx::node;
use crate::onnx::proto::NodeProto;

/// A node that multiplies its first input by the constant weight at its second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    kind: Kind,
    /// Output channels.
    pub n_out: usize,
    /// Input channels.
    pub n_in: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Values per pair of an output and an input channel.
    pub area: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Weight `[out, in / groups, kernel…]`.
    Conv,
    /// Weight `[in, out / groups, kernel…]`.
    ConvTranspose,
    /// Weight `[in, out]`.
    Product,
    /// Weight `[out, in]`.
    Transposed,
    /// One factor per channel.
    Diagonal,
}

impl Linear {
    /// The node with a weight of this shape; `None` for other operators and weights of other ranks.
    pub fn of(node: &NodeProto, weight: &[usize]) -> Option<Linear> {
        let groups = usize::try_from(node::int(node, "group", 1)).ok().filter(|&n| n > 0)?;
        let linear = match (node.op_type(), weight) {
            ("Conv", [n_out, per_group, kernel @ ..]) if !kernel.is_empty() => {
                let (area, n_in) = (kernel.iter().product(), per_group * groups);
                Linear { kind: Kind::Conv, n_out: *n_out, n_in, groups, area }
            }
            ("ConvTranspose", [n_in, per_group, kernel @ ..]) if !kernel.is_empty() => {
                let (area, n_out) = (kernel.iter().product(), per_group * groups);
                Linear { kind: Kind::ConvTranspose, n_out, n_in: *n_in, groups, area }
            }
            ("Gemm", &[n_out, n_in]) if node::int(node, "transB", 0) != 0 => {
                Linear { kind: Kind::Transposed, n_out, n_in, groups: 1, area: 1 }
            }
            ("Gemm" | "MatMul", &[n_in, n_out]) => {
                Linear { kind: Kind::Product, n_out, n_in, groups: 1, area: 1 }
            }
            _ => return None,
        };
        let divides = linear.n_out.is_multiple_of(groups) && linear.n_in.is_multiple_of(groups);
        (divides && linear.n_out > 0 && linear.n_in > 0 && linear.area > 0).then_some(linear)
    }

    /// A factor per channel: a depthwise convolution of one value.
    pub fn diagonal(n: usize) -> Linear {
        Linear { kind: Kind::Diagonal, n_out: n, n_in: n, groups: n, area: 1 }
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
        let (n_in, n_out) = (self.n_in_per_group(), self.n_out_per_group());
        let pair = i / self.area;
        match self.kind {
            Kind::Conv => {
                let out = pair / n_in;
                (out, out / n_out * n_in + pair % n_in)
            }
            Kind::ConvTranspose => {
                let from = pair / n_out;
                (from / n_in * n_out + pair % n_out, from)
            }
            Kind::Product => (i % self.n_out, i / self.n_out),
            Kind::Transposed => (i / self.n_in, i % self.n_in),
            Kind::Diagonal => (i, i),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::AttributeProto;

    fn node(op_type: &str, attributes: &[(&str, i64)]) -> NodeProto {
        let attribute = attributes.iter().map(|&(name, i)| AttributeProto {
            name: Some(name.into()),
            i: Some(i),
            ..Default::default()
        });
        let attribute = attribute.collect();
        NodeProto { op_type: Some(op_type.into()), attribute, ..Default::default() }
    }

    #[test]
    fn values_of_a_weight_know_their_channels() {
        let grouped = Linear::of(&node("Conv", &[("group", 2)]), &[4, 3, 1, 2]).unwrap();
        assert_eq!((grouped.n_in, grouped.n_out, grouped.area), (6, 4, 2));
        assert_eq!(grouped.ends(0), (0, 0));
        assert_eq!(grouped.ends(5), (0, 2));
        // The third row is the first of the second group, which reads channels 3 to 5.
        assert_eq!(grouped.ends(12), (2, 3));
        let transposed = Linear::of(&node("ConvTranspose", &[("group", 2)]), &[4, 3, 2]).unwrap();
        assert_eq!((transposed.n_in, transposed.n_out), (4, 6));
        assert_eq!(transposed.ends(2 * 3 * 2), (3, 2));
        assert_eq!(Linear::of(&node("Gemm", &[]), &[3, 5]).unwrap().ends(7), (2, 1));
        let flipped = Linear::of(&node("Gemm", &[("transB", 1)]), &[5, 3]).unwrap();
        assert_eq!((flipped.n_in, flipped.ends(7)), (3, (2, 1)));
        assert_eq!(Linear::of(&node("MatMul", &[]), &[2, 3, 4]), None);
        assert_eq!(Linear::of(&node("Conv", &[("group", 3)]), &[4, 1, 1]), None);
    }
}
