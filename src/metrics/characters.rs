//! The metric of networks that read text.

use super::metric::{Figure, FigureScale, Metric};
use super::task_outputs::{ImageSums, TaskOutputs};
use crate::heads::{TaskName, TextHead};
use strsim::generic_levenshtein;

/// `1 - sum of edit distances / sum of the longer text's characters`, 0 to 1. Both sums are over all images.
pub const CHARACTERS: Metric = Metric {
    name: "characters",
    title: "characters kept",
    scale: FigureScale::SHARE,
    about: "share of characters that stay when one network's text is edited into the other's",
    task: Some(TaskName::Text),
    prepare: |outputs, head| {
        Box::new(ImageSums {
            outputs: TaskOutputs::<TextHead>::new(outputs, head),
            n_sums: 2,
            decode: |outputs, views| outputs.head.text(views),
            add,
            figure: |sums| (sums[0] > 0.0).then(|| Figure::of(1.0 - sums[1] / sums[0])),
        })
    },
};

/// Adds the characters of the longer text, and the edits.
fn add(float: Vec<usize>, quantized: Vec<usize>, sums: &mut [f64]) {
    sums[0] += float.len().max(quantized.len()) as f64;
    sums[1] += generic_levenshtein(&float, &quantized) as f64;
}
