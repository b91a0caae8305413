//! Input values of a network.

use crate::engine::Value;
use crate::onnx::inputs::InputShapes;

/// Values of a network's inputs, for some samples.
#[derive(Clone, Copy)]
pub struct Samples<'a> {
    /// Names of the inputs.
    pub names: &'a [String],
    /// One value per input, for each sample.
    pub values: &'a [Vec<Value>],
}

/// The batch size of samples, and whether their shapes differ.
#[derive(Debug, Clone, Copy)]
pub struct SampleLayout {
    /// Batch size of the first input.
    pub batch: usize,
    /// Whether the samples have several shapes.
    pub have_shapes: bool,
}

/// Shapes of samples, by group: samples of one group have equal shapes.
#[derive(Default)]
pub struct ShapeGroups(Vec<InputShapes>);

impl ShapeGroups {
    /// Returns the group of a sample with these values of the inputs. New shapes get a new group.
    pub fn of<'v>(&mut self, sample: impl IntoIterator<Item = &'v Value>) -> usize {
        let sample: InputShapes = sample.into_iter().map(|value| value.shape().to_vec()).collect();
        self.0.iter().position(|known| *known == sample).unwrap_or_else(|| {
            self.0.push(sample);
            self.0.len() - 1
        })
    }

    /// Returns the number of groups.
    pub fn n_groups(&self) -> usize {
        self.0.len()
    }
}

fn shapes(sample: &[Value]) -> impl Iterator<Item = &[usize]> {
    sample.iter().map(Value::shape)
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
    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the batch size, and whether the samples have several shapes.
    pub fn layout(&self) -> SampleLayout {
        let first = self.values.first().and_then(|sample| sample.first());
        let batch = first.and_then(|value| value.shape().first().copied()).unwrap_or(1);
        let have_shapes = self.values.windows(2).any(|pair| !shapes(&pair[0]).eq(shapes(&pair[1])));
        SampleLayout { batch, have_shapes }
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the token mask of each sample, where an input is a mask: `[batch, tokens]`, of ones and zeros, with
    /// `mask` in its name.
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

    /// Returns the first `n` samples, or all where there are fewer.
    #[must_use]
    pub fn first(self, n: usize) -> Samples<'a> {
        Samples { values: &self.values[..n.min(self.values.len())], ..self }
    }
}
