//! Outputs as tables: a row per candidate.

use super::{ColumnAxis, Columns, OutputName, Outputs};
use crate::diag::none_of;
use anyhow::{Context, Result, bail, ensure};
use std::ops::Range;

/// An output of one run.
#[derive(Debug, Clone, Copy)]
pub struct NamedOutput<'a> {
    /// ONNX name.
    pub name: &'a str,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// In row-major order.
    pub values: &'a [f32],
}

/// A candidate per row, of one image.
pub(super) struct RowTable {
    pub n_rows: usize,
    n_columns: usize,
    values: Vec<f32>,
}

impl RowTable {
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.n_columns..(i + 1) * self.n_columns]
    }
}

/// Which of the outputs each part of a head takes.
pub(super) struct Taken<'a> {
    outputs: &'a [NamedOutput<'a>],
    /// The images of a run.
    n_images: usize,
    is_taken: Vec<bool>,
}

impl<'a> Taken<'a> {
    pub fn new(outputs: &'a [NamedOutput<'a>], n_images: usize) -> Taken<'a> {
        Taken { outputs, n_images, is_taken: vec![false; outputs.len()] }
    }

    /// The columns of one part, of each image; of `width` columns where it takes so many.
    pub fn tables(&mut self, columns: &Columns, width: Option<usize>) -> Result<Vec<RowTable>> {
        let chosen = self.chosen(columns)?;
        chosen.iter().for_each(|&i| self.is_taken[i] = true);
        (0..self.n_images).map(|image| self.table(&chosen, columns, width, image)).collect()
    }

    fn chosen(&self, columns: &Columns) -> Result<Vec<usize>> {
        let shapes = || {
            let shape = |output: &NamedOutput| format!("`{}` {:?}", output.name, output.shape);
            self.outputs.iter().map(shape).collect::<Vec<_>>().join(", ")
        };
        let find = |name: &OutputName| match name {
            OutputName::Position(position) => {
                let n = self.outputs.len();
                ensure!(*position < n, "output {position} is unknown, expected less than {n}");
                Ok(*position)
            }
            OutputName::Name(name) => {
                let unknown = || none_of(format_args!("output `{name}` is unknown"), name, self.names());
                self.outputs.iter().position(|output| output.name == *name).ok_or_else(unknown)
            }
            OutputName::Shape(wanted) => {
                let has = |output: &NamedOutput| {
                    axis_of(output.shape, columns)
                        .is_ok_and(|axis| axis.map(|k| output.shape[k]) == Some(wanted.columns))
                };
                let mut fit = (0..self.outputs.len()).filter(|&i| has(&self.outputs[i]));
                let found = fit.nth(wanted.skip);
                let which = if wanted.skip > 0 { format!("{} more", wanted.skip) } else { "no".to_string() };
                found.with_context(|| format!("{which} output with {} columns, found {}", wanted.columns, shapes()))
            }
        };
        match &columns.output {
            Some(Outputs::One(name)) => Ok(vec![find(name)?]),
            Some(Outputs::Several(names)) => names.iter().map(find).collect(),
            None => match self.is_taken.iter().position(|is_taken| !is_taken) {
                Some(position) => Ok(vec![position]),
                None => bail!("no output is left, found {}", shapes()),
            },
        }
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.outputs.iter().map(|output| output.name)
    }

    fn table(&self, chosen: &[usize], columns: &Columns, width: Option<usize>, image: usize) -> Result<RowTable> {
        let mut table = RowTable { n_rows: 0, n_columns: 0, values: Vec::new() };
        for &i in chosen {
            let output = &self.outputs[i];
            let of_output = || format!("output `{}` of shape {:?}", output.name, output.shape);
            let n_columns = self.add(output, columns, width, image, &mut table).with_context(of_output)?;
            let n_before = if table.n_columns == 0 { n_columns } else { table.n_columns };
            ensure!(n_columns == n_before, "{}: {n_columns} columns, expected {n_before} as before it", of_output());
            table.n_columns = n_columns;
        }
        table.n_rows = table.values.len() / table.n_columns.max(1);
        Ok(table)
    }

    /// Adds the rows of an output; gives the number of their columns.
    fn add(
        &self,
        output: &NamedOutput,
        columns: &Columns,
        width: Option<usize>,
        image: usize,
        table: &mut RowTable,
    ) -> Result<usize> {
        let axis = axis_of(output.shape, columns)?;
        let (mut shape, mut values) = (output.shape.to_vec(), output.values);
        if self.n_images > 1 {
            let is_batch = shape.first() == Some(&self.n_images) && axis != Some(0);
            ensure!(is_batch, "found no axis of {} images, expected it first", self.n_images);
            shape[0] = 1;
            let length = values.len() / self.n_images;
            values = &values[image * length..(image + 1) * length];
        }
        let (n, inner) = axis.map_or((1, 1), |axis| (shape[axis], shape[axis + 1..].iter().product::<usize>()));
        let range = range_of(columns, width, n)?;
        let n_rows = values.len() / n.max(1);
        for row in 0..n_rows {
            let first = row / inner * n * inner + row % inner;
            table.values.extend(range.clone().map(|column| values[first + column * inner]));
        }
        Ok(range.len())
    }
}

/// The position of the columns' axis; `None` where each value is a row.
fn axis_of(shape: &[usize], columns: &Columns) -> Result<Option<usize>> {
    let axis = match columns.axis {
        Some(ColumnAxis::None(_)) => return Ok(None),
        Some(ColumnAxis::Number(axis)) => axis,
        None => -1,
    };
    let n = shape.len() as isize;
    let position = if axis < 0 { n + axis } else { axis };
    ensure!((0..n).contains(&position), "`axis` is {axis}, found {n} axes");
    Ok(Some(position as usize))
}

/// Which of `n` columns.
fn range_of(columns: &Columns, width: Option<usize>, n: usize) -> Result<Range<usize>> {
    let position = |at: isize| if at < 0 { n as isize + at } else { at };
    let first = position(columns.first);
    let end = match (columns.end, width) {
        (Some(end), _) => position(end),
        (None, Some(width)) => first + width as isize,
        (None, None) => n as isize,
    };
    ensure!(0 <= first && first < end && end <= n as isize, "columns {first} to {end}, found {n} columns");
    let range = first as usize..end as usize;
    ensure!(width.is_none_or(|width| width == range.len()), "columns {first} to {end}, expected {width:?} of them");
    Ok(range)
}
