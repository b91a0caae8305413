//! Points that networks find.

use super::layout::FloatOutput;
use super::metric::{Better, Figure, Measure, Metric, SamplePair};
use super::task_outputs::{TaskOutputs, summed};
use crate::heads::{KeypointsHead, Meaning, OutputView, ScoredPoint, TaskHead, TaskName};

/// Share of the float network's points that the quantized network finds within the head's tolerance.
pub const PCK: Metric = Metric {
    name: "pck",
    title: "points within the tolerance",
    unit: "",
    decimals: 3,
    better: Better::Higher,
    best: 1.0,
    about: "points of the float network that are found within the head's tolerance, share",
    task: Some(TaskName::Keypoints),
    prepare: |outputs, head| Box::new(Points::new(outputs, head)),
};

#[derive(Debug)]
struct Points(Option<TaskOutputs<KeypointsHead>>);

impl Points {
    fn new(outputs: &[FloatOutput], head: Option<&TaskHead>) -> Points {
        let select = |meaning| if let Meaning::Keypoints(head) = meaning { Some(head) } else { None };
        Points(TaskOutputs::new(outputs, head, select))
    }
}

impl Measure for Points {
    /// Points, points that are near.
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        type Decoded = (f32, Vec<ScoredPoint>, Option<f32>);
        let decode = |outputs: &TaskOutputs<KeypointsHead>, views: &[OutputView]| {
            let (side, points) = outputs.head.points(views, outputs.input)?;
            Ok((side * outputs.head.tolerance, points, outputs.head.threshold))
        };
        let add = |(tolerance, float, threshold): Decoded, (_, quantized, _): Decoded, sums: &mut [f64]| {
            for (a, b) in float.iter().zip(&quantized) {
                let counts = threshold.is_none_or(|least| a.score.is_none_or(|score| score >= least));
                let distance = (a.at[0] - b.at[0]).hypot(a.at[1] - b.at[1]);
                if counts {
                    sums[0] += 1.0;
                    sums[1] += f64::from(u8::from(distance <= tolerance));
                }
            }
        };
        summed(self.0.as_ref(), sample, 2, decode, add)
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        vec![(sums[0] > 0.0).then(|| Figure::of(sums[1] / sums[0]))]
    }
}
