//! Heads of segmentation.

use super::kind::{HeadKind, described};
use super::part::{OutputPart, OutputView, largest};
use super::task::TaskName;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The class map or the masks of a network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentHead {
    /// `segment`.
    pub task: TaskName,
    /// A row for each pixel, a column for each class; with `threshold`, a column for each mask.
    pub classes: OutputPart,
    /// Value above which a pixel is in the mask. Absent: a pixel's class is the column with the largest value; a pixel
    /// with NaN has none.
    pub threshold: Option<f32>,
}

impl SegmentHead {
    /// Returns the number of classes or masks, and for each pixel the classes or masks that it is in.
    ///
    /// # Errors
    /// If the output is missing.
    pub fn members(&self, outputs: &[OutputView]) -> Result<(usize, Vec<Vec<usize>>)> {
        let rows = self.classes.rows(outputs).context("`classes`")?;
        let of_row = |row: &[f32]| match self.threshold {
            Some(threshold) => (0..row.len()).filter(|&column| row[column] > threshold).collect(),
            None => largest(row).map(|(column, _)| column).into_iter().collect(),
        };
        let pixels = rows.values.chunks_exact(rows.n_columns.max(1)).map(of_row).collect();
        Ok((rows.n_columns, pixels))
    }
}

impl HeadKind for SegmentHead {
    fn fits(&self, outputs: &[OutputView], _: Option<[usize; 2]>) -> Result<()> {
        let n_columns = self.classes.rows(outputs).context("`classes`")?.n_columns;
        ensure!(
            n_columns > 1 || self.threshold.is_some(),
            "`classes`: found 1 column, expected a column for each class"
        );
        Ok(())
    }

    fn recognizes(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Option<String> {
        let outputs = images.first()?;
        self.fits(outputs, input).ok()?;
        let found = self.classes.outputs(outputs).ok()?;
        let sides = self.classes.other_lengths(found.first()?, &found).ok()?;
        let all: Vec<f32> = images
            .iter()
            .map(|outputs| self.classes.rows(outputs))
            .flat_map(|rows| rows.unwrap_or_default().values)
            .collect();
        let n = self.classes.rows(outputs).ok()?.n_columns;
        let are_shares = all.iter().all(|x| (-0.001..=1.001).contains(x));
        let (fits, values) = match self.threshold {
            None => (n > 1, format!("{n} classes")),
            Some(0.0) => (n == 1 && !are_shares, "values beyond 0 to 1".to_string()),
            Some(_) => (n == 1 && are_shares, "values from 0 to 1".to_string()),
        };
        // The axis of the classes is shorter than the axes of a map.
        (fits && sides.iter().all(|&side| n < side)).then(|| format!("{} with {values}", described(&found)))
    }
}
