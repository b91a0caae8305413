//! The outputs of both networks for each image, as heads take them.

use super::layout::FloatOutput;
use super::metric::{OutputPair, SamplePair};
use crate::heads::{OutputView, TaskHead};

/// Outputs of a network, and the head that reads them.
#[derive(Debug)]
pub(super) struct TaskOutputs {
    names: Vec<String>,
    batch: usize,
    /// The head, and the input.
    pub head: TaskHead,
}

impl TaskOutputs {
    /// Of the outputs of a network with a head.
    pub fn new(outputs: &[FloatOutput], head: &TaskHead) -> TaskOutputs {
        TaskOutputs {
            names: outputs.iter().map(|output| output.about.name.clone()).collect(),
            batch: outputs.first().map_or(1, |output| output.batch),
            head: head.clone(),
        }
    }

    /// For each image of a sample the outputs of the float network and of the quantized one; none where an output is not
    /// compared.
    pub fn images<'s>(&'s self, sample: &SamplePair<'s>) -> Vec<[Vec<OutputView<'s>>; 2]> {
        let pairs: Option<Vec<OutputPair>> = (0..self.names.len()).map(|i| sample.output(i)).collect();
        let Some(pairs) = pairs else { return Vec::new() };
        let of_image = |image: usize| {
            let of = |values: fn(&OutputPair<'s>) -> &'s [f32]| {
                let view = |(name, pair): (&'s String, &OutputPair<'s>)| {
                    OutputView::of_image(name, pair.shape, values(pair), (self.batch, image))
                };
                self.names.iter().zip(&pairs).map(view).collect()
            };
            [of(|pair| pair.float), of(|pair| pair.quantized)]
        };
        (0..self.batch).map(of_image).collect()
    }
}
