//! Matrices of f64, their products and Cholesky factorization. The only module that uses ndarray.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, Axis, ShapeBuilder, s};
use rayon::prelude::*;
use std::ops::{Index, IndexMut};

/// Number of rows and columns that are factorized directly; matrix products update the others.
const BLOCK: usize = 64;
/// Number of columns of [`square`] that one matrix product computes.
const STRIP: usize = 256;

/// A column-major matrix.
#[derive(Debug, Clone)]
pub struct Matrix {
    n_rows: usize,
    values: Vec<f64>,
}

impl Matrix {
    /// Returns a matrix of zeros, `[n_rows, n_columns]`.
    pub fn zeros(n_rows: usize, n_columns: usize) -> Matrix {
        Matrix { n_rows, values: vec![0.0; n_rows * n_columns] }
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the number of columns.
    pub fn n_columns(&self) -> usize {
        self.values.len() / self.n_rows.max(1)
    }

    /// Returns the values of column `j`, first row first.
    pub fn column(&self, j: usize) -> &[f64] {
        &self.values[j * self.n_rows..(j + 1) * self.n_rows]
    }

    /// Returns the values of column `j`, mutable.
    pub fn column_mut(&mut self, j: usize) -> &mut [f64] {
        &mut self.values[j * self.n_rows..(j + 1) * self.n_rows]
    }

    /// Returns the values, column by column.
    pub fn into_columns(self) -> Vec<f64> {
        self.values
    }

    fn view(&self) -> ArrayView2<'_, f64> {
        column_major(&self.values, self.n_rows)
    }

    /// Solves `self X = right` for `X` by Cholesky factorization of `self`. Only the lower half of `self` is read.
    /// Returns `None` where `self` is not positive definite.
    pub fn solve_positive_definite(&self, right: &Matrix) -> Option<Matrix> {
        let mut lower = self.view().to_owned();
        factorize(lower.view_mut())?;
        let mut solved = right.clone();
        let strips = solved.values.par_chunks_mut(self.n_rows.max(1) * BLOCK);
        strips.for_each(|strip| solve(lower.view(), column_major_mut(strip, self.n_rows)));
        Some(solved)
    }

    /// Writes `self` times `right` to `product`. Both slices are column-major: `right` is `[n_columns of self, n]`,
    /// `product` is `[n_rows of self, n]`. Runs on this thread only.
    pub fn times(&self, right: &[f64], product: &mut [f64]) {
        let right = column_major(right, self.n_columns());
        general_mat_mul(1.0, &self.view(), &right, 0.0, &mut column_major_mut(product, self.n_rows));
    }
}

impl Index<(usize, usize)> for Matrix {
    type Output = f64;

    fn index(&self, (i, j): (usize, usize)) -> &f64 {
        &self.column(j)[i]
    }
}

impl IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut f64 {
        &mut self.column_mut(j)[i]
    }
}

/// Returns `left^T right` for two row-major matrices of `n` rows: `left` is `[n, n_left]`, `right` is `[n, n_right]`.
/// The product, `[n_left, n_right]`, is column-major. Runs on this thread only.
pub fn transposed_product(left: &[f32], right: &[f32], n_left: usize, n_right: usize) -> Vec<f32> {
    let mut product = vec![0f32; n_left * n_right];
    // A row-major matrix is its column-major transpose.
    let (left, right) = (column_major(left, n_left), column_major(right, n_right));
    general_mat_mul(1.0, &left, &right.t(), 0.0, &mut column_major_mut(&mut product, n_left));
    product
}

/// Returns `rows^T rows` for a row-major matrix `[n, n_columns]`. One half is computed, then mirrored. Runs on this
/// thread only.
pub fn square(rows: &[f32], n_columns: usize) -> Vec<f32> {
    let mut product = vec![0f32; n_columns * n_columns];
    let rows = column_major(rows, n_columns);
    let mut square = column_major_mut(&mut product, n_columns);
    for (strip, mut columns) in square.axis_chunks_iter_mut(Axis(1), STRIP).enumerate() {
        let first = strip * STRIP;
        let right = rows.slice(s![first..first + columns.ncols(), ..]);
        general_mat_mul(1.0, &rows.slice(s![first.., ..]), &right.t(), 0.0, &mut columns.slice_mut(s![first.., ..]));
    }
    for first in (0..n_columns).step_by(BLOCK) {
        for j in first..n_columns {
            for i in first..j.min(first + BLOCK) {
                product[j * n_columns + i] = product[i * n_columns + j];
            }
        }
    }
    product
}

/// Replaces the lower half of a positive definite matrix by its Cholesky factor, from left to right. A matrix product
/// updates the columns behind each factorized block. Returns `None` where a pivot is not positive. The upper half is
/// not read.
fn factorize(mut rest: ArrayViewMut2<f64>) -> Option<()> {
    while !rest.is_empty() {
        let n = rest.nrows().min(BLOCK);
        let (mut block, mut right) = rest.split_at(Axis(1), n);
        for j in 0..n {
            let (before, mut from_j) = block.view_mut().split_at(Axis(1), j);
            let mut column = from_j.slice_mut(s![j.., 0]);
            for before in before.columns() {
                column.scaled_add(-before[j], &before.slice(s![j..]));
            }
            let pivot = column.first().map(|pivot| pivot.sqrt()).filter(|pivot| *pivot > 0.0 && pivot.is_finite())?;
            column /= pivot;
        }
        let below = block.slice(s![n.., ..]);
        let strips: Vec<_> = right.axis_chunks_iter_mut(Axis(1), BLOCK).enumerate().collect();
        strips.into_par_iter().for_each(|(strip, mut columns)| {
            let below = below.slice(s![strip * BLOCK.., ..]);
            let across = below.slice(s![..columns.ncols(), ..]);
            general_mat_mul(-1.0, &below, &across.t(), 1.0, &mut columns.slice_mut(s![n + strip * BLOCK.., ..]));
        });
        rest = right.split_at(Axis(0), n).1;
    }
    Some(())
}

/// Solves for the columns of `right` in place, with the lower Cholesky factor of a matrix: forward with the factor,
/// then backward with its transpose.
fn solve(lower: ArrayView2<f64>, mut right: ArrayViewMut2<f64>) {
    let n = lower.nrows();
    let blocks = || (0..n).step_by(BLOCK).map(|first| (first, (first + BLOCK).min(n)));
    for (first, end) in blocks() {
        let (mut above, mut below) = right.view_mut().split_at(Axis(0), end);
        let diagonal = lower.slice(s![first..end, first..end]);
        let mut solved = above.slice_mut(s![first.., ..]);
        for mut column in solved.columns_mut() {
            for (j, factors) in diagonal.columns().into_iter().enumerate() {
                column[j] /= factors[j];
                let value = column[j];
                column.slice_mut(s![j + 1..]).scaled_add(-value, &factors.slice(s![j + 1..]));
            }
        }
        general_mat_mul(-1.0, &lower.slice(s![end.., first..end]), &solved, 1.0, &mut below);
    }
    for (first, end) in blocks().collect::<Vec<_>>().into_iter().rev() {
        let (mut above, below) = right.view_mut().split_at(Axis(0), end);
        let mut unsolved = above.slice_mut(s![first.., ..]);
        general_mat_mul(-1.0, &lower.slice(s![end.., first..end]).t(), &below, 1.0, &mut unsolved);
        let diagonal = lower.slice(s![first..end, first..end]);
        for mut column in unsolved.columns_mut() {
            for (j, factors) in diagonal.columns().into_iter().enumerate().rev() {
                let known = factors.slice(s![j + 1..]).dot(&column.slice(s![j + 1..]));
                column[j] = (column[j] - known) / factors[j];
            }
        }
    }
}

/// Views `values` as a column-major matrix, without an incomplete last column. The shape is always valid: it never has
/// more values than the slice.
fn column_major<T>(values: &[T], n_rows: usize) -> ArrayView2<'_, T> {
    let shape = (n_rows, values.len() / n_rows.max(1));
    ArrayView2::from_shape(shape.f(), values).expect("the shape has no more values")
}

/// Views `values` as [`column_major`] does, mutable.
fn column_major_mut<T>(values: &mut [T], n_rows: usize) -> ArrayViewMut2<'_, T> {
    let shape = (n_rows, values.len() / n_rows.max(1));
    ArrayViewMut2::from_shape(shape.f(), values).expect("the shape has no more values")
}
