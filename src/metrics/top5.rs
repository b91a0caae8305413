//! Top-5 agreement, and shares of rows.

use super::classes::{N_BEST, argmax, is_among_best};
use super::layout::FloatOutput;
use super::metric::{Figure, FigureScale, Measure, Metric};
use super::task_outputs::{ImageSums, TaskOutputs};
use crate::heads::{ClassifyHead, PartRows, TaskHead, TaskName};

/// Share of rows of class scores whose best class in float is among the five best in the quantized network, in percent.
/// It applies to more than five classes.
pub const TOP5: Metric = Metric {
    name: "top5",
    title: "top-5 agreement",
    scale: FigureScale::PERCENT,
    about: "rows whose best class in float is among the five best in the quantized network",
    task: Some(TaskName::Classify),
    prepare: |outputs, head| share_of_rows(outputs, head, add),
};

/// Returns a metric of the share of rows that count, in percent. `add` takes the rows of an image in both networks, and
/// adds the numbers of candidate rows and of counted rows.
pub(super) fn share_of_rows(
    outputs: &[FloatOutput],
    head: Option<&TaskHead>,
    add: fn(PartRows, PartRows, &mut [f64]),
) -> Box<dyn Measure> {
    Box::new(ImageSums {
        outputs: TaskOutputs::<ClassifyHead>::new(outputs, head),
        n_sums: 2,
        decode: |outputs, views| outputs.head.scores.rows(views),
        add,
        figure: |sums| (sums[0] > 0.0).then(|| Figure::of(100.0 * sums[1] / sums[0])),
    })
}

/// Adds the rows, and the rows whose best class is kept.
fn add(float: PartRows, quantized: PartRows, sums: &mut [f64]) {
    for row in 0..float.n_rows() {
        if float.n_columns > N_BEST {
            sums[0] += 1.0;
            let is_kept = argmax(float.row(row)).is_some_and(|best| is_among_best(quantized.row(row), best));
            sums[1] += f64::from(u8::from(is_kept));
        }
    }
}
