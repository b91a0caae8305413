//! Heads of detectors: from outputs to boxes.

use super::activation::HeadActivation;
use super::boxes::{Anchors, BoxForm, BoxReferences, Corners, Detection, NO_INPUT, cells, n_cells, suppressed};
use super::kind::{HeadKind, described};
use super::masks::BoxMasks;
use super::part::{OutputPart, OutputView, PartRows, largest};
use super::strides::Strides;
use super::task::TaskName;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// The parts of a detector's outputs that hold boxes and scores, and the rules for which boxes count.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetectHead {
    /// `detect`.
    pub task: TaskName,
    /// Box values: four columns, four times `bins`, or two beside those of `sides`.
    pub boxes: OutputPart,
    /// The last two box values, if they are in another part than the first two.
    pub sides: Option<OutputPart>,
    /// The way in which the columns make a box.
    pub form: BoxForm,
    /// Number of bins of the distribution over each distance.
    pub bins: Option<usize>,
    /// Whether coordinates are shares of the input's sides; otherwise they are pixels.
    #[serde(default)]
    pub normalized: bool,
    /// Scores, a column for each class; one column if `classes` holds the class.
    pub scores: OutputPart,
    /// The column of scores that stands for no class.
    pub background: Option<Background>,
    /// One column by which the scores are multiplied.
    pub objectness: Option<OutputPart>,
    /// Whether the final score is the square root of score times objectness, as in FCOS.
    #[serde(default)]
    pub root: bool,
    /// One column with the index of the class.
    pub classes: Option<OutputPart>,
    /// Three columns for each point of a box: x and y in pixels, and a score. Points only distinguish heads.
    pub points: Option<OutputPart>,
    /// Prototypes of masks: a column for each prototype, a row for each pixel. The same number of columns at the end of
    /// `scores` are coefficients of the prototypes.
    pub prototypes: Option<OutputPart>,
    /// Side of a cell of each map, in pixels. For boxes that are relative neither to cells nor to anchors with `sizes`,
    /// strides only distinguish heads.
    #[serde(default)]
    pub strides: Strides,
    /// Number of rows for each cell, if `boxes` has no key of this name.
    #[serde(default = "one")]
    pub per_cell: usize,
    /// Reference boxes of the forms with anchors.
    pub anchors: Option<Anchors>,
    /// Factors of the offsets from an anchor's center, and of the exponents.
    #[serde(default = "ones")]
    pub variances: [f32; 2],
    /// Least score of a box that counts.
    pub threshold: f32,
    /// IoU above which the box with the higher score of two boxes of a class removes the other. Absent: no box is
    /// removed.
    pub nms: Option<f32>,
}

fn one() -> usize {
    1
}

fn ones() -> [f32; 2] {
    [1.0; 2]
}

/// The column of scores that stands for no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Background {
    /// The first column, as in SSD.
    First,
    /// The last column, as in DETR.
    Last,
}

/// The boxes of all rows, before threshold and suppression.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Candidates {
    /// For each row, the box with its best class and the score of that class.
    pub all: Vec<Detection>,
}

/// Least share of plausible boxes in the results of a recognized head: box around the image, sides in bounds, score
/// from 0 to 1.
const PLAUSIBLE: f32 = 0.95;
/// Maximum side of a plausible box, in sides of the image.
const MAX_SIDE: f32 = 20.0;
/// Largest share of rows with a score that counts, in a recognized head whose boxes lie in the image for any values.
/// Maps of features reach a larger share.
const MOST_COUNTING: f32 = 0.1;
/// If at least this many boxes count, most of them must have an area.
const MIN_COUNTING: usize = 4;
/// Tolerance for values beyond 0 to 1 when scores and points are checked.
const OVERSHOOT: f32 = 0.1;
/// Columns of each point of a box.
const PER_POINT: usize = 3;

impl DetectHead {
    /// Returns the parts that the head reads.
    fn parts(&self) -> impl Iterator<Item = &OutputPart> {
        let others = [&self.sides, &self.objectness, &self.classes, &self.points, &self.prototypes];
        let others = others.map(Option::as_ref);
        [Some(&self.boxes), Some(&self.scores)].into_iter().chain(others).flatten()
    }

    /// Returns the number of rows for each cell.
    fn rows_per_cell(&self) -> usize {
        self.boxes.per_cell.map_or(self.per_cell, NonZeroUsize::get)
    }

    /// Decodes the boxes of all rows, for an input of this height and width.
    ///
    /// # Errors
    /// If an output is missing, its number of rows or columns is wrong, or the input's height and width are needed and
    /// not known.
    pub fn candidates(&self, outputs: &[OutputView], input: Option<[usize; 2]>) -> Result<Candidates> {
        let corners = self.corners(outputs, input)?;
        let n = corners.len();
        let part = |key: &'static str, part: &OutputPart, n_columns: Option<usize>| -> Result<PartRows> {
            let rows = part.rows(outputs).with_context(|| format!("`{key}`"))?;
            ensure!(rows.n_rows() == n, "`{key}`: found {} rows, expected {n} as for `boxes`", rows.n_rows());
            let fits = n_columns.is_none_or(|n| n == rows.n_columns);
            ensure!(fits, "`{key}`: found {} columns, expected {}", rows.n_columns, n_columns.unwrap_or(0));
            Ok(rows)
        };
        let classes = self.classes.as_ref().map(|classes| part("classes", classes, Some(1))).transpose()?;
        let scores = part("scores", &self.split_scores(outputs)?.0, classes.is_some().then_some(1))?;
        let first = usize::from(self.background == Some(Background::First));
        let end = scores.n_columns - usize::from(self.background == Some(Background::Last));
        ensure!(first < end, "`scores`: found {} columns, expected one beside the background", scores.n_columns);
        let objectness = self.objectness.as_ref().map(|it| part("objectness", it, Some(1))).transpose()?;
        let of_row = |i: usize| {
            let (class, score) = largest(&scores.row(i)[first..end]).unwrap_or((0, f32::NAN));
            let score = objectness.as_ref().map_or(score, |objectness| objectness.values[i] * score);
            let class = classes.as_ref().map_or(class, |classes| classes.values[i].max(0.0) as usize);
            Detection { class, score: if self.root { score.sqrt() } else { score }, corners: corners[i], row: i }
        };
        Ok(Candidates { all: (0..n).map(of_row).collect() })
    }

    /// Splits the columns of `scores` into scores and coefficients of masks.
    fn split_scores(&self, outputs: &[OutputView]) -> Result<(OutputPart, Option<OutputPart>)> {
        let Some(prototypes) = &self.prototypes else { return Ok((self.scores.clone(), None)) };
        let (first, end) = self.scores.column_range(outputs).context("`scores`")?;
        let (first_mask, end_mask) = prototypes.column_range(outputs).context("`prototypes`")?;
        let (n, n_masks) = (end - first, end_mask - first_mask);
        ensure!(n > n_masks, "`scores`: found {n} columns, expected more than the {n_masks} of `prototypes`");
        let columns = |first: usize, end: usize| Some(vec![first, end]);
        let scores = OutputPart { columns: columns(first, end - n_masks), ..self.scores.clone() };
        let plain = HeadActivation::None;
        let coefficients =
            OutputPart { columns: columns(end - n_masks, end), activation: plain, ..self.scores.clone() };
        Ok((scores, Some(coefficients)))
    }

    /// Returns the masks of the boxes; `None` if the head has no prototypes.
    ///
    /// # Errors
    /// If an output is missing, or the input's height and width are not known.
    pub fn masks(&self, outputs: &[OutputView], input: Option<[usize; 2]>) -> Result<Option<BoxMasks>> {
        let (Some(prototypes), Some(coefficients)) = (&self.prototypes, self.split_scores(outputs)?.1) else {
            return Ok(None);
        };
        let [height, width] = prototypes.sides(outputs).context("`prototypes`")?;
        let [rows, columns] = match (self.normalized, input) {
            (true, _) => [1, 1],
            (false, input) => input.context(NO_INPUT)?,
        };
        Ok(Some(BoxMasks {
            coefficients: coefficients.rows(outputs).context("`scores`")?,
            prototypes: prototypes.rows(outputs).context("`prototypes`")?,
            width,
            scale: [width as f32 / columns as f32, height as f32 / rows as f32],
        }))
    }

    fn corners(&self, outputs: &[OutputView], input: Option<[usize; 2]>) -> Result<Vec<Corners>> {
        let mut rows = self.boxes.rows(outputs).context("`boxes`")?;
        if let Some(sides) = &self.sides {
            rows = sides.rows(outputs).and_then(|sides| rows.joined(&sides)).context("`sides`")?;
        }
        let per_cell = self.rows_per_cell();
        let strides = || self.strides.of(rows.n_rows(), per_cell, input);
        let cells = match self.form.has_cells() {
            true => cells(&strides()?, input.context(NO_INPUT)?),
            false => Vec::new(),
        };
        let anchors = match &self.anchors {
            Some(anchors) => anchors.corners(outputs, &strides()?, input)?,
            None => Vec::new(),
        };
        let (form, variances, bins) = (self.form, self.variances, self.bins);
        BoxReferences { form, cells: &cells, per_cell, anchors: &anchors, variances, bins }.corners(&rows)
    }

    /// Returns the boxes that count, in descending order of their scores.
    pub fn detections(&self, candidates: &Candidates) -> Vec<Detection> {
        let counts = |detection: &&Detection| detection.score >= self.threshold;
        suppressed(candidates.all.iter().filter(counts).copied().collect(), self.nms)
    }

    /// Checks that most boxes that count have an area. A few may be empty in any network.
    fn check_area(&self, candidates: &Candidates) -> Result<()> {
        // Rows that a network fills up have score 0.
        let counts = |detection: &&Detection| detection.score > 0.0 && detection.score >= self.threshold;
        let is_empty = |[left, top, right, bottom]: Corners| right <= left || bottom <= top;
        let counting = candidates.all.iter().filter(counts);
        let (n, n_empty) = (counting.clone().count(), counting.filter(|detection| is_empty(detection.corners)).count());
        ensure!(
            n < MIN_COUNTING || 2 * n_empty <= n,
            "`form`: {n_empty} of {n} boxes with a score of {} or more are empty, expected the right side beyond the \
             left one and the bottom below the top",
            self.threshold
        );
        Ok(())
    }

    /// Checks that scores and objectness are from 0 to 1. With `classes`, scores may be down to -1, because rows that
    /// the network chooses may stand for no box.
    fn check_scores(&self, outputs: &[OutputView]) -> Result<()> {
        let least = if self.classes.is_some() { -1.0 } else { 0.0 };
        let (scores, _) = self.split_scores(outputs)?;
        for (key, part) in [("scores", Some(&scores)), ("objectness", self.objectness.as_ref())] {
            let Some(part) = part else { continue };
            ensure_scores(part, outputs, least, |_| true).with_context(|| format!("`{key}`"))?;
        }
        Ok(())
    }

    /// Checks that points have three columns each: x and y in pixels, and a score from 0 to 1.
    fn check_points(&self, outputs: &[OutputView]) -> Result<()> {
        let Some(points) = &self.points else { return Ok(()) };
        let is_score = |column: usize| column % PER_POINT == PER_POINT - 1;
        let rows = points.rows(outputs).context("`points`")?;
        let n = rows.n_columns;
        ensure!(n % PER_POINT == 0, "`points`: found {n} columns, expected {PER_POINT} for each point: x, y, score");
        ensure_scores(points, outputs, 0.0, is_score).context("`points`")?;
        let reaches = |column: usize| rows.column(column).any(|x| x > 1.0 + OVERSHOOT);
        ensure!((0..n).any(|column| !is_score(column) && reaches(column)), "`points`: found 0 to 1, expected pixels");
        Ok(())
    }

    /// Whether the values are possible for the head. Scores are from 0 to 1 exactly if they take no activation. Rows of
    /// such scores with a background have sum 1. Classes are whole numbers. Coefficients of masks have both signs.
    fn has_sound_scores(&self, outputs: &[OutputView]) -> bool {
        let is_share = |x: &f32| (-0.001..=1.001).contains(x);
        let raw = |part: &OutputPart| {
            let plain = OutputPart { activation: HeadActivation::None, ..part.clone() };
            plain.rows(outputs).map(|rows| (part.activation, rows))
        };
        let Ok((scores, coefficients)) = self.split_scores(outputs) else { return false };
        let Ok(parts) =
            [Some(&scores), self.objectness.as_ref()].into_iter().flatten().map(raw).collect::<Result<Vec<_>>>()
        else {
            return false;
        };
        let sound = |(activation, rows): &(HeadActivation, PartRows)| {
            let all_shares = rows.values.iter().all(is_share);
            let all_sum_to_1 = || rows.values.chunks_exact(rows.n_columns).all(sums_to_1);
            all_shares == (*activation == HeadActivation::None)
                && (!all_shares || self.background.is_none() || all_sum_to_1())
        };
        let is_whole = |x: &f32| x.fract() == 0.0 && *x >= -1.0;
        let classes = self.classes.as_ref().map(|classes| classes.rows(outputs));
        let whole = classes.is_none_or(|rows| rows.is_ok_and(|rows| rows.values.iter().all(is_whole)));
        let coefficients = coefficients.map(|part| part.rows(outputs));
        let has_signs = |rows: PartRows| rows.values.iter().any(|x| *x < 0.0) && rows.values.iter().any(|x| *x > 0.0);
        whole && parts.iter().all(sound) && coefficients.is_none_or(|rows| rows.is_ok_and(has_signs))
    }

    /// Returns the number of rows in which the last of several scores is the largest.
    fn n_last(&self, outputs: &[OutputView]) -> Option<usize> {
        let (scores, _) = self.split_scores(outputs).ok()?;
        let rows = scores.rows(outputs).ok()?;
        let is_last = |row: &[f32]| row.split_last().is_some_and(|(last, others)| others.iter().all(|x| x < last));
        Some((0..rows.n_rows()).filter(|&row_idx| rows.n_columns > 1 && is_last(rows.row(row_idx))).count())
    }
}

impl HeadKind for DetectHead {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let ensure = |fine: bool, key, message: &str| if fine { Ok(()) } else { Err((key, message.to_string())) };
        let share = |value: f32| (0.0..=1.0).contains(&value);
        ensure(share(self.threshold), "threshold", &format!("{}, expected 0 to 1", self.threshold))?;
        ensure(self.nms.is_none_or(share), "nms", &format!("{}, expected 0 to 1", self.nms.unwrap_or(0.0)))?;
        ensure(self.per_cell > 0, "per_cell", "0, expected 1 or more")?;
        let has_zero = matches!(&self.strides, Strides::Given(strides) if strides.contains(&0));
        ensure(!has_zero, "strides", "0 is among them, expected 1 or more")?;
        let n_levels = self.strides.n_levels();
        ensure(!self.form.has_cells() || n_levels != Some(0), "strides", "absent, expected for this `form`")?;
        let is_given_once = self.per_cell == 1 || self.boxes.per_cell.is_none();
        ensure(is_given_once, "per_cell", "expected either here or in `boxes`")?;
        ensure(self.bins.is_none_or(|bins| bins > 1), "bins", "expected 2 or more")?;
        ensure(self.bins.is_none() || self.form == BoxForm::Ltrb, "bins", "expected only with `form: ltrb`")?;
        let has_anchors = self.form.has_anchors() == self.anchors.is_some();
        ensure(
            has_anchors,
            "anchors",
            "expected with `form: anchors`, anchor_corners, yolov3 or yolov5, and only with these",
        )?;
        if let Some(anchors) = &self.anchors {
            let plain = !anchors.form.has_cells() && !anchors.form.has_anchors();
            ensure(plain, "anchors.form", "expected xyxy, yxyx, xywh or cxcywh")?;
            let of_output = anchors.output.is_some() || anchors.shape.is_some();
            let others = [anchors.rows.is_some(), anchors.sizes.is_some(), anchors.sides.is_some()];
            let n = usize::from(of_output) + others.iter().filter(|is| **is).count();
            ensure(n == 1, "anchors", "expected one of `output` or `shape`, `rows`, `sizes` and `sides`")?;
            let fits = anchors.sizes.as_ref().is_none_or(|sizes| Some(sizes.len()) == n_levels);
            ensure(fits, "anchors.sizes", "expected a list for each of `strides`")?;
            let per_cell = self.rows_per_cell();
            let fits = anchors.sides.iter().flat_map(BTreeMap::values).all(|sides| sides.len() == per_cell);
            ensure(fits, "anchors.sides", "expected as many anchors for each stride as `per_cell`")?;
        }
        ensure(self.classes.is_none() || self.background.is_none(), "background", "expected without `classes`")?;
        let has_columns = self.classes.is_none() && self.background.is_none();
        let message = "expected without `classes` and `background`";
        ensure(self.prototypes.is_none() || has_columns, "prototypes", message)
    }

    fn fits(&self, outputs: &[OutputView], input: Option<[usize; 2]>) -> Result<()> {
        let candidates = self.candidates(outputs, input)?;
        self.check_scores(outputs)?;
        self.check_points(outputs)?;
        self.check_area(&candidates)
    }

    fn recognizes(&self, images: &[Vec<OutputView>], input: Option<[usize; 2]>) -> Option<String> {
        let [height, width] = input?;
        // A set of boxes without suppression, as of DETR.
        let is_set = self.nms.is_none() && self.scores.activation != HeadActivation::None;
        let (mut n_rows, mut n_best, mut strides) = (0, 0, Vec::new());
        let (mut n_all, mut n_counting, mut n_last) = (0, 0, 0);
        for outputs in images {
            let candidates = self.candidates(outputs, input).ok()?;
            n_rows = candidates.all.len();
            strides = self.strides.of(n_rows, self.rows_per_cell(), input).ok()?;
            let has_cells = strides.is_empty() || n_rows == self.rows_per_cell() * n_cells(&strides, [height, width]);
            if n_rows == 0 || !has_cells || !self.has_sound_scores(outputs) || self.check_points(outputs).is_err() {
                return None;
            }
            if self.boxes.outputs(outputs).is_ok_and(|boxes| boxes.iter().all(|boxes| has_softmax_rows(boxes))) {
                return None;
            }
            n_last += if is_set { self.n_last(outputs)? } else { 0 };
            let [w, h] = if self.normalized { [1.0; 2] } else { [width as f32, height as f32] };
            let is_about = |detection: &&Detection| {
                let [left, top, right, bottom] = detection.corners;
                let [x, y] = [(left + right) / 2.0 / w, (top + bottom) / 2.0 / h];
                let lies = (-0.5..=1.5).contains(&x) && (-0.5..=1.5).contains(&y);
                let [across, down] = [(right - left) / w, (bottom - top) / h];
                let is_size = |side: f32, pixels: usize| side > 0.5 / pixels as f32 && side <= MAX_SIDE;
                let is_score = (0.0..=1.001).contains(&detection.score);
                lies && is_size(across, width) && is_size(down, height) && is_score
            };
            let counting = candidates.all.iter().filter(|detection| detection.score >= self.threshold);
            n_all += n_rows;
            n_counting += counting.clone().count();
            // Rows of a network that has suppressed boxes itself may stand for no box, and then lie anywhere. CenterNet
            // learns sides at the centers of boxes alone.
            let best: Vec<&Detection> = match self.nms {
                Some(_) if self.form != BoxForm::Centers => candidates.all.iter().collect(),
                _ => counting.collect(),
            };
            n_best += best.len();
            let n_about = best.iter().copied().filter(is_about).count();
            if (n_about as f32) < PLAUSIBLE * best.len() as f32 {
                return None;
            }
        }
        let lies_anyway = self.form.has_cells() && self.form.has_anchors();
        let is_rare = n_counting > 0 && n_counting as f32 <= MOST_COUNTING * n_all as f32;
        // Any square of tokens has the rows of one stride.
        let is_any_square = strides.len() == 1 && matches!(self.strides, Strides::Found(_)) && n_counting == 0;
        if n_best == 0 || lies_anyway && !is_rare || is_any_square {
            return None;
        }
        // Most rows of a set of boxes stand for no box.
        let is_none_last = 2 * n_last > n_all;
        if is_set && (is_none_last != (self.background == Some(Background::Last)) || 2 * n_counting > n_all) {
            return None;
        }
        let outputs = images.first()?;
        let found: Vec<&OutputView> = self.parts().filter_map(|part| part.outputs(outputs).ok()).flatten().collect();
        let rows = match strides.is_empty() {
            true => format!("{n_rows} rows"),
            false => format!("{n_rows} rows for the cells of strides {strides:?}"),
        };
        Some(format!("{} with {rows}, whose boxes lie in the image", described(&found)))
    }

    fn specificity(&self) -> usize {
        self.parts().map(OutputPart::specificity).sum()
    }
}

fn sums_to_1(row: &[f32]) -> bool {
    (row.iter().sum::<f32>() - 1.0).abs() < 0.01
}

/// Whether the last axis of an output holds probabilities that sum to 1, as of a text recognizer: boxes are no such rows.
fn has_softmax_rows(output: &OutputView) -> bool {
    let n = output.shape.last().copied().unwrap_or(0);
    let is_softmax = |row: &[f32]| row.iter().all(|x| *x >= 0.0) && sums_to_1(row);
    n > 1 && !output.values.is_empty() && output.values.chunks_exact(n).all(is_softmax)
}

/// Checks that the values of some columns are scores from `least`, which is 0 or below, to 1.
fn ensure_scores(
    part: &OutputPart,
    outputs: &[OutputView],
    least: f32,
    is_score: impl Fn(usize) -> bool,
) -> Result<()> {
    let rows = part.rows(outputs)?;
    for column in (0..rows.n_columns).filter(|&column| is_score(column)) {
        let values = || rows.column(column).filter(|x| x.is_finite());
        let (low, high) = (values().fold(f32::INFINITY, f32::min), values().fold(f32::NEG_INFINITY, f32::max));
        if low < least - OVERSHOOT || high > 1.0 + OVERSHOOT {
            let place = described(&part.outputs(outputs)?);
            let (first, _) = part.column_range(outputs)?;
            bail!("{place}: column {} holds {low:.3} to {high:.3}, expected 0 to 1", first + column);
        }
    }
    Ok(())
}
