//! The rule about products that are divided by sums of their own weights, as in linear attention.

use super::Draft;
use super::trace::MOVES;
use crate::scheme::RuleCall;

/// Operators between a product and the division, besides [`MOVES`] and arithmetic with a constant.
const BETWEEN: &[&str] = &["Clip", "Cast", "Concat", "Pad"];

/// Leaves the products of linear attention float. A numerator and its denominator often are rows of one product, which
/// differ so much that one grid of 8 bits has few steps for one of them. Source: Katharopoulos et al., arXiv:2006.16236.
pub(super) fn skip_linear_attention(draft: &mut Draft, _: &RuleCall) {
    for node_idx in 0..draft.graph.node.len() {
        let Some([numerator, denominator]) = draft.ratio(node_idx) else { continue };
        let Some(product) = draft.product_behind(numerator) else { continue };
        let divisor = draft.sum_behind(denominator);
        if divisor.is_none() {
            continue;
        }
        let operands = draft.graph.node[product].input.iter().filter_map(|input| draft.product_behind(input));
        for product in operands.chain([product]).chain(divisor.flatten()).collect::<Vec<_>>() {
            draft.leave_float(product, "a product of linear attention, divided by a sum");
        }
    }
}

impl<'a> Draft<'a> {
    /// Returns numerator and denominator of a Div, or of a Mul by a reciprocal, if both are activations.
    fn ratio(&self, node_idx: usize) -> Option<[&'a str; 2]> {
        let node = &self.graph.node[node_idx];
        let [a, b] = node.input.as_slice() else { return None };
        if self.activation_inputs(node_idx).len() != 2 {
            return None;
        }
        match self.op(node_idx) {
            "Div" => Some([a, b]),
            "Mul" => [[a, b], [b, a]].into_iter().find_map(|[factor, reciprocal]| {
                let inverse = self.node_behind(reciprocal)?;
                let inputs = self.activation_inputs(inverse);
                let is_inverse = match self.op(inverse) {
                    "Reciprocal" => true,
                    "Div" => inputs == [1],
                    _ => false,
                };
                let divisor = &self.graph.node[inverse].input[*inputs.first()?];
                is_inverse.then_some([factor.as_str(), divisor.as_str()])
            }),
            _ => None,
        }
    }

    /// Returns the first node in front of a tensor that neither moves values nor computes with a constant.
    fn node_behind(&self, mut tensor: &'a str) -> Option<usize> {
        loop {
            let node_idx = self.index.producer_idx(tensor)?;
            let is_arithmetic = matches!(self.op(node_idx), "Add" | "Sub" | "Mul" | "Max" | "Div");
            let is_passed = MOVES.contains(&self.op(node_idx)) || BETWEEN.contains(&self.op(node_idx)) || is_arithmetic;
            match self.activation_inputs(node_idx).as_slice() {
                [input] if is_passed && !(self.op(node_idx) == "Div" && *input == 1) => {
                    tensor = &self.graph.node[node_idx].input[*input];
                }
                _ => return Some(node_idx),
            }
        }
    }

    /// Returns the product of two activations in front of a tensor.
    fn product_behind(&self, tensor: &'a str) -> Option<usize> {
        let product = self.node_behind(tensor)?;
        (self.op(product) == "MatMul" && self.activation_inputs(product).len() == 2).then_some(product)
    }

    /// Whether a tensor comes from a product of two activations or a sum; returns the product, if it is one.
    fn sum_behind(&self, tensor: &'a str) -> Option<Option<usize>> {
        let sum = self.node_behind(tensor)?;
        let product = self.product_behind(tensor);
        (product.is_some() || self.op(sum) == "ReduceSum").then_some(product)
    }
}
