//! Products of the rows of a matrix with vectors.

use pulp::{Arch, Simd, WithSimd};

/// Number of rows at a time: their sums and a vector of the other operand stay in the registers.
const BLOCK: usize = 8;

/// Adds dot products of rows and vectors `xs`, of `k` values each, to `sums`: one per row for each vector.
pub fn add_products(rows: &[f32], xs: &[f32], k: usize, sums: &mut [f32]) {
    if k > 0 && !xs.is_empty() && !rows.is_empty() {
        Arch::new().dispatch(Products { rows, xs, k, sums });
    }
}

struct Products<'a> {
    rows: &'a [f32],
    xs: &'a [f32],
    k: usize,
    sums: &'a mut [f32],
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Products { rows, xs, k, sums } = self;
        let n_rows = rows.len() / k;
        let mut at = 0;
        while at < n_rows {
            let n = if at + BLOCK <= n_rows { BLOCK } else { 1 };
            let block = &rows[at * k..(at + n) * k];
            for (x, sums) in xs.chunks_exact(k).zip(sums.chunks_exact_mut(n_rows)) {
                let sums = &mut sums[at..at + n];
                match n {
                    BLOCK => add_block::<S, BLOCK>(simd, block, x, sums),
                    _ => add_block::<S, 1>(simd, block, x, sums),
                }
            }
            at += n;
        }
    }
}

/// Adds the products of `N` rows with one vector.
#[inline(always)]
fn add_block<S: Simd, const N: usize>(simd: S, rows: &[f32], x: &[f32], sums: &mut [f32]) {
    let k = x.len();
    let (vectors, rest) = S::as_simd_f32s(x);
    let mut so_far = [simd.splat_f32s(0.0); N];
    let mut rows_of = [S::as_simd_f32s(&rows[..k]); N];
    for n in 1..N {
        rows_of[n] = S::as_simd_f32s(&rows[n * k..(n + 1) * k]);
    }
    for row in &mut rows_of {
        row.0 = &row.0[..vectors.len()];
    }
    for (at, &x) in vectors.iter().enumerate() {
        for n in 0..N {
            so_far[n] = simd.mul_add_e_f32s(rows_of[n].0[at], x, so_far[n]);
        }
    }
    for n in 0..N {
        let mut sum = simd.reduce_sum_f32s(so_far[n]);
        for (weight, x) in rows_of[n].1.iter().zip(rest) {
            sum += weight * x;
        }
        sums[n] += sum;
    }
}
