//! The best class of each row, where a sample has several rows.

use super::classes::same_class;
use super::metric::{Better, Figure, Metric};
use super::task_outputs::{ImageSums, TaskOutputs};
use crate::heads::{ClassifyHead, PartRows, TaskName};

/// Share of rows of class scores whose largest value stays in place, in percent, where a sample has several rows, as one for
/// each token. [`AGREEMENT`](super::AGREEMENT) is the figure of one row per sample.
pub const ROW_AGREEMENT: Metric = Metric {
    name: "row-agreement",
    title: "agreement of rows",
    unit: "%",
    decimals: 1,
    better: Better::Higher,
    best: 100.0,
    about: "rows with the same largest value, where a sample has several, as one for each token",
    task: Some(TaskName::Classify),
    prepare: |outputs, head| {
        Box::new(ImageSums {
            outputs: TaskOutputs::<ClassifyHead>::new(outputs, head),
            n_sums: 2,
            decode: |outputs, views| outputs.head.scores.rows(views),
            add,
            figure: |sums| (sums[0] > 0.0).then(|| Figure::of(100.0 * sums[1] / sums[0])),
        })
    },
};

/// Rows, rows with the same class.
fn add(float: PartRows, quantized: PartRows, sums: &mut [f64]) {
    let n_rows = float.n_rows();
    if n_rows > 1 {
        sums[0] += n_rows as f64;
        sums[1] += (0..n_rows).filter(|&row| same_class(float.row(row), quantized.row(row))).count() as f64;
    }
}
