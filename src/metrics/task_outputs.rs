//! The outputs of both networks for each image, as heads take them.

use super::layout::FloatOutput;
use super::metric::{OutputPair, SamplePair};
use crate::heads::{Meaning, OutputView, TaskHead};

/// Outputs of a network with a head of one task.
#[derive(Debug)]
pub(super) struct TaskOutputs<H> {
    names: Vec<String>,
    batch: usize,
    /// The head.
    pub head: H,
    /// Height and width of the input's images.
    pub input: Option<[usize; 2]>,
}

impl<H> TaskOutputs<H> {
    /// `None` where the head is not of the task that `select` takes.
    pub fn new(
        outputs: &[FloatOutput],
        head: Option<&TaskHead>,
        select: fn(Meaning) -> Option<H>,
    ) -> Option<TaskOutputs<H>> {
        let task_head = head?;
        Some(TaskOutputs {
            names: outputs.iter().map(|output| output.about.name.clone()).collect(),
            batch: outputs.first().map_or(1, |output| output.batch),
            head: select(task_head.head.meaning.clone())?,
            input: task_head.input,
        })
    }

    /// The outputs of the float network and of the quantized one for each image of a sample; none where an output is not
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

/// Sums over the images of a sample, of the decoded outputs of both networks. NaN where outputs cannot be decoded, as those of
/// another shape than the first sample's.
pub(super) fn summed<H, D>(
    outputs: Option<&TaskOutputs<H>>,
    sample: &SamplePair,
    n_sums: usize,
    decode: impl Fn(&TaskOutputs<H>, &[OutputView]) -> anyhow::Result<D>,
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
