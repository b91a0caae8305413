//! The metric of segmentation: pixels of each class.

use super::layout::FloatOutput;
use super::metric::{Figure, FigureScale, Measure, Metric, SamplePair};
use super::task_outputs::{TaskOutputs, summed};
use crate::heads::{OutputView, SegmentHead, TaskHead, TaskName};

/// Mean over the classes of `pixels in both networks / pixels in at least one`, over all samples together. A class that
/// neither network finds does not count.
pub const MIOU: Metric = Metric {
    name: "miou",
    title: "mIoU",
    scale: FigureScale::SHARE,
    about: "pixels of each class or mask in both networks divided by pixels in at least one, mean over classes",
    task: Some(TaskName::Segment),
    prepare: |outputs, head| Box::new(ClassPixels::new(outputs, head)),
};

#[derive(Debug)]
struct ClassPixels {
    outputs: Option<TaskOutputs<SegmentHead>>,
    n_classes: usize,
}

impl ClassPixels {
    fn new(outputs: &[FloatOutput], head: Option<&TaskHead>) -> ClassPixels {
        let task = TaskOutputs::new(outputs, head);
        let n_classes = |task: &TaskOutputs<SegmentHead>| {
            let views = outputs.iter().map(|output| {
                let values = output.samples.first().copied().unwrap_or_default();
                OutputView::of_image(&output.about.name, output.shape, values, (output.batch, 0))
            });
            let views: Vec<OutputView> = views.collect();
            task.head.classes.rows(&views).map_or(0, |rows| rows.n_columns)
        };
        ClassPixels { n_classes: task.as_ref().map_or(0, n_classes), outputs: task }
    }
}

impl Measure for ClassPixels {
    /// Returns the pixels in both networks and the pixels in at least one, class by class.
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        type Members = (usize, Vec<Vec<usize>>);
        let decode = |outputs: &TaskOutputs<SegmentHead>, views: &[OutputView]| {
            let members = outputs.head.members(views)?;
            anyhow::ensure!(members.0 == self.n_classes, "another number of classes");
            Ok(members)
        };
        let add = |(_, float): Members, (_, quantized): Members, sums: &mut [f64]| {
            for (a, b) in float.iter().zip(&quantized) {
                let both = a.iter().filter(|class| b.contains(class));
                both.for_each(|&class| sums[2 * class] += 1.0);
                let one = a.iter().chain(b.iter().filter(|class| !a.contains(class)));
                one.for_each(|&class| sums[2 * class + 1] += 1.0);
            }
        };
        summed(self.outputs.as_ref(), sample, 2 * self.n_classes, decode, add)
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        let found = sums.chunks_exact(2).filter(|sums| sums[1] != 0.0);
        let ious: Vec<f64> = found.map(|sums| sums[0] / sums[1]).collect();
        vec![(!ious.is_empty()).then(|| Figure::of(ious.iter().sum::<f64>() / ious.len() as f64))]
    }
}
