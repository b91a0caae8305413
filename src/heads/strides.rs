//! The strides of a detector's levels.

use super::boxes::{NO_INPUT, n_cells};
use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Sides of a cell of each level, in pixels.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a list of strides, or `doubling`")]
pub enum Strides {
    /// Strides in the order of the rows.
    Given(Vec<usize>),
    /// Strides that follow from the number of rows, by a rule.
    Found(StrideRule),
}

/// A rule by which strides follow from the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrideRule {
    /// Each level has twice the stride of the level before it. Detectors of one family differ in their first and last
    /// level.
    Doubling,
}

/// Possible strides of the first level.
const FIRST: [usize; 4] = [4, 8, 16, 32];
/// Possible numbers of levels.
const LEVELS: std::ops::RangeInclusive<usize> = 1..=5;

impl Default for Strides {
    fn default() -> Strides {
        Strides::Given(Vec::new())
    }
}

impl Strides {
    /// Returns the number of levels; `None` if it depends on the number of rows.
    pub(super) fn n_levels(&self) -> Option<usize> {
        match self {
            Strides::Given(strides) => Some(strides.len()),
            Strides::Found(StrideRule::Doubling) => None,
        }
    }

    /// Returns the strides of a network with `n_rows` rows, `per_cell` for each cell, and an input of this height and
    /// width. Fails if the rule needs the input's height and width and they are not known, or not exactly one choice of
    /// levels has as many rows.
    pub(super) fn of(&self, n_rows: usize, per_cell: usize, input: Option<[usize; 2]>) -> Result<Vec<usize>> {
        if let Strides::Given(strides) = self {
            return Ok(strides.clone());
        }
        let input = input.context(NO_INPUT)?;
        let levels = |first: usize| LEVELS.map(move |n| (0..n).map(|level| first << level).collect::<Vec<_>>());
        let has_rows = |strides: &Vec<usize>| per_cell * n_cells(strides, input) == n_rows;
        let mut found: Vec<Vec<usize>> = FIRST.into_iter().flat_map(levels).filter(has_rows).collect();
        match (found.pop(), found.is_empty()) {
            (Some(strides), true) => Ok(strides),
            _ => bail!(
                "found {n_rows} rows, expected {per_cell} for each cell of levels with strides such as [8, 16, 32]"
            ),
        }
    }
}
