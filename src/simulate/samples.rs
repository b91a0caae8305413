//! The values that networks are run on.

use crate::engine::Value;

/// Values of a network's inputs, for some samples.
#[derive(Clone, Copy)]
pub struct Samples<'a> {
    /// Names of the inputs.
    pub names: &'a [String],
    /// Per sample, a value for each of these.
    pub values: &'a [Vec<Value>],
}

impl<'a> Samples<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The batch of the first input.
    pub fn batch(&self) -> usize {
        let first = self.values.first().and_then(|sample| sample.first());
        first.and_then(|value| value.shape().first().copied()).unwrap_or(1)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The first `n`, or all where there are fewer.
    #[must_use]
    pub fn first(self, n: usize) -> Samples<'a> {
        Samples { values: &self.values[..n.min(self.values.len())], ..self }
    }
}
