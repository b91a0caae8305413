//! The metric of networks that find points.

use super::metric::{Figure, FigureScale, Metric};
use super::task_outputs::{ImageSums, TaskOutputs};
use crate::heads::{KeypointsHead, OutputView, ScoredPoint, TaskName};
use anyhow::Result;

/// Share of the float network's points that the quantized network finds within the head's tolerance.
pub const PCK: Metric = Metric {
    name: "pck",
    title: "points within the tolerance",
    scale: FigureScale::SHARE,
    about: "share of the float network's points that the quantized network finds within the head's tolerance",
    task: Some(TaskName::Keypoints),
    prepare: |outputs, head| {
        Box::new(ImageSums {
            outputs: TaskOutputs::new(outputs, head),
            n_sums: 2,
            decode,
            add,
            figure: |sums| (sums[0] > 0.0).then(|| Figure::of(sums[1] / sums[0])),
        })
    },
};

/// The tolerance as a distance, the points, and the least score of a point that counts.
type DecodedPoints = (f32, Vec<ScoredPoint>, Option<f32>);

fn decode(outputs: &TaskOutputs<KeypointsHead>, views: &[OutputView]) -> Result<DecodedPoints> {
    let (side, points) = outputs.head.points(views, outputs.input)?;
    Ok((side * outputs.head.tolerance, points, outputs.head.threshold))
}

/// Adds the points that count, and the points within the tolerance.
fn add((tolerance, float, threshold): DecodedPoints, (_, quantized, _): DecodedPoints, sums: &mut [f64]) {
    for (a, b) in float.iter().zip(&quantized) {
        let counts = threshold.is_none_or(|least| a.score.is_none_or(|score| score >= least));
        let distance = (a.at[0] - b.at[0]).hypot(a.at[1] - b.at[1]);
        if counts {
            sums[0] += 1.0;
            sums[1] += f64::from(u8::from(distance <= tolerance));
        }
    }
}
