//! Boxes: their forms, the IoU of two boxes, and non-maximum suppression.

use super::activation::HeadActivation;
use super::part::{OutputPart, OutputView, PartRows};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A box that a network found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Detection {
    /// Position of the class among the scores, without the background.
    pub class: usize,
    /// Score from 0 to 1.
    pub score: f32,
    /// Left, top, right, bottom.
    pub corners: Corners,
    /// Position of its row among all rows of the image.
    pub row: usize,
}

/// A box as left, top, right, bottom.
pub type Corners = [f32; 4];

/// The error of a head that needs the input's height and width, if these are not known.
pub(super) const NO_INPUT: &str = "the input's height and width are not known, expected an input of images";
/// Maximum detections of an image.
const MAX_DETECTIONS: usize = 1000;

/// The way in which four values make a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxForm {
    /// Left, top, right, bottom.
    Xyxy,
    /// Top, left, bottom, right.
    Yxyx,
    /// Left, top, width, height.
    Xywh,
    /// Center in x and y, width, height.
    Cxcywh,
    /// Center from the corner of a cell, and exponents of width and height, all in strides (YOLOX).
    Cells,
    /// Center from the corner of a cell, width and height, all in strides (CenterNet).
    Centers,
    /// Distances of the sides from the middle of a cell, in strides (FCOS). With `bins`, a distribution over each
    /// distance (DFL).
    Ltrb,
    /// Distances of the sides from the corner of a cell, in strides (SCRFD).
    LtrbCorner,
    /// Offset of the center from an anchor's center, in the anchor's size, and exponents of width and height (SSD,
    /// RetinaNet).
    Anchors,
    /// Offsets from the corners of an anchor, in the anchor's size.
    AnchorCorners,
    /// Center from the corner of a cell, a Sigmoid in strides; exponents of width and height, in an anchor's size
    /// (YOLOv3).
    Yolov3,
    /// Center from the corner of a cell, twice a Sigmoid less 0.5, in strides; width and height, the square of twice a
    /// Sigmoid, in an anchor's size (YOLOv5).
    Yolov5,
}

impl BoxForm {
    /// Whether boxes are relative to the cells of strides.
    pub fn has_cells(self) -> bool {
        let of_cells = matches!(self, BoxForm::Cells | BoxForm::Centers | BoxForm::Ltrb | BoxForm::LtrbCorner);
        of_cells || matches!(self, BoxForm::Yolov3 | BoxForm::Yolov5)
    }

    /// Whether boxes are relative to anchors.
    pub fn has_anchors(self) -> bool {
        matches!(self, BoxForm::Anchors | BoxForm::AnchorCorners | BoxForm::Yolov3 | BoxForm::Yolov5)
    }
}

/// Reference boxes of some heads, from one of `output` or `shape`, `rows`, `sizes`, and `sides`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchors {
    /// The output with the anchors, as in [`OutputPart`].
    pub output: Option<super::part::WhichOutput>,
    /// Shape of the output with the anchors, as in [`OutputPart`].
    pub shape: Option<Vec<Option<usize>>>,
    /// The anchors themselves, in the order of the rows.
    pub rows: Option<Vec<Corners>>,
    /// Form of the anchors in `output` or `rows`.
    #[serde(default = "xyxy")]
    pub form: BoxForm,
    /// Side lengths of square anchors, a list for each stride. Each cell has an anchor for every ratio and size, all
    /// sizes of the first ratio first.
    pub sizes: Option<Vec<Vec<f32>>>,
    /// Ratios of height to width for anchors with `sizes`.
    #[serde(default = "square")]
    pub ratios: Vec<f32>,
    /// Width and height of the anchors of each cell in pixels, a list for each stride.
    pub sides: Option<BTreeMap<usize, Vec<[f32; 2]>>>,
    /// Center of anchors with `sizes` or `sides` in their cell: 0 for its corner, 0.5 for its middle.
    #[serde(default)]
    pub offset: f32,
}

fn xyxy() -> BoxForm {
    BoxForm::Xyxy
}

fn square() -> Vec<f32> {
    vec![1.0]
}

/// A cell of a map: its position, and the number of pixels along its side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub x: f32,
    pub y: f32,
    pub stride: f32,
}

/// Returns the number of [`cells`].
pub(super) fn n_cells(strides: &[usize], [height, width]: [usize; 2]) -> usize {
    strides.iter().map(|&stride| height.div_ceil(stride.max(1)) * width.div_ceil(stride.max(1))).sum()
}

/// Returns the cells of the maps of all `strides`, row by row, for an input of this height and width.
pub(super) fn cells(strides: &[usize], [height, width]: [usize; 2]) -> Vec<Cell> {
    let of_stride = |&stride: &usize| {
        let (rows, columns) = (height.div_ceil(stride.max(1)), width.div_ceil(stride.max(1)));
        let cell = move |i: usize| Cell { x: (i % columns) as f32, y: (i / columns) as f32, stride: stride as f32 };
        (0..rows * columns).map(cell)
    };
    strides.iter().flat_map(of_stride).collect()
}

impl Anchors {
    /// Returns the anchors as corners, in the order of the rows. Fails if an output does not hold boxes, a stride has
    /// no anchors, or the input's height and width are needed and not known.
    pub(super) fn corners(
        &self,
        outputs: &[OutputView],
        strides: &[usize],
        input: Option<[usize; 2]>,
    ) -> Result<Vec<Corners>> {
        if let Some(rows) = &self.rows {
            return Ok(rows.iter().map(|row| plain(self.form, row)).collect());
        }
        let base: Vec<Vec<Corners>> = if let Some(sizes) = &self.sizes {
            sizes.iter().map(|sizes| self.of_sizes(sizes)).collect()
        } else if let Some(sides) = &self.sides {
            let of_stride = |stride: &usize| -> Result<Vec<Corners>> {
                let sides = sides.get(stride).with_context(|| format!("`anchors.sides`: expected stride {stride}"))?;
                Ok(sides.iter().copied().map(around_zero).collect())
            };
            strides.iter().map(of_stride).collect::<Result<_>>()?
        } else {
            let part = OutputPart { output: self.output.clone(), shape: self.shape.clone(), ..OutputPart::default() };
            let rows = part.rows(outputs).context("`anchors`")?;
            ensure!(rows.n_columns == 4, "`anchors`: found {} columns, expected 4", rows.n_columns);
            return Ok(rows.values.as_chunks::<4>().0.iter().map(|row| plain(self.form, row)).collect());
        };
        let input = input.context(NO_INPUT)?;
        let of_stride = |(stride, base): (&usize, &Vec<Corners>)| -> Vec<Corners> {
            let at = |cell: Cell| {
                let [x, y] = [(cell.x + self.offset) * cell.stride, (cell.y + self.offset) * cell.stride];
                base.iter().map(move |[l, t, r, b]| [x + l, y + t, x + r, y + b])
            };
            cells(std::slice::from_ref(stride), input).into_iter().flat_map(at).collect()
        };
        Ok(strides.iter().zip(&base).flat_map(of_stride).collect())
    }

    /// Returns the anchors of a cell at 0, with all `sizes` of the first ratio first.
    fn of_sizes(&self, sizes: &[f32]) -> Vec<Corners> {
        let of_ratio = |ratio: &f32| {
            let high = ratio.sqrt();
            sizes.iter().map(move |size| [size / high, size * high])
        };
        let sides = self.ratios.iter().flat_map(of_ratio);
        // Corners are rounded as in RetinaNet.
        sides.map(|sides| around_zero(sides).map(f32::round_ties_even)).collect()
    }
}

/// Returns the box of this width and height with its center at 0.
fn around_zero([w, h]: [f32; 2]) -> Corners {
    [-w / 2.0, -h / 2.0, w / 2.0, h / 2.0]
}

/// Returns the corners of a box of absolute form.
fn plain(form: BoxForm, row: &Corners) -> Corners {
    let [a, b, c, d] = *row;
    match form {
        BoxForm::Yxyx => [b, a, d, c],
        BoxForm::Xywh => [a, b, a + c, b + d],
        BoxForm::Cxcywh => [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0],
        _ => [a, b, c, d],
    }
}

/// The references of box values: cells, anchors, factors and bins.
pub(super) struct BoxReferences<'a> {
    pub form: BoxForm,
    pub cells: &'a [Cell],
    /// Number of rows for each cell.
    pub per_cell: usize,
    pub anchors: &'a [Corners],
    /// Factors of the offsets from the center, and of the exponents.
    pub variances: [f32; 2],
    pub bins: Option<usize>,
}

impl BoxReferences<'_> {
    /// Returns the corners of every row.
    pub fn corners(&self, rows: &PartRows) -> Result<Vec<Corners>> {
        let n_columns = 4 * self.bins.unwrap_or(1);
        ensure!(rows.n_columns == n_columns, "`boxes`: found {} columns, expected {n_columns}", rows.n_columns);
        let n = rows.n_rows();
        let of_cells = self.form.has_cells().then(|| self.cells.len().saturating_mul(self.per_cell));
        let of_anchors = self.form.has_anchors().then_some(self.anchors.len());
        if let Some(n_known) = [of_cells, of_anchors].into_iter().flatten().find(|n_known| *n_known != n) {
            bail!("`boxes`: found {n} rows, expected {n_known}, one for each cell or anchor");
        }
        Ok((0..n).map(|i| self.one(i, rows.row(i))).collect())
    }

    fn one(&self, i: usize, row: &[f32]) -> Corners {
        let row = match self.bins {
            Some(bins) => std::array::from_fn(|side| mean_of_bins(&row[side * bins..(side + 1) * bins])),
            None => std::array::from_fn(|k| row[k]),
        };
        let [a, b, c, d] = row;
        let cell = || self.cells[i / self.per_cell];
        match self.form {
            BoxForm::Cells => {
                let Cell { x, y, stride } = cell();
                plain(BoxForm::Cxcywh, &[(a + x) * stride, (b + y) * stride, c.exp() * stride, d.exp() * stride])
            }
            BoxForm::Centers => {
                let Cell { x, y, stride } = cell();
                plain(BoxForm::Cxcywh, &[a + x, b + y, c, d].map(|value| value * stride))
            }
            BoxForm::Ltrb | BoxForm::LtrbCorner => {
                let Cell { x, y, stride } = cell();
                let offset = if self.form == BoxForm::Ltrb { 0.5 } else { 0.0 };
                let [x, y] = [x + offset, y + offset];
                [x - a, y - b, x + c, y + d].map(|side| side * stride)
            }
            BoxForm::Anchors => {
                let ([x, y, w, h], [of_centre, of_size]) = (centred(self.anchors[i]), self.variances);
                let [w_new, h_new] = [w * (c * of_size).exp(), h * (d * of_size).exp()];
                plain(BoxForm::Cxcywh, &[x + a * of_centre * w, y + b * of_centre * h, w_new, h_new])
            }
            BoxForm::AnchorCorners => {
                let [left, top, right, bottom] = self.anchors[i];
                let [w, h] = [right - left, bottom - top];
                [left + a * w, top + b * h, right + c * w, bottom + d * h]
            }
            BoxForm::Yolov3 | BoxForm::Yolov5 => {
                let (Cell { x, y, stride }, [_, _, w, h]) = (cell(), centred(self.anchors[i]));
                let mut shares: [f32; 4] = row;
                HeadActivation::Sigmoid.apply(&mut shares);
                let [right, down, wide, high] = match self.form {
                    BoxForm::Yolov3 => [shares[0], shares[1], c.exp(), d.exp()],
                    _ => {
                        let [right, down, wide, high] = shares.map(|share| 2.0 * share);
                        [right - 0.5, down - 0.5, wide * wide, high * high]
                    }
                };
                plain(BoxForm::Cxcywh, &[(x + right) * stride, (y + down) * stride, w * wide, h * high])
            }
            form => plain(form, &row),
        }
    }
}

/// Returns center, width and height of a box.
fn centred([left, top, right, bottom]: Corners) -> [f32; 4] {
    [(left + right) / 2.0, (top + bottom) / 2.0, right - left, bottom - top]
}

/// Returns the mean bin of a distribution, which is the Softmax of `bins`.
fn mean_of_bins(bins: &[f32]) -> f32 {
    let mut shares = bins.to_vec();
    HeadActivation::Softmax.apply(&mut shares);
    shares.iter().enumerate().map(|(bin, share)| bin as f32 * share).sum()
}

/// Returns the intersection over union of two boxes, 0 to 1.
pub fn iou(a: &Corners, b: &Corners) -> f32 {
    let side = |low: usize| (a[low + 2].min(b[low + 2]) - a[low].max(b[low])).max(0.0);
    let area = |c: &Corners| (c[2] - c[0]).max(0.0) * (c[3] - c[1]).max(0.0);
    let shared = side(0) * side(1);
    shared / (area(a) + area(b) - shared).max(1e-9)
}

/// Returns at most [`MAX_DETECTIONS`] boxes, in descending order of their scores. With `nms`, a box is left out if its
/// IoU with a better box of its class is above `nms`.
pub(super) fn suppressed(mut found: Vec<Detection>, nms: Option<f32>) -> Vec<Detection> {
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    let Some(nms) = nms else {
        found.truncate(MAX_DETECTIONS);
        return found;
    };
    let mut kept: Vec<Detection> = Vec::new();
    for detection in found {
        let covers =
            |other: &Detection| other.class == detection.class && iou(&other.corners, &detection.corners) > nms;
        if kept.len() < MAX_DETECTIONS && !kept.iter().any(covers) {
            kept.push(detection);
        }
    }
    kept
}
