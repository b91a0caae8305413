//! Matrices of f64, their products and Cholesky factorization. The only module that uses faer.

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatMut, MatRef, Par, Side};
use std::ops::{Index, IndexMut};

/// A column-major matrix.
#[derive(Debug, Clone)]
pub struct Matrix(Mat<f64>);

impl Matrix {
    /// Zeros, `[n_rows, n_columns]`.
    pub fn zeros(n_rows: usize, n_columns: usize) -> Matrix {
        Matrix(Mat::zeros(n_rows, n_columns))
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.0.nrows()
    }

    /// Number of columns.
    pub fn n_columns(&self) -> usize {
        self.0.ncols()
    }

    /// The values of column `j`, first row first.
    pub fn column(&self, j: usize) -> &[f64] {
        self.0.col_as_slice(j)
    }

    /// The values of column `j`, mutable.
    pub fn column_mut(&mut self, j: usize) -> &mut [f64] {
        self.0.col_as_slice_mut(j)
    }

    /// The values, column by column.
    pub fn columns(&self) -> Vec<f64> {
        (0..self.n_columns()).flat_map(|j| self.column(j).iter().copied()).collect()
    }

    /// `X` with `self X = right`, by Cholesky factorization of `self`, of which only the lower half is read; `None`
    /// where it is not positive definite.
    pub fn solve_positive_definite(&self, right: &Matrix) -> Option<Matrix> {
        Some(Matrix(self.0.llt(Side::Lower).ok()?.solve(&right.0)))
    }

    /// Writes `self` times `right` to `product`. Both are column-major: `right` is `[n_columns of self, n]`, `product`
    /// `[n_rows of self, n]`. Runs on this thread only.
    pub fn times(&self, right: &[f64], product: &mut [f64]) {
        let n = right.len() / self.n_columns().max(1);
        let right = MatRef::from_column_major_slice(right, self.n_columns(), n);
        let product = MatMut::from_column_major_slice_mut(product, self.n_rows(), n);
        matmul(product, Accum::Replace, self.0.as_ref(), right, 1.0, Par::Seq);
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

/// `left^T right` for two row-major matrices of `n` rows: `left` is `[n, n_left]`, `right` `[n, n_right]`. The product,
/// `[n_left, n_right]`, is column-major. Runs on this thread only.
pub fn transposed_product(left: &[f32], right: &[f32], n_left: usize, n_right: usize) -> Vec<f32> {
    let n = left.len() / n_left.max(1);
    let mut product = vec![0f32; n_left * n_right];
    let to = MatMut::from_column_major_slice_mut(&mut product, n_left, n_right);
    let left = MatRef::from_column_major_slice(left, n_left, n);
    let right = MatRef::from_row_major_slice(right, n, n_right);
    matmul(to, Accum::Replace, left, right, 1.0, Par::Seq);
    product
}
