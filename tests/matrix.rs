//! Products of matrices and the Cholesky factorization, against their definitions.

use mqq_concrete::matrix::{Matrix, square, transposed_product};
use proptest::prelude::*;

/// A column-major matrix of `n_rows` rows from its values.
fn matrix(n_rows: usize, values: &[f64]) -> Matrix {
    let mut matrix = Matrix::zeros(n_rows, values.len() / n_rows);
    (0..matrix.n_columns()).for_each(|j| matrix.column_mut(j).copy_from_slice(&values[j * n_rows..(j + 1) * n_rows]));
    matrix
}

/// Numbers from -1 to 1 that follow from `seed`.
fn numbers(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// `A A^T` and a diagonal of `ridge`, for a square `A`.
fn positive_definite(n: usize, ridge: f64) -> Matrix {
    let a = numbers(n as u64, n * n);
    let mut square = Matrix::zeros(n, n);
    for i in 0..n {
        for j in 0..n {
            square[(i, j)] =
                (0..n).map(|k| a[i * n + k] * a[j * n + k]).sum::<f64>() + if i == j { ridge } else { 0.0 };
        }
    }
    square
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Sizes around the blocks of 64. The upper half is not read.
    #[test]
    fn a_system_is_solved(n in prop_oneof![1usize..8, 60usize..70, 126usize..132], n_right in prop_oneof![1usize..4, 63usize..67]) {
        let mut left = positive_definite(n, 0.1);
        let expected = matrix(n, &numbers(7, n * n_right));
        let mut products = vec![0.0; n * n_right];
        left.times(&expected.clone().into_columns(), &mut products);
        let right = matrix(n, &products);
        for j in 1..n {
            left.column_mut(j)[..j].fill(f64::NAN);
        }
        let solved = left.solve_positive_definite(&right).unwrap();
        for (solved, expected) in solved.into_columns().iter().zip(expected.into_columns()) {
            prop_assert!((solved - expected).abs() < 1e-6, "{solved} {expected}");
        }
    }

    #[test]
    fn a_square_is_a_product_with_itself(n in 0usize..5, n_columns in prop_oneof![1usize..9, 250usize..262, 510usize..515]) {
        let rows: Vec<f32> = numbers(5, n * n_columns).into_iter().map(|x| x as f32).collect();
        let expected = transposed_product(&rows, &rows, n_columns, n_columns);
        for (value, expected) in square(&rows, n_columns).into_iter().zip(expected) {
            prop_assert!((value - expected).abs() < 1e-5, "{value} {expected}");
        }
    }

    #[test]
    fn a_transposed_product_adds_up_over_rows(n in 0usize..40, n_left in 1usize..70, n_right in 1usize..20) {
        let [left, right]: [Vec<f32>; 2] = [(3, n * n_left), (4, n * n_right)]
            .map(|(seed, n)| numbers(seed, n).into_iter().map(|x| x as f32).collect());
        let product = transposed_product(&left, &right, n_left, n_right);
        for (at, value) in product.into_iter().enumerate() {
            let (i, j) = (at % n_left, at / n_left);
            let expected: f32 = (0..n).map(|row| left[row * n_left + i] * right[row * n_right + j]).sum();
            prop_assert!((value - expected).abs() < 1e-4, "{i} {j}: {value} {expected}");
        }
    }
}

#[test]
fn other_matrices_have_no_factor() {
    for n in [1, 3, 65] {
        let mut left = positive_definite(n, 0.1);
        left[(n - 1, n - 1)] = -1.0;
        let right = Matrix::zeros(n, 2);
        assert!(left.solve_positive_definite(&right).is_none());
        left[(n - 1, n - 1)] = f64::NAN;
        assert!(left.solve_positive_definite(&right).is_none());
    }
}
