//! Heads of classifiers.

use super::kind::{HeadKind, described};
use super::part::{OutputPart, OutputView, PartRows};
use super::task::TaskName;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The class scores of a network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifyHead {
    /// `classify`.
    pub task: TaskName,
    /// A column for each class. Each row is classified.
    pub scores: OutputPart,
}

impl HeadKind for ClassifyHead {
    fn fits(&self, outputs: &[OutputView], _: Option<[usize; 2]>) -> Result<()> {
        let n_columns = self.scores.rows(outputs).context("`scores`")?.n_columns;
        ensure!(n_columns > 1, "`scores`: found 1 column, expected a column for each class");
        Ok(())
    }

    fn recognizes(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Option<String> {
        let outputs = images.first()?;
        self.fits(outputs, input).ok()?;
        let found = self.scores.outputs(outputs).ok()?;
        let rows: Vec<PartRows> = images.iter().map(|outputs| self.scores.rows(outputs)).collect::<Result<_>>().ok()?;
        let (n, n_rows) = rows.first().map(|rows| (rows.n_columns, rows.n_rows()))?;
        let is_last = self.scores.axis == Some(2) && found.iter().all(|output| output.shape.len() == 3);
        let of = if n_rows == 1 { "" } else { " for each row" };
        (n_rows == 1 || is_last && have_steady_means(&rows))
            .then(|| format!("{} with {n} scores{of}", described(&found)))
    }
}

/// Whether the means of rows vary no more than the means of columns. Training hardly moves the mean of a row of logits,
/// whereas classes differ in how often they occur. Otherwise the columns may be steps, and the rows classes.
fn have_steady_means(images: &[PartRows]) -> bool {
    let mean = |values: &mut dyn Iterator<Item = f32>| {
        let (sum, n) = values.fold((0.0, 0.0), |(sum, n), x| (sum + f64::from(x), n + 1.0));
        sum / n
    };
    let variance = |means: &[f64]| {
        let centre = means.iter().sum::<f64>() / means.len() as f64;
        means.iter().map(|mean| (mean - centre).powi(2)).sum::<f64>() / means.len() as f64
    };
    let of_rows = |rows: &PartRows| (0..rows.n_rows()).map(|row| mean(&mut rows.row(row).iter().copied())).collect();
    let of_columns = |rows: &PartRows| (0..rows.n_columns).map(|column| mean(&mut rows.column(column))).collect();
    let (rows, columns): (Vec<Vec<f64>>, Vec<Vec<f64>>) = images.iter().map(|it| (of_rows(it), of_columns(it))).unzip();
    variance(&rows.concat()) <= variance(&columns.concat())
}
