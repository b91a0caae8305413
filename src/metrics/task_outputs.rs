//! The outputs of both networks for each image, in the form that heads take.

use super::layout::FloatOutput;
use super::metric::{Figure, Measure, OutputPair, SamplePair};
use crate::heads::{OfTask, OutputView, TaskHead};
use anyhow::Result;
use std::fmt::Debug;

/// The outputs of a network with a head of one task.
#[derive(Debug)]
pub(super) struct TaskOutputs<H> {
    names: Vec<String>,
    batch: usize,
    /// The head.
    pub head: H,
    /// Height and width of the input's images.
    pub input: Option<[usize; 2]>,
}

impl<H: OfTask + Clone> TaskOutputs<H> {
    /// Returns the outputs with their head; `None` if the head is of another task or not known.
    pub fn new(outputs: &[FloatOutput], head: Option<&TaskHead>) -> Option<TaskOutputs<H>> {
        let task_head = head?;
        Some(TaskOutputs {
            names: outputs.iter().map(|output| output.about.name.clone()).collect(),
            batch: outputs.first().map_or(1, |output| output.batch),
            head: H::of(&task_head.head.decoding)?.clone(),
            input: task_head.input,
        })
    }
}

impl<H> TaskOutputs<H> {
    /// Returns the outputs of the float and of the quantized network for each image of a sample; empty if an output is
    /// not compared.
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

/// Sums the decoded outputs of both networks over the images of a sample. The sums are NaN if outputs cannot be
/// decoded, such as outputs of another shape than in the first sample.
pub(super) fn summed<H, D>(
    outputs: Option<&TaskOutputs<H>>,
    sample: &SamplePair,
    n_sums: usize,
    decode: impl Fn(&TaskOutputs<H>, &[OutputView]) -> Result<D>,
    add: impl Fn(D, D, &mut [f64]),
) -> Vec<f64> {
    let mut sums = vec![0.0; n_sums];
    let Some(outputs) = outputs else { return sums };
    for [float, quantized] in outputs.images(sample) {
        match (decode(outputs, &float), decode(outputs, &quantized)) {
            (Ok(float), Ok(quantized)) => add(float, quantized, &mut sums),
            _ => return vec![f64::NAN; n_sums],
        }
    }
    sums
}

/// A metric that is computed from sums over images.
#[derive(Debug)]
pub(super) struct ImageSums<H, D> {
    /// `None` if the head is of another task.
    pub outputs: Option<TaskOutputs<H>>,
    pub n_sums: usize,
    /// Decodes the outputs of one network for an image.
    pub decode: fn(&TaskOutputs<H>, &[OutputView]) -> Result<D>,
    /// Adds the decoded outputs of an image to the sums: float, then quantized.
    pub add: fn(D, D, &mut [f64]),
    pub figure: fn(&[f64]) -> Option<Figure>,
}

impl<H: Debug + Send + Sync, D: Debug> Measure for ImageSums<H, D> {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        summed(self.outputs.as_ref(), sample, self.n_sums, self.decode, self.add)
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        vec![(self.figure)(sums)]
    }
}
