//! Constants scaled channel by channel.

use super::{Channels, Linear, Space};
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::GraphProto;
use crate::onnx::tensor::{self, DataType};
use anyhow::{Context, Result, ensure};

/// A constant that changes with the factors of a space.
#[derive(Debug, Clone, PartialEq)]
pub struct Edit {
    /// Name of the initializer.
    pub tensor: String,
    pub(super) map: Map,
    pub(super) channels: Channels,
    /// Whether it is multiplied by the factors, as at a reader; otherwise divided, as at a producer.
    pub multiply: bool,
}

/// Which entry along the axis of the channels a value of a constant is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Map {
    /// The input channel of a weight.
    In(Linear),
    /// The output channel of a weight.
    Out(Linear),
    /// The position on an axis of `len` entries, with `inner` values behind each.
    Axis { inner: usize, len: usize },
}

impl Map {
    pub(super) fn entry(self, i: usize) -> usize {
        match self {
            Map::In(linear) => linear.ends(i).1,
            Map::Out(linear) => linear.ends(i).0,
            Map::Axis { inner, len } => i / inner % len,
        }
    }
}

/// Whether `name` is a float32 initializer with one reader, so that changing it changes nothing else.
pub(super) fn is_own(index: &GraphIndex, name: &str) -> Option<bool> {
    let tensor = index.initializer(name)?;
    let float = tensor.data_type() == DataType::Float as i32;
    float.then(|| index.has_only(name, 1))
}

/// Divides the channels of `space` by `factors`: its producers make them smaller, its readers make up for it.
///
/// # Errors
/// If there is not one factor per channel, a finite one above 0, or the graph is not the one that the space
/// was found in.
pub fn scale(graph: &mut GraphProto, space: &Space, factors: &[f32]) -> Result<()> {
    ensure!(
        factors.len() == space.n,
        "tensor `{}`: {} factors, expected {}",
        space.tensor,
        factors.len(),
        space.n
    );
    let bad = factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0));
    ensure!(bad.is_none(), "tensor `{}`: factor {bad:?}, expected one above 0", space.tensor);
    for edit in &space.edits {
        change(graph, &edit.tensor, |i, value| {
            let factor = factors[edit.channels.of(edit.map.entry(i))];
            if edit.multiply { value * factor } else { value / factor }
        })?;
    }
    Ok(())
}

/// Gives each value of a float32 initializer, with its position, to `by`, which says what becomes of it.
pub(super) fn change(
    graph: &mut GraphProto,
    name: &str,
    by: impl Fn(usize, f32) -> f32,
) -> Result<()> {
    let found = graph.initializer.iter_mut().find(|tensor| tensor.name() == name);
    let found = found.with_context(|| format!("initializer `{name}` does not exist"))?;
    let mut values = tensor::f32_values(found)?;
    values.iter_mut().enumerate().for_each(|(i, value)| *value = by(i, *value));
    *found = tensor::from_f32(name, &tensor::shape(found)?, &values)?;
    Ok(())
}
