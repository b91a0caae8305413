//! The best class of each row, where a sample has several rows.

use super::classes::same_class;
use super::metric::Metric;
use super::top5::{TOP5, share_of_rows};
use crate::heads::PartRows;

/// Share of rows of class scores whose largest value stays in place, in percent, for samples with several rows, such as
/// one for each token. [`AGREEMENT`](super::AGREEMENT) is the metric for one row per sample.
pub const ROW_AGREEMENT: Metric = Metric {
    name: "row-agreement",
    title: "agreement of rows",
    about: "rows with the same best class, for samples with several rows, such as one for each token",
    prepare: |outputs, head| share_of_rows(outputs, head, add),
    ..TOP5
};

/// Adds the rows, and the rows with the same class.
fn add(float: PartRows, quantized: PartRows, sums: &mut [f64]) {
    let n_rows = float.n_rows();
    if n_rows > 1 {
        sums[0] += n_rows as f64;
        sums[1] += (0..n_rows).filter(|&row| same_class(float.row(row), quantized.row(row))).count() as f64;
    }
}
