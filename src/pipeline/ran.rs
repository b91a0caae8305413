//! One sample that two models were run on, output by output.

use crate::data::{Array, Values};
use crate::metrics::{OutputComparison, n_classes};
use crate::onnx::proto::{ModelProto, ValueInfoProto};
use anyhow::{Context, Result, bail, ensure};

/// An output of a model.
pub(super) struct ComparedOutput {
    pub name: String,
    /// Whether its values are floats, as class scores are.
    pub is_float: bool,
}

/// The outputs of a model.
pub(super) fn outputs(model: &ModelProto) -> Result<Vec<ComparedOutput>> {
    const FLOATS: [i32; 5] = [0, 1, 10, 11, 16];
    let of = |value: &ValueInfoProto| {
        let is_float = value.tensor_type().is_none_or(|tensor| FLOATS.contains(&tensor.elem_type()));
        ComparedOutput { name: value.name().to_string(), is_float }
    };
    let graph = model.graph.as_ref().context("model has no graph")?;
    Ok(graph.output.iter().map(of).collect())
}

/// One sample that both models were run on.
pub(super) struct Ran<'a> {
    pub name: &'a str,
    /// Its parts.
    pub batch: usize,
    /// The outputs of the float model.
    pub float: Vec<Array>,
    /// Those of the quantized one.
    pub quantized: Vec<Array>,
    /// One for each part.
    pub labels: Option<&'a [usize]>,
}

impl Ran<'_> {
    /// Output by output; where outputs `can_differ` in shape, those that do are counted.
    pub fn compare(&self, outputs: &[ComparedOutput], can_differ: bool) -> Result<Vec<OutputComparison>> {
        let Ran { name, batch, float, quantized, labels } = self;
        let mut has_scores = false;
        let mut compared = Vec::new();
        for (output, (a, b)) in outputs.iter().zip(float.iter().zip(quantized)) {
            let (Values::F32(x), Values::F32(y)) = (&a.values, &b.values) else {
                bail!("internal error: output `{}` is not float32", output.name)
            };
            let mut comparison = OutputComparison::default();
            if can_differ && x.len() != y.len() {
                comparison.add_other_shape();
                compared.push(comparison);
                continue;
            }
            ensure!(
                x.len() == y.len(),
                "output `{}` has shape {:?}, expected {:?} as in the float model",
                output.name,
                b.shape,
                a.shape
            );
            comparison.add(name, x, y);
            if let Some(n) = n_classes(&a.shape, *batch).filter(|_| output.is_float) {
                // Scores for the batch as a whole are none for its parts.
                let labels = labels.filter(|labels| labels.len() == a.shape[0]);
                has_scores |= labels.is_some();
                comparison.add_scores(x, y, n, labels);
            }
            compared.push(comparison);
        }
        ensure!(
            labels.is_none() || has_scores,
            "no output is class scores, expected one of shape [{batch}, classes] for --labels; found {}",
            float.iter().map(|array| format!("{:?}", array.shape)).collect::<Vec<_>>().join(", ")
        );
        Ok(compared)
    }
}
