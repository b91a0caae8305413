//! Heads of networks that read text.

use super::kind::{HeadKind, described};
use super::part::{OutputPart, OutputView, largest};
use super::task::TaskName;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The scores of characters at each step of a text.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextHead {
    /// `text`.
    pub task: TaskName,
    /// A row for each step, a column for each character.
    pub scores: OutputPart,
    /// The column that stands for no character; from the end if it is below 0.
    pub blank: i64,
}

impl TextHead {
    /// Returns the characters as column indices: the best column of each step, with repetitions merged and then blanks
    /// removed.
    ///
    /// # Errors
    /// If the output is missing.
    pub fn text(&self, outputs: &[OutputView]) -> Result<Vec<usize>> {
        let (steps, blank) = self.steps(outputs)?;
        let mut text: Vec<usize> = Vec::new();
        let mut before = blank;
        for step in steps {
            if step != before && step != blank {
                text.push(step);
            }
            before = step;
        }
        Ok(text)
    }

    /// Returns the best column of each step, and the blank's column. A step with NaN is blank.
    fn steps(&self, outputs: &[OutputView]) -> Result<(Vec<usize>, usize)> {
        let rows = self.scores.rows(outputs).context("`scores`")?;
        let n = rows.n_columns;
        let from_start = if self.blank < 0 { self.blank + n as i64 } else { self.blank };
        let blank = usize::try_from(from_start).ok().filter(|&blank| blank < n && n > 1);
        let blank = blank.with_context(|| format!("`blank` is {}, found {n} columns", self.blank))?;
        let best = |row: &[f32]| largest(row).map_or(blank, |(column, _)| column);
        Ok((rows.values.chunks_exact(n).map(best).collect(), blank))
    }
}

impl HeadKind for TextHead {
    fn fits(&self, outputs: &[OutputView], _: Option<[usize; 2]>) -> Result<()> {
        let (steps, _) = self.steps(outputs)?;
        ensure!(!steps.is_empty(), "`scores`: found no row, expected a row for each step");
        Ok(())
    }

    fn recognizes(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Option<String> {
        let outputs = images.first()?;
        self.fits(outputs, input).ok()?;
        let found = self.scores.outputs(outputs).ok()?;
        let is_text = found.iter().all(|output| output.shape.len() == 3);
        let mut counts = std::collections::BTreeMap::new();
        for outputs in images {
            let (steps, _) = self.steps(outputs).ok()?;
            steps.iter().for_each(|&step| *counts.entry(step).or_insert(0) += 1);
        }
        let (_, blank) = self.steps(outputs).ok()?;
        let most = counts.iter().max_by_key(|(_, n)| **n).map(|(step, _)| *step);
        (is_text && most == Some(blank))
            .then(|| format!("{}, whose most frequent character is {blank}", described(&found)))
    }
}
