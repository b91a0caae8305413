//! Heads of networks that find points.

use super::boxes::NO_INPUT;
use super::kind::{HeadKind, described};
use super::part::{OutputPart, OutputView, PartRows, largest};
use super::task::TaskName;
use crate::diag::count;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The points that a network finds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeypointsHead {
    /// `keypoints`.
    pub task: TaskName,
    /// Form of the points.
    pub form: PointForm,
    /// For `points` a row for each point that begins with x and y, or one column of all values in turn. For `heatmap` a
    /// column for each point. For `simcc` a row for each point with the scores along x.
    pub points: OutputPart,
    /// The scores along y for `simcc`.
    pub y: Option<OutputPart>,
    /// Number of values of each point if all values are in one column: 2 or 3.
    #[serde(default = "two")]
    pub per_point: usize,
    /// Whether coordinates are shares of the input's sides; otherwise they are pixels.
    #[serde(default)]
    pub normalized: bool,
    /// Largest distance of a point from its place in float, as a share of the longer side.
    pub tolerance: f32,
    /// Least score of a point that counts, in float: the third value, or the peak. Absent: every point counts.
    pub threshold: Option<f32>,
}

fn two() -> usize {
    2
}

/// The form in which outputs hold points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PointForm {
    /// Coordinates.
    Points,
    /// A map for each point. The point is at the map's largest value.
    Heatmap,
    /// Scores along x and along y for each point. The point is at the largest of each.
    Simcc,
}

/// A point with its score, if the network gives one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredPoint {
    /// Coordinates x and y.
    pub at: [f32; 2],
    /// Score; `None` if the network gives none.
    pub score: Option<f32>,
}

impl KeypointsHead {
    /// Returns the longer side in units of the coordinates, and the points.
    ///
    /// # Errors
    /// If an output is missing or does not hold points, or the input's height and width are needed and not known.
    pub fn points(&self, outputs: &[OutputView], input: Option<[usize; 2]>) -> Result<(f32, Vec<ScoredPoint>)> {
        let rows = self.points.rows(outputs).context("`points`")?;
        match self.form {
            PointForm::Points => {
                let n = if rows.n_columns == 1 { self.per_point } else { rows.n_columns };
                ensure!(n >= 2, "`points`: found {} per point, expected x and y", count(n, "value"));
                let n_values = rows.values.len();
                ensure!(n_values % n == 0, "`points`: found {n_values} values, expected {n} for each point");
                let point = |row: &[f32]| ScoredPoint { at: [row[0], row[1]], score: row.get(2).copied() };
                let side = match (self.normalized, input) {
                    (true, _) => 1.0,
                    (false, Some([height, width])) => height.max(width) as f32,
                    (false, None) => bail!(NO_INPUT),
                };
                Ok((side, rows.values.chunks_exact(n).map(point).collect()))
            }
            PointForm::Heatmap => {
                let [height, width] = self.points.sides(outputs).context("`points`")?;
                ensure!(
                    height > 0 && width > 0,
                    "`points`: found maps of {height} rows and {width} columns, expected at least 1 of each"
                );
                let point = |k: usize| {
                    let (at, score) = peak(rows.values.iter().skip(k).step_by(rows.n_columns));
                    ScoredPoint { at: [(at % width) as f32, (at / width) as f32], score: Some(score) }
                };
                Ok((height.max(width) as f32, (0..rows.n_columns).map(point).collect()))
            }
            PointForm::Simcc => {
                let y = self
                    .y
                    .as_ref()
                    .context("`y` is absent, expected for `form: simcc`")?
                    .rows(outputs)
                    .context("`y`")?;
                let n = rows.n_rows();
                ensure!(y.n_rows() == n, "`y`: found {} rows, expected {n} as of `points`", y.n_rows());
                let point = |row: usize| {
                    let of = |rows: &PartRows| peak(rows.row(row).iter());
                    let [(x, of_x), (y, of_y)] = [of(&rows), of(&y)];
                    ScoredPoint { at: [x as f32, y as f32], score: Some(of_x.min(of_y)) }
                };
                Ok((rows.n_columns.max(y.n_columns) as f32, (0..n).map(point).collect()))
            }
        }
    }
}

/// Possible numbers of values per point for outputs with all values in one column.
const LENGTHS: [usize; 2] = [2, 3];
/// Share of the mean distance between neighboring points for another number of values per point, below which the head's
/// number is accepted.
const NEAR: f32 = 0.75;

impl KeypointsHead {
    /// Whether a column of all values has `per_point` values for each point: other numbers do not divide the values, or
    /// give larger distances between neighboring points.
    fn tells_length(&self, images: &[Vec<OutputView>]) -> bool {
        let rows = images.iter().map(|outputs| self.points.rows(outputs).map(|rows| rows.values));
        let Ok(values) = rows.collect::<Result<Vec<_>>>() else { return false };
        let n = values.first().map_or(0, Vec::len);
        let distance = |lag: usize| -> f32 {
            let behind = |values: &Vec<f32>| values.get(lag..).unwrap_or_default().to_vec();
            let of_image =
                |values: &Vec<f32>| values.iter().zip(behind(values)).map(|(a, b)| (a - b).abs()).sum::<f32>();
            values.iter().map(of_image).sum::<f32>() / n.saturating_sub(lag) as f32
        };
        let is_nearer = |other: &usize| distance(self.per_point) < NEAR * distance(*other);
        LENGTHS.iter().filter(|other| **other != self.per_point && n % **other == 0).all(is_nearer)
    }
}

/// Returns the position of the largest value, and the value: minus infinity at 0 if a value is NaN.
fn peak<'v>(values: impl Iterator<Item = &'v f32>) -> (usize, f32) {
    largest(values).unwrap_or((0, f32::NEG_INFINITY))
}

impl HeadKind for KeypointsHead {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let is_share = (0.0..=1.0).contains(&self.tolerance);
        let wrong = |key, text: &str| Err((key, text.to_string()));
        match self.form {
            _ if !is_share => wrong("tolerance", "expected 0 to 1"),
            _ if self.per_point < 2 => wrong("per_point", "expected 2 or more"),
            PointForm::Simcc if self.y.is_none() => wrong("y", "absent, expected for `form: simcc`"),
            PointForm::Points | PointForm::Heatmap if self.y.is_some() => {
                wrong("y", "expected only with `form: simcc`")
            }
            _ => Ok(()),
        }
    }

    fn fits(&self, outputs: &[OutputView], input: Option<[usize; 2]>) -> Result<()> {
        self.points(outputs, input).map(drop)
    }

    fn recognizes(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Option<String> {
        let outputs = images.first()?;
        self.fits(outputs, input).ok()?;
        let found = self.points.outputs(outputs).ok()?;
        let described = described(&found);
        let rank = found.first()?.shape.len();
        let lies = |normalized: bool| {
            let [height, width] = input.unwrap_or([1, 1]);
            let side = if normalized { 1.0 } else { height.max(width) as f32 };
            let mut points =
                images.iter().filter_map(|outputs| self.points(outputs, input).ok()).flat_map(|(_, points)| points);
            points.all(|point| point.at.iter().all(|x| (-0.5 * side..=1.5 * side).contains(x)))
        };
        match self.form {
            PointForm::Heatmap => (rank == 4).then(|| format!("{described}, a map for each point")),
            PointForm::Simcc => Some(format!("{described} and the output for y, with the same number of rows")),
            PointForm::Points => {
                let is_told = rank == 3 || rank == 2 && self.tells_length(images);
                let fits = is_told && lies(self.normalized) && (self.normalized || !lies(true));
                let of = if self.normalized { "0 to 1" } else { "the input's size" };
                let n = self.points(outputs, input).map_or(0, |(_, points)| points.len());
                fits.then(|| format!("{described} with coordinates of {} within {of}", count(n, "point")))
            }
        }
    }
}
