//! Heads of classifiers.

use super::kind::{HeadKind, described};
use super::part::{OutputPart, OutputView};
use super::task::TaskName;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Class scores of a network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifyHead {
    /// `classify`.
    pub task: TaskName,
    /// A column for each class; each row is classified.
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
        let rows = self.scores.rows(outputs).ok()?;
        let n = rows.n_columns;
        (rows.n_rows() == 1)
            .then(|| format!("{} with {n} scores", described(&self.scores.outputs(outputs).unwrap_or_default())))
    }
}
