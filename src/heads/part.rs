//! Parts of a network's outputs: outputs and their columns.

use super::activation::HeadActivation;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::cmp::Reverse;
use std::num::NonZeroUsize;

/// One output of a network for one image.
#[derive(Debug, Clone, Copy)]
pub struct OutputView<'a> {
    /// ONNX name.
    pub name: &'a str,
    /// Dimensions, with the batch.
    pub shape: &'a [usize],
    /// Whether the first axis is the batch.
    pub has_batch: bool,
    /// Values of this image.
    pub values: &'a [f32],
}

impl<'a> OutputView<'a> {
    /// Returns the output of one image of the batch. The first axis is the batch if it has the length of the batch, and
    /// there are other axes or several images.
    pub fn of_image(name: &'a str, shape: &'a [usize], values: &'a [f32], (batch, image): (usize, usize)) -> Self {
        let has_batch = shape.first() == Some(&batch) && (shape.len() > 1 || batch > 1);
        let n = if has_batch { values.len() / batch.max(1) } else { values.len() };
        let values = if has_batch { values.get(image * n..(image + 1) * n).unwrap_or(values) } else { values };
        OutputView { name, shape, has_batch, values }
    }
}

/// An output by its name or position, or several outputs whose rows follow each other.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected the name or the position of an output, or a list of them")]
pub enum WhichOutput {
    /// Position, counted from 0.
    Position(usize),
    /// ONNX name.
    Name(String),
    /// Several outputs, such as levels, whose rows follow each other.
    Several(Vec<WhichOutput>),
}

/// Columns of a network's outputs. One axis counts columns. All other axes except the batch count rows.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputPart {
    /// The output; absent if `shape` identifies it, or if the network has one output.
    pub output: Option<WhichOutput>,
    /// Dimensions of the output with the batch; `~` stands for any.
    pub shape: Option<Vec<Option<usize>>>,
    /// Whether the output may have further axes behind those of `shape`.
    #[serde(default)]
    pub more_axes: bool,
    /// The axis of the columns, counted with the batch, or from the end if it is below 0. Default: the last axis; an
    /// output with one axis beside the batch has one column.
    pub axis: Option<i64>,
    /// Whether no axis counts columns: each value is a row of one column.
    #[serde(default)]
    pub one_column: bool,
    /// The first column and the column behind the last, or only the first. Default: all columns.
    pub columns: Option<Vec<usize>>,
    /// Number of rows of each cell of a map. Their columns follow each other along the axis of the columns, or the rows
    /// have an axis of their own. Without `output`, the part is all outputs with at least three axes beside the batch,
    /// the largest map first; without `axis`, the axes of equal length in all maps are those of rows and columns.
    pub per_cell: Option<NonZeroUsize>,
    /// Activation, applied row by row.
    #[serde(default)]
    pub activation: HeadActivation,
}

/// The values of a part, row by row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PartRows {
    /// Number of values per row.
    pub n_columns: usize,
    /// All values.
    pub values: Vec<f32>,
}

impl PartRows {
    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.values.len() / self.n_columns.max(1)
    }

    /// Returns one row; empty if there is no such row.
    pub fn row(&self, row_idx: usize) -> &[f32] {
        self.values.get(row_idx * self.n_columns..(row_idx + 1) * self.n_columns).unwrap_or_default()
    }

    /// Returns the values of one column.
    pub(super) fn column(&self, column: usize) -> impl Iterator<Item = f32> + '_ {
        self.values.iter().skip(column).step_by(self.n_columns.max(1)).copied()
    }

    /// Returns rows with the columns of `other` behind those of `self`. Fails if the numbers of rows differ.
    pub(super) fn joined(&self, other: &PartRows) -> Result<PartRows> {
        let (n, n_other) = (self.n_rows(), other.n_rows());
        ensure!(n == n_other, "found {n_other} rows, expected {n}");
        let values = (0..n).flat_map(|row| self.row(row).iter().chain(other.row(row)).copied());
        Ok(PartRows { n_columns: self.n_columns + other.n_columns, values: values.collect() })
    }
}

/// The axes of an output without the batch.
struct PartAxes<'a> {
    /// Lengths of all axes.
    dims: &'a [usize],
    /// The axis of the columns; `None` for one column.
    columns: Option<usize>,
    /// The axis of the rows of a cell, if they have an axis of their own.
    in_cell: Option<usize>,
    /// Number of rows of each cell.
    per_cell: usize,
    /// Number of columns of each row.
    n_columns: usize,
}

impl PartAxes<'_> {
    /// Returns the number of values between neighbors along an axis.
    fn step(&self, axis: usize) -> usize {
        self.dims[axis + 1..].iter().product()
    }

    /// Returns the axes beside those of columns and rows of a cell.
    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.dims.len()).filter(move |&axis| Some(axis) != self.columns && Some(axis) != self.in_cell)
    }

    /// Returns the position of the first value of each row: cell by cell, and row by row in a cell.
    fn starts(&self) -> Vec<usize> {
        let along = |starts: Vec<usize>, n: usize, step: usize| -> Vec<usize> {
            starts.into_iter().flat_map(|start| (0..n).map(move |i| start + i * step)).collect()
        };
        let cells = self.others().fold(vec![0], |starts, axis| along(starts, self.dims[axis], self.step(axis)));
        let of_columns = self.columns.map_or(0, |axis| self.n_columns * self.step(axis));
        along(cells, self.per_cell, self.in_cell.map_or(of_columns, |axis| self.step(axis)))
    }
}

impl OutputPart {
    /// Returns the number of dimensions and names that the part requires.
    pub(super) fn specificity(&self) -> usize {
        let n_fixed = |shape: &Vec<Option<usize>>| 1 + shape.iter().flatten().count();
        let is_named = matches!(&self.output, Some(WhichOutput::Name(_) | WhichOutput::Several(_)));
        usize::from(is_named) + self.shape.as_ref().map_or(0, n_fixed)
    }

    /// Returns the outputs of the part.
    ///
    /// # Errors
    /// If there is no such output, or if several outputs match without `output`, or fewer than two with `per_cell`.
    pub fn outputs<'v, 'a>(&self, outputs: &'v [OutputView<'a>]) -> Result<Vec<&'v OutputView<'a>>> {
        let listed = || {
            let described = outputs.iter().map(|output| format!("`{}` {:?}", output.name, output.shape));
            described.collect::<Vec<_>>().join(", ")
        };
        let fits = |output: &&OutputView| self.shape.as_ref().is_none_or(|shape| self.fits(shape, output.shape));
        if let Some(which) = &self.output {
            let found = named(which, outputs).with_context(|| format!("found {}", listed()))?;
            for output in &found {
                ensure!(
                    fits(output),
                    "output `{}` has shape {:?}, expected {}",
                    output.name,
                    output.shape,
                    self.spelled(self.shape.as_deref().unwrap_or_default())
                );
            }
            return Ok(found);
        }
        let mut found: Vec<&OutputView> = outputs.iter().filter(fits).collect();
        if self.per_cell.is_some() {
            found.retain(|output| output.shape.len() > 3);
            found.sort_by_key(|output| Reverse(output.values.len()));
            ensure!(found.len() > 1, "found {}, expected a map for each of several levels", listed());
            return Ok(found);
        }
        // An output of one value, such as the score for the presence of a hand, is only meant if no other output
        // matches.
        if found.len() > 1 {
            found.retain(|output| output.values.len() > 1);
        }
        match (&found[..], &self.shape) {
            ([_], _) => Ok(found),
            (_, Some(shape)) => bail!("found {}, expected one output of shape {}", listed(), self.spelled(shape)),
            (_, None) => bail!("found {}, expected one output, or the head's key `output`", listed()),
        }
    }

    /// Returns height and width: the lengths of the two axes beside batch and columns.
    ///
    /// # Errors
    /// If there is no such output, or if it does not have two such axes.
    pub fn sides(&self, outputs: &[OutputView]) -> Result<[usize; 2]> {
        let found = self.outputs(outputs)?;
        let Some(output) = found.first() else { bail!("found no output, expected one") };
        match self.other_lengths(output, &found)?[..] {
            [height, width] if found.len() == 1 => Ok([height, width]),
            _ => bail!(
                "output `{}` has shape {:?}, expected height and width beside the columns",
                output.name,
                output.shape
            ),
        }
    }

    /// Returns the lengths of the axes beside batch and columns, of one of the `found` outputs of the part. Fails if
    /// the output does not have the axis of the columns.
    pub(super) fn other_lengths(&self, output: &OutputView, found: &[&OutputView]) -> Result<Vec<usize>> {
        let axes = self.axes(output, found)?;
        Ok(axes.others().map(|axis| axes.dims[axis]).collect())
    }

    /// Returns the axes of one of the `found` outputs of the part.
    fn axes<'a>(&self, output: &OutputView<'a>, found: &[&OutputView]) -> Result<PartAxes<'a>> {
        let n_batch = usize::from(output.has_batch);
        let dims = &output.shape[n_batch..];
        let per_cell = self.per_cell.map_or(1, NonZeroUsize::get);
        let (in_cell, columns) = match self.axis {
            _ if self.one_column => (None, None),
            None if self.per_cell.is_some() => {
                let has_length = |other: &&OutputView, axis: usize| {
                    other.shape.len() == output.shape.len() && other.shape[n_batch + axis] == dims[axis]
                };
                let is_common = |&axis: &usize| found.iter().all(|other| has_length(other, axis));
                match (0..dims.len()).filter(is_common).collect::<Vec<usize>>()[..] {
                    [columns] => (None, Some(columns)),
                    [in_cell, columns] if dims[in_cell] == per_cell => (Some(in_cell), Some(columns)),
                    _ => bail!(
                        "expected maps of several sizes, with an axis of {per_cell} times as many values as columns or \
                         with axes of {per_cell} and of columns"
                    ),
                }
            }
            None if dims.len() == 1 => (None, None),
            None => (None, Some(dims.len().checked_sub(1).context("has no axis, expected one")?)),
            Some(axis) => {
                let from_start = if axis < 0 { axis + dims.len() as i64 } else { axis - n_batch as i64 };
                let axis_idx = usize::try_from(from_start).ok().filter(|&axis| axis < dims.len());
                (None, Some(axis_idx.with_context(|| format!("has no axis {axis}, expected one of its axes"))?))
            }
        };
        let n_all = columns.map_or(1, |axis| dims[axis]);
        let n_rows = if in_cell.is_some() { 1 } else { per_cell };
        ensure!(n_all.is_multiple_of(n_rows), "has {n_all} columns, expected a multiple of {n_rows}");
        Ok(PartAxes { dims, columns, in_cell, per_cell, n_columns: n_all / n_rows })
    }

    /// Returns the rows, with the activation applied.
    ///
    /// # Errors
    /// If there is no such output or column, or if several outputs have different numbers of columns.
    pub fn rows(&self, outputs: &[OutputView]) -> Result<PartRows> {
        let mut rows = PartRows::default();
        let found = self.outputs(outputs)?;
        for output in &found {
            let appended = self.append(output, &found, &mut rows);
            appended.with_context(|| format!("output `{}` {:?}", output.name, output.shape))?;
        }
        if rows.n_columns > 0 {
            rows.values.chunks_exact_mut(rows.n_columns).for_each(|row| self.activation.apply(row));
        }
        Ok(rows)
    }

    /// Returns the first column and the column behind the last, for the first output of the part. Fails if there is no
    /// such output or column.
    pub(super) fn column_range(&self, outputs: &[OutputView]) -> Result<(usize, usize)> {
        let found = self.outputs(outputs)?;
        self.span(&self.axes(found.first().context("found no output, expected one")?, &found)?)
    }

    fn span(&self, axes: &PartAxes) -> Result<(usize, usize)> {
        let n_all = axes.n_columns;
        let (first, end) = match self.columns.as_deref() {
            None => (0, n_all),
            Some(&[first]) => (first, n_all),
            Some(&[first, end]) => (first, end),
            Some(_) => bail!("`columns` does not have one or two numbers"),
        };
        ensure!(first < end && end <= n_all, "has {n_all} columns, expected columns {first} to {end}");
        Ok((first, end))
    }

    fn append(&self, output: &OutputView, found: &[&OutputView], rows: &mut PartRows) -> Result<()> {
        let axes = self.axes(output, found)?;
        let (first, end) = self.span(&axes)?;
        ensure!(
            rows.values.is_empty() || rows.n_columns == end - first,
            "has {} columns, expected {} as in the outputs before it",
            end - first,
            rows.n_columns
        );
        let (n, n_values) = (axes.dims.iter().product::<usize>(), output.values.len());
        ensure!(n_values == 0 || n_values == n, "has {n_values} values, expected {n}");
        rows.n_columns = end - first;
        if n_values == 0 {
            return Ok(());
        }
        let step = axes.columns.map_or(1, |axis| axes.step(axis));
        for start in axes.starts() {
            rows.values.extend((first..end).map(|column| output.values[start + column * step]));
        }
        Ok(())
    }

    fn fits(&self, pattern: &[Option<usize>], shape: &[usize]) -> bool {
        let has_axes = pattern.len() == shape.len() || self.more_axes && pattern.len() < shape.len();
        has_axes && pattern.iter().zip(shape).all(|(wanted, n)| wanted.is_none_or(|wanted| wanted == *n))
    }

    fn spelled(&self, pattern: &[Option<usize>]) -> String {
        let dims = pattern.iter().map(|dim| dim.map_or("any".to_string(), |n| n.to_string()));
        let more = self.more_axes.then(|| "...".to_string());
        format!("[{}]", dims.chain(more).collect::<Vec<_>>().join(", "))
    }
}

fn named<'v, 'a>(which: &WhichOutput, outputs: &'v [OutputView<'a>]) -> Result<Vec<&'v OutputView<'a>>> {
    match which {
        WhichOutput::Position(at) => {
            let found = outputs.get(*at).with_context(|| format!("expected an output at position {at}"))?;
            Ok(vec![found])
        }
        WhichOutput::Name(name) => {
            let found = outputs.iter().find(|output| output.name == name);
            Ok(vec![found.with_context(|| format!("expected an output `{name}`"))?])
        }
        WhichOutput::Several(all) => {
            let all: Vec<Vec<&OutputView>> = all.iter().map(|one| named(one, outputs)).collect::<Result<_>>()?;
            Ok(all.concat())
        }
    }
}

/// Returns the position of the largest value, the first of equal ones, and the value; `None` if a value is NaN or there
/// are no values.
pub fn largest<'v>(values: impl IntoIterator<Item = &'v f32>) -> Option<(usize, f32)> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &value) in values.into_iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, best)| value > best) {
            best = Some((i, value));
        }
    }
    best
}
