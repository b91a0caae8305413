//! Input values of a network.

use crate::engine::Value;

/// Values of a network's inputs, for some samples.
#[derive(Clone, Copy)]
pub struct Samples<'a> {
    /// Names of the inputs.
    pub names: &'a [String],
    /// One value per input, for each sample.
    pub values: &'a [Vec<Value>],
}

/// The tokens of a sample that are not padding.
pub struct TokenMask {
    /// `[batch, tokens]`.
    shape: Vec<usize>,
    kept: Vec<bool>,
}

impl TokenMask {
    /// Whether position `p` of a value with this shape is a token that is not padding; true for shapes without tokens.
    pub fn counts(&self, shape: &[usize], p: usize) -> bool {
        let is_of_tokens = shape.len() == 3 && shape[..2] == self.shape;
        !is_of_tokens || self.kept[p]
    }
}

impl<'a> Samples<'a> {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The batch size of the first input.
    pub fn batch(&self) -> usize {
        let first = self.values.first().and_then(|sample| sample.first());
        first.and_then(|value| value.shape().first().copied()).unwrap_or(1)
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The token mask of each sample, where an input is one: `[batch, tokens]`, of ones and zeros, with `mask` in its
    /// name.
    pub fn tokens(self) -> Option<Vec<TokenMask>> {
        let position = self.names.iter().position(|name| name.contains("mask"))?;
        let of_sample = |sample: &Vec<Value>| {
            let value = &sample[position];
            let values = value.to_f32s().ok()?;
            let is_mask = value.shape().len() == 2 && values.iter().all(|v| *v == 0.0 || *v == 1.0);
            let kept = values.iter().map(|v| *v == 1.0).collect();
            is_mask.then(|| TokenMask { shape: value.shape().to_vec(), kept })
        };
        self.values.iter().map(of_sample).collect()
    }

    /// The first `n` samples, or all where there are fewer.
    #[must_use]
    pub fn first(self, n: usize) -> Samples<'a> {
        Samples { values: &self.values[..n.min(self.values.len())], ..self }
    }
}
