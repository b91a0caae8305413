//! Rows to boxes.

use super::grid::Cell;
use super::rows::{NamedOutput, RowTable, Taken};
use super::values::{expectation, softmax};
use super::{ActivationFunction, Background, BoxForm, Boxes, Columns, Head, Priors};
use crate::metrics::task::{Detection, suppressed};
use anyhow::{Context, Result, ensure};

/// The columns of one image, part by part.
struct Parts {
    boxes: RowTable,
    scores: RowTable,
    objectness: Option<RowTable>,
    labels: Option<RowTable>,
    priors: Option<RowTable>,
}

impl Head {
    /// The boxes of each of a run's `n_images`, best first, of an input of `image` height and width where that is known;
    /// `None` where a value is NaN, or a box that counts is not finite.
    ///
    /// # Errors
    /// If the outputs are not those of this head.
    pub fn detections(
        &self,
        outputs: &[NamedOutput],
        n_images: usize,
        image: Option<[usize; 2]>,
    ) -> Result<Option<Vec<Vec<Detection>>>> {
        let decoded = || {
            let images = self.parts(outputs, n_images)?.into_iter().map(|parts| self.of_image(&parts, image));
            images.collect::<Result<Option<Vec<_>>>>()
        };
        decoded().with_context(|| format!("head `{}`", self.name))
    }

    fn parts(&self, outputs: &[NamedOutput], n_images: usize) -> Result<Vec<Parts>> {
        let mut taken = Taken::new(outputs, n_images);
        let mut tables = |part: &str, columns: &Columns, width: Option<usize>| {
            Ok::<_, anyhow::Error>(taken.tables(columns, width).with_context(|| format!("`{part}`"))?.into_iter())
        };
        let mut boxes = tables("boxes", &self.boxes.columns, Some(4 * self.boxes.bins))?;
        let mut optional = |part: &str, columns: Option<&Columns>, width: usize| {
            columns.map(|columns| tables(part, columns, Some(width))).transpose()
        };
        let mut priors = optional("priors", self.priors.as_ref().map(|priors| &priors.columns), 4)?;
        let mut labels = optional("labels", self.labels.as_ref().map(|labels| &labels.columns), 1)?;
        let mut objectness = optional("objectness", self.objectness.as_ref().map(|object| &object.columns), 1)?;
        let n_scores = self.labels.as_ref().map(|_| 1);
        let scores = tables("scores", &self.scores.columns, n_scores)?;
        let next = |tables: &mut Option<std::vec::IntoIter<RowTable>>| tables.as_mut().and_then(Iterator::next);
        let mut images = Vec::new();
        for scores in scores {
            let boxes = boxes.next().context("internal error: fewer boxes than images")?;
            let parts = Parts {
                boxes,
                scores,
                objectness: next(&mut objectness),
                labels: next(&mut labels),
                priors: next(&mut priors),
            };
            parts.check()?;
            images.push(parts);
        }
        Ok(images)
    }

    fn of_image(&self, parts: &Parts, image: Option<[usize; 2]>) -> Result<Option<Vec<Detection>>> {
        let n_rows = parts.boxes.n_rows;
        let cells = match &self.grid {
            Some(grid) => {
                let image = image.context("`grid`: the model has no input of four axes, expected an image's")?;
                Some(grid.cells(image, n_rows).context("`grid`")?)
            }
            None => None,
        };
        let mut found = Vec::new();
        for i in 0..n_rows {
            if parts.has_nan(i) {
                return Ok(None);
            }
            let Some((class, score)) = self.class(parts, i) else { continue };
            if score >= self.score_threshold {
                let place = match (&cells, &self.priors, &parts.priors) {
                    (Some(cells), ..) => Place::Cell(&cells[i]),
                    (None, Some(priors), Some(table)) => Place::Prior(priors, table.row(i)),
                    _ => Place::Image,
                };
                let corners = self.boxes.corners(parts.boxes.row(i), &place);
                if !score.is_finite() || corners.iter().any(|side| !side.is_finite()) {
                    return Ok(None);
                }
                found.push(Detection { class, score, corners });
            }
        }
        Ok(Some(suppressed(found, self.nms_iou)))
    }

    /// The class of a row and its score; `None` where it has no class but the background.
    fn class(&self, parts: &Parts, i: usize) -> Option<(usize, f64)> {
        let row = parts.scores.row(i);
        let all = match self.scores.activation {
            ActivationFunction::Softmax => softmax(row),
            other => row.iter().map(|&x| other.of(f64::from(x))).collect(),
        };
        let classes = match self.scores.background {
            Some(Background::First) => &all[1..],
            Some(Background::Last) => &all[..all.len() - 1],
            None => &all[..],
        };
        let better = |best: (usize, f64), other: (usize, f64)| if other.1 > best.1 { other } else { best };
        let (mut class, score) = classes.iter().copied().enumerate().reduce(better)?;
        if let Some(labels) = &parts.labels {
            class = labels.row(i)[0].max(0.0).round() as usize;
        }
        let objectness = self.objectness.as_ref().zip(parts.objectness.as_ref());
        let factor = objectness.map_or(1.0, |(part, table)| part.activation.of(f64::from(table.row(i)[0])));
        Some((class, score * factor))
    }
}

impl Parts {
    fn others(&self) -> impl Iterator<Item = (&str, &RowTable)> {
        let optional = [("objectness", &self.objectness), ("labels", &self.labels), ("priors", &self.priors)];
        let optional = optional.into_iter().filter_map(|(part, table)| Some((part, table.as_ref()?)));
        std::iter::once(("scores", &self.scores)).chain(optional)
    }

    fn check(&self) -> Result<()> {
        for (part, table) in self.others() {
            let (n, expected) = (table.n_rows, self.boxes.n_rows);
            ensure!(n == expected, "`{part}` has {n} rows, expected {expected} as `boxes`");
        }
        Ok(())
    }

    fn has_nan(&self, i: usize) -> bool {
        let is_nan = |table: &RowTable| table.row(i).iter().any(|value| value.is_nan());
        is_nan(&self.boxes) || self.others().any(|(_, table)| is_nan(table))
    }
}

/// What a row's box is relative to.
enum Place<'a> {
    Image,
    Cell(&'a Cell),
    Prior(&'a Priors, &'a [f32]),
}

impl Boxes {
    fn corners(&self, row: &[f32], place: &Place) -> [f64; 4] {
        let number = |k: usize| f64::from(row[k]);
        match (self.form, place) {
            (BoxForm::LtrbDistances, place) => {
                let (point, stride) = match place {
                    Place::Cell(cell) => (cell.point, cell.stride),
                    _ => ([0.0; 2], 1.0),
                };
                let distance = |side: usize| match self.bins {
                    1 => self.size.of(number(side)),
                    n => self.size.of(expectation(&row[side * n..(side + 1) * n])),
                };
                [point[0] - distance(0), point[1] - distance(1), point[0] + distance(2), point[1] + distance(3)]
                    .map(|at| at * stride)
            }
            (BoxForm::Ltrb, Place::Prior(priors, prior)) => {
                let prior = priors.corners(prior);
                let size = [prior[2] - prior[0], prior[3] - prior[1]];
                [0, 1, 2, 3].map(|k| prior[k] + priors.variances[0] * number(k) * size[k % 2])
            }
            (BoxForm::Ltrb, _) => [0, 1, 2, 3].map(number),
            (BoxForm::Cxcywh, Place::Image) => {
                around([0, 1].map(|k| self.centre.of(number(k))), [2, 3].map(|k| self.size.of(number(k))))
            }
            (BoxForm::Cxcywh, Place::Cell(cell)) => around(
                [0, 1].map(|k| (self.centre.of(number(k)) + cell.point[k]) * cell.stride),
                [0, 1].map(|k| self.size.of(number(k + 2)) * cell.anchor[k]),
            ),
            (BoxForm::Cxcywh, Place::Prior(priors, prior)) => {
                let prior = priors.corners(prior);
                let size = [prior[2] - prior[0], prior[3] - prior[1]];
                let [of_centre, of_size] = priors.variances;
                around(
                    [0, 1].map(|k| prior[k] + 0.5 * size[k] + of_centre * self.centre.of(number(k)) * size[k]),
                    [0, 1].map(|k| self.size.of(of_size * number(k + 2)) * size[k]),
                )
            }
        }
    }
}

impl Priors {
    fn corners(&self, row: &[f32]) -> [f64; 4] {
        let [a, b, c, d] = [0, 1, 2, 3].map(|k| f64::from(row[k]));
        if self.form == BoxForm::Cxcywh { around([a, b], [c, d]) } else { [a, b, c, d] }
    }
}

fn around(centre: [f64; 2], size: [f64; 2]) -> [f64; 4] {
    let at = |k: usize, half: f64| centre[k] + half * size[k];
    [at(0, -0.5), at(1, -0.5), at(0, 0.5), at(1, 0.5)]
}
