//! Activation functions that the range of the next tensor can replace.

use crate::quant::{Codes, QuantParams};

/// A Relu or Clip before a quantized tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldableClip {
    /// Position of the node.
    pub node: usize,
    /// The tensor that it reads; the node is its only reader.
    pub input: String,
    /// Lower bound; `None` for none.
    pub min: Option<f32>,
    /// Upper bound; `None` for none.
    pub max: Option<f32>,
}

impl FoldableClip {
    /// Whether quantizing without the node gives the same integers for every value: its bounds are the ends of the
    /// grid. Quantizing is monotonic, so a value beyond a bound becomes that end with and without the node, and a value
    /// between the bounds is the same.
    pub fn has_no_effect_on(&self, params: &QuantParams) -> bool {
        params.codes == Codes::Affine
            && self.min.is_none_or(|min| !min.is_nan() && params.quantize(min) == params.q_min)
            && self.max.is_none_or(|max| !max.is_nan() && params.quantize(max) == params.q_max)
    }
}
