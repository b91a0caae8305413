//! The five best classes of classifiers.

use super::classes::argmax;
use super::layout::FloatOutput;
use super::metric::{Better, Figure, Measure, Metric, SamplePair};
use super::task_outputs::{TaskOutputs, summed};
use crate::heads::{ClassifyHead, Meaning, OutputView, PartRows, TaskHead, TaskName};

/// Rows of class scores whose best class in float is among the five best in the quantized network, in percent; of more than
/// five classes.
pub const TOP5: Metric = Metric {
    name: "top5",
    title: "top-5 agreement",
    unit: "%",
    decimals: 1,
    better: Better::Higher,
    best: 100.0,
    about: "rows whose best class in float is among the five best in the quantized network",
    task: Some(TaskName::Classify),
    prepare: |outputs, head| Box::new(BestClasses::new(outputs, head)),
};

/// Classes that count as the best.
const N_BEST: usize = 5;

#[derive(Debug)]
struct BestClasses(Option<TaskOutputs<ClassifyHead>>);

impl BestClasses {
    fn new(outputs: &[FloatOutput], head: Option<&TaskHead>) -> BestClasses {
        let select = |meaning| if let Meaning::Classify(head) = meaning { Some(head) } else { None };
        BestClasses(TaskOutputs::new(outputs, head, select))
    }
}

impl Measure for BestClasses {
    /// Rows, rows that count.
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let decode = |outputs: &TaskOutputs<ClassifyHead>, views: &[OutputView]| outputs.head.scores.rows(views);
        let add = |float: PartRows, quantized: PartRows, sums: &mut [f64]| {
            for row in 0..float.n_rows() {
                if float.n_columns > N_BEST {
                    sums[0] += 1.0;
                    sums[1] += f64::from(u8::from(is_kept(float.row(row), quantized.row(row))));
                }
            }
        };
        summed(self.0.as_ref(), sample, 2, decode, add)
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        vec![(sums[0] > 0.0).then(|| Figure::of(100.0 * sums[1] / sums[0]))]
    }
}

/// Whether fewer than five classes are better than float's best.
fn is_kept(float: &[f32], quantized: &[f32]) -> bool {
    let Some(best) = argmax(float) else { return false };
    let score = quantized[best];
    let is_better = |(class, other): (usize, &f32)| *other > score || *other == score && class < best;
    score.is_finite() && quantized.iter().enumerate().filter(|it| is_better(*it)).count() < N_BEST
}
