//! Texts that networks read.

use super::layout::FloatOutput;
use super::metric::{Better, Figure, Measure, Metric, SamplePair};
use super::task_outputs::{TaskOutputs, summed};
use crate::heads::{Meaning, OutputView, TaskHead, TaskName, TextHead};
use strsim::generic_levenshtein;

/// `1 - sum of edit distances / sum of the longer text's characters`, 0 to 1.
pub const CHARACTERS: Metric = Metric {
    name: "characters",
    title: "characters kept",
    unit: "",
    decimals: 3,
    better: Better::Higher,
    best: 1.0,
    about: "characters that need no edit to make one network's text of the other's, share",
    task: Some(TaskName::Text),
    prepare: |outputs, head| Box::new(Characters::new(outputs, head)),
};

#[derive(Debug)]
struct Characters(Option<TaskOutputs<TextHead>>);

impl Characters {
    fn new(outputs: &[FloatOutput], head: Option<&TaskHead>) -> Characters {
        let select = |meaning| if let Meaning::Text(head) = meaning { Some(head) } else { None };
        Characters(TaskOutputs::new(outputs, head, select))
    }
}

impl Measure for Characters {
    /// Characters of the longer texts, edits.
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let decode = |outputs: &TaskOutputs<TextHead>, views: &[OutputView]| outputs.head.text(views);
        let add = |float: Vec<usize>, quantized: Vec<usize>, sums: &mut [f64]| {
            sums[0] += float.len().max(quantized.len()) as f64;
            sums[1] += generic_levenshtein(&float, &quantized) as f64;
        };
        summed(self.0.as_ref(), sample, 2, decode, add)
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        vec![(sums[0] > 0.0).then(|| Figure::of(1.0 - sums[1] / sums[0]))]
    }
}
