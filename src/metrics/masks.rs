//! The metric of boxes with masks: the masks of the quantized network against the masks of the float network.

use super::detect::{boxes_of, right};
use super::metric::{Figure, FigureScale, Metric};
use super::task_outputs::{ImageSums, TaskOutputs};
use crate::heads::{BoxMasks, DetectHead, Detection, OutputView, TaskName};
use anyhow::{Context, Result};

/// Mean IoU of the masks of matched boxes. It applies to heads with masks.
pub const MASK_IOU: Metric = Metric {
    name: "mask-iou",
    title: "mean IoU of masks",
    scale: FigureScale::SHARE,
    about: "mean IoU of the masks of the boxes that are matched in F1",
    task: Some(TaskName::Detect),
    prepare: |outputs, head| {
        let outputs = TaskOutputs::<DetectHead>::new(outputs, head).filter(|it| it.head.prototypes.is_some());
        let figure = |sums: &[f64]| (sums[0] > 0.0).then(|| Figure::of(sums[1] / sums[0]));
        Box::new(ImageSums { outputs, n_sums: 2, decode, add, figure })
    },
};

type DecodedMasks = (Vec<Detection>, BoxMasks);

fn decode(outputs: &TaskOutputs<DetectHead>, views: &[OutputView]) -> Result<DecodedMasks> {
    let masks = outputs.head.masks(views, outputs.input)?.context("internal error: a head without prototypes")?;
    Ok((boxes_of(outputs, views)?.1, masks))
}

/// Adds the pairs of boxes with at least one mask that is not empty, and the IoU of the pairs' masks.
fn add(float: DecodedMasks, quantized: DecodedMasks, sums: &mut [f64]) {
    for (a, b, _) in right(&float.0, &quantized.0) {
        let (a, b) = (float.1.of(a), quantized.1.of(b));
        let n = |counts: fn(bool, bool) -> bool| a.iter().zip(&b).filter(|(a, b)| counts(**a, **b)).count() as f64;
        let n_either = n(|a, b| a || b);
        if n_either > 0.0 {
            sums[0] += 1.0;
            sums[1] += n(|a, b| a && b) / n_either;
        }
    }
}
