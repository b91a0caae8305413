//! What a model is for: how much of the float network's own results another leaves. They are taken for the truth.
//!
//! In: an output of both networks, sample by sample, or the boxes that a head makes of their outputs. Out: figures, and
//! whether they meet a bound. A sample with values that are NaN or infinite is counted and left out, and no bound is met.
//! It decodes no head's outputs.

mod classify;
mod ctc;
mod detect;
mod embed;
mod gates;
mod regress;
mod segment;

pub use classify::ClassFigures;
pub use ctc::{Blank, TextFigures};
pub use detect::{Detection, DetectionFigures, overlap, suppressed};
pub use embed::EmbeddingFigures;
pub use gates::{GateResult, MEASURES, Measure, TaskGate};
pub use regress::{RegressionFigures, WorstChannel};
pub use segment::{SegmentFigures, WorstClass};

use super::compare::Merge;
use super::value_and_error;
use serde::Serialize;

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum TaskKind {
    Classify,
    Detect,
    Segment,
    Embed,
    Regress,
    Ctc,
}

impl TaskKind {
    /// Each with its name on the command line, and the outputs that it is measured on.
    pub const ALL: [(TaskKind, &'static str, &'static str); 6] = [
        (TaskKind::Classify, "classify", "floats [batch, classes] or [batch, classes, 1, 1]"),
        (TaskKind::Detect, "detect", "those that the head names"),
        (TaskKind::Segment, "segment", "floats [batch, channels, height, width] or class indices"),
        (TaskKind::Embed, "embed", "floats with the batch as first axis"),
        (TaskKind::Regress, "regress", "floats"),
        (TaskKind::Ctc, "ctc", "floats [batch, steps, classes] or [steps, batch, classes], one class the blank"),
    ];

    /// By its name.
    pub fn named(name: &str) -> Option<TaskKind> {
        TaskKind::ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    fn row(self) -> (&'static str, &'static str) {
        TaskKind::ALL.iter().find(|row| row.0 == self).map_or(("", ""), |row| (row.1, row.2))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The outputs that it is measured on, for people.
    pub fn outputs(self) -> &'static str {
        self.row().1
    }
}

/// How outputs are read.
#[derive(Debug, Clone, Copy)]
pub struct TaskOptions {
    /// Where a map has one channel, a position counts where its value is above this.
    pub threshold: f64,
    /// The axis of channels (segment, regress) or classes (ctc).
    pub channel_axis: Option<usize>,
    /// The class of a text that stands for no letter.
    pub blank: Blank,
}

impl Default for TaskOptions {
    fn default() -> TaskOptions {
        TaskOptions { threshold: 0.5, channel_axis: None, blank: Blank::Index(0) }
    }
}

/// An output of one sample, in row-major order; as many values of both networks.
#[derive(Debug, Clone, Copy)]
pub struct OutputPair<'a> {
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// The batch: parts of the sample.
    pub n_parts: usize,
    /// Whether the values are floats in the model.
    pub is_float: bool,
    /// Of the float network.
    pub float: &'a [f32],
    /// Of the quantized one.
    pub quantized: &'a [f32],
}

impl<'a> OutputPair<'a> {
    /// Whether no value is NaN, nor infinite in one alone.
    fn is_finite(&self) -> bool {
        let sound = |(&a, &b): (&f32, &f32)| {
            let (value, error) = value_and_error(a, b);
            value.is_finite() && error.is_finite()
        };
        self.float.iter().zip(self.quantized).all(sound)
    }

    /// The values of each part, by the first axis; of the whole where that is not the batch's.
    fn parts(&self) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
        let n = if self.shape.first() == Some(&self.n_parts) { self.n_parts } else { 1 };
        let length = (self.float.len() / n.max(1)).max(1);
        self.float.chunks(length).zip(self.quantized.chunks(length))
    }
}

/// Values along an axis: `n` of them, `inner` apart, in `outer` blocks.
#[derive(Debug, Clone, Copy)]
struct AlongAxis {
    outer: usize,
    n: usize,
    inner: usize,
}

impl AlongAxis {
    /// `None` where there is no such axis or no value.
    fn of(shape: &[usize], axis: usize) -> Option<AlongAxis> {
        let n = *shape.get(axis)?;
        let lines = AlongAxis { outer: shape[..axis].iter().product(), n, inner: shape[axis + 1..].iter().product() };
        (lines.outer * lines.n * lines.inner > 0).then_some(lines)
    }

    /// Writes the values of line `i` to `line`.
    fn read(&self, values: &[f32], i: usize, line: &mut Vec<f32>) {
        let first = i / self.inner * self.n * self.inner + i % self.inner;
        line.clear();
        line.extend((0..self.n).map(|k| values[first + k * self.inner]));
    }
}

#[derive(Debug, Clone)]
enum KindSums {
    Classify(classify::ClassSums),
    Detect(detect::DetectionSums),
    Segment(segment::SegmentSums),
    Embed(embed::Embeddings),
    Regress(regress::RegressionSums),
    Ctc(ctc::TextSums),
}

/// What was measured of some samples; added up in their order.
#[derive(Debug, Clone, Default)]
pub struct TaskSums {
    n_samples: usize,
    n_not_finite: usize,
    sums: Option<KindSums>,
}

impl TaskSums {
    /// Of one sample of an output, with a label for each part where there are labels. `None` where it is no output of
    /// this task, or the task is detection: see [`TaskSums::of_detections`].
    pub fn of_output(
        kind: TaskKind,
        pair: &OutputPair,
        options: &TaskOptions,
        labels: Option<&[usize]>,
    ) -> Option<TaskSums> {
        let sums = match kind {
            TaskKind::Classify => KindSums::Classify(classify::ClassSums::of(pair, labels)?),
            TaskKind::Detect => return None,
            TaskKind::Segment => KindSums::Segment(segment::SegmentSums::of(pair, options)?),
            TaskKind::Embed => KindSums::Embed(embed::Embeddings::of(pair)?),
            TaskKind::Regress => KindSums::Regress(regress::RegressionSums::of(pair, options.channel_axis)?),
            TaskKind::Ctc => KindSums::Ctc(ctc::TextSums::of(pair, options)?),
        };
        Some(TaskSums::one(pair.is_finite(), sums))
    }

    /// Of one sample's detections: those of the float network and of the quantized one, image by image; `None` for a
    /// network whose outputs have values that are NaN.
    pub fn of_detections(float: Option<&[Vec<Detection>]>, quantized: Option<&[Vec<Detection>]>) -> TaskSums {
        let mut sums = detect::DetectionSums::default();
        let both = float.zip(quantized);
        both.into_iter().flat_map(|(a, b)| a.iter().zip(b)).for_each(|(a, b)| sums.add(a, b));
        TaskSums::one(both.is_some(), KindSums::Detect(sums))
    }

    fn one(is_finite: bool, sums: KindSums) -> TaskSums {
        TaskSums { n_samples: 1, n_not_finite: usize::from(!is_finite), sums: is_finite.then_some(sums) }
    }

    /// Samples seen.
    pub fn n_samples(&self) -> usize {
        self.n_samples
    }

    /// The figures of `output`, or of all outputs together.
    pub fn result(&self, output: Option<&str>) -> TaskResult {
        let figures = self.sums.as_ref().map(|sums| match sums {
            KindSums::Classify(sums) => TaskFigures::Classify(sums.figures()),
            KindSums::Detect(sums) => TaskFigures::Detect(sums.figures()),
            KindSums::Segment(sums) => TaskFigures::Segment(sums.figures()),
            KindSums::Embed(sums) => TaskFigures::Embed(sums.figures()),
            KindSums::Regress(sums) => TaskFigures::Regress(sums.figures()),
            KindSums::Ctc(sums) => TaskFigures::Ctc(sums.figures()),
        });
        let (n_samples, n_not_finite) = (self.n_samples, self.n_not_finite);
        TaskResult { output: output.map(str::to_string), n_samples, n_not_finite, figures }
    }
}

impl Merge for TaskSums {
    fn merge(&mut self, other: TaskSums) {
        self.n_samples += other.n_samples;
        self.n_not_finite += other.n_not_finite;
        match (&mut self.sums, other.sums) {
            (_, None) => {}
            (all @ None, one) => *all = one,
            (Some(KindSums::Classify(all)), Some(KindSums::Classify(one))) => all.merge(&one),
            (Some(KindSums::Detect(all)), Some(KindSums::Detect(one))) => all.merge(&one),
            (Some(KindSums::Segment(all)), Some(KindSums::Segment(one))) => all.merge(&one),
            (Some(KindSums::Embed(all)), Some(KindSums::Embed(one))) => all.merge(one),
            (Some(KindSums::Regress(all)), Some(KindSums::Regress(one))) => all.merge(&one),
            (Some(KindSums::Ctc(all)), Some(KindSums::Ctc(one))) => all.merge(&one),
            // Sums of two tasks: a caller adds those of one.
            (Some(_), Some(_)) => debug_assert!(false, "sums of two tasks"),
        }
    }
}

/// Figures of one task. A figure that there is nothing to measure for is absent.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum TaskFigures {
    Classify(ClassFigures),
    Detect(DetectionFigures),
    Segment(SegmentFigures),
    Embed(EmbeddingFigures),
    Regress(RegressionFigures),
    Ctc(TextFigures),
}

/// What is left of the float network's results.
#[derive(Debug, Clone, Serialize)]
pub struct TaskResult {
    /// ONNX name; absent where the figures are of several outputs together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Runs of the models.
    pub n_samples: usize,
    /// Samples with values that are NaN or infinite in one of the models. They are in none of the figures.
    pub n_not_finite: usize,
    /// Absent where no sample could be measured.
    #[serde(flatten)]
    pub figures: Option<TaskFigures>,
}

/// `n` of `all`; `None` of nothing.
fn share(n: usize, all: usize) -> Option<f64> {
    (all > 0).then(|| n as f64 / all as f64)
}

fn percent(n: usize, all: usize) -> Option<f64> {
    (all > 0).then(|| 100.0 * n as f64 / all as f64)
}
