//! Products of matrices, in blocks whose sums stay in the registers of the processor.

use pulp::Simd;

/// Maximum rows of a block: the sums of two vectors for each row fill the registers.
pub const BLOCK: usize = 6;

/// Divides `n_rows` into blocks of nearly equal size; with 8 rows or more, each has 4 to [`BLOCK`] rows.
pub fn blocks(n_rows: usize) -> impl Iterator<Item = usize> {
    let n_blocks = n_rows.div_ceil(BLOCK);
    (0..n_blocks).map(move |block| (block + 1) * n_rows / n_blocks - block * n_rows / n_blocks)
}

/// Writes the sums of products for a block of `n_rows` rows from [`blocks`] to `sums`, `n` vectors for each row. For
/// each input, `weights` has the weights of all rows, and `inputs` has `n` vectors.
#[inline(always)]
pub fn block<S: Simd>(simd: S, weights: &[f32], inputs: &[S::f32s], sums: &mut [S::f32s], [n_rows, n]: [usize; 2]) {
    match n_rows {
        4 => rows::<S, 4>(simd, weights, inputs, sums, n),
        5 => rows::<S, 5>(simd, weights, inputs, sums, n),
        _ => rows::<S, BLOCK>(simd, weights, inputs, sums, n),
    }
}

#[inline(always)]
fn rows<S: Simd, const C: usize>(simd: S, weights: &[f32], inputs: &[S::f32s], sums: &mut [S::f32s], n: usize) {
    let mut at = 0;
    while at + 2 <= n {
        vectors::<S, C, 2>(simd, weights, inputs, sums, [at, n]);
        at += 2;
    }
    if at < n {
        vectors::<S, C, 1>(simd, weights, inputs, sums, [at, n]);
    }
}

/// Writes the `N` vectors from position `at` on, for each row.
#[inline(always)]
fn vectors<S: Simd, const C: usize, const N: usize>(
    simd: S,
    weights: &[f32],
    inputs: &[S::f32s],
    sums: &mut [S::f32s],
    [at, n]: [usize; 2],
) {
    let mut so_far = [[simd.splat_f32s(0.0); N]; C];
    for (weights, inputs) in weights.chunks_exact(C).zip(inputs.chunks_exact(n)) {
        let x = &inputs[at..at + N];
        for (so_far, &weight) in so_far.iter_mut().zip(weights) {
            let weight = simd.splat_f32s(weight);
            for (so_far, &x) in so_far.iter_mut().zip(x) {
                *so_far = simd.mul_add_e_f32s(x, weight, *so_far);
            }
        }
    }
    for (sums, so_far) in sums.chunks_exact_mut(n).zip(so_far) {
        sums[at..at + N].copy_from_slice(&so_far);
    }
}
