//! Activation functions whose effect lies in the grid behind them.

use crate::quant::{Codes, QuantParams};

/// A Relu or Clip in front of a quantized tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldableClip {
    /// Position of the node.
    pub node: usize,
    /// The tensor that it reads, which nothing else reads.
    pub input: String,
    /// Lower bound; `None` for none.
    pub min: Option<f32>,
    /// Upper bound; `None` for none.
    pub max: Option<f32>,
}

impl FoldableClip {
    /// Whether quantizing without the node gives the same integers for every value: its bounds are the
    /// ends of the grid. Quantizing never falls with its argument, so a value beyond a bound then
    /// becomes that end with the node and without it, and one between them is the same.
    pub fn has_no_effect_on(&self, params: &QuantParams) -> bool {
        params.codes == Codes::Affine
            && self.min.is_none_or(|min| !min.is_nan() && params.quantize(min) == params.q_min)
            && self.max.is_none_or(|max| !max.is_nan() && params.quantize(max) == params.q_max)
    }
}
