//! The class with the largest score.

/// Index of the largest value, the first of equal ones; `None` where a value is NaN or there are no values.
pub fn argmax(values: &[f32]) -> Option<usize> {
    let mut best = None;
    for (i, value) in values.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if best.is_none_or(|best: usize| *value > values[best]) {
            best = Some(i);
        }
    }
    best
}

/// Whether two rows of class scores have the same largest class. False where `other` has a NaN or infinite value that
/// `float` has not.
pub fn same_class(float: &[f32], other: &[f32]) -> bool {
    let is_sound = |(a, b): (&f32, &f32)| b.is_finite() || a == b;
    let top = argmax(float);
    top.is_some() && top == argmax(other) && float.iter().zip(other).all(is_sound)
}

/// The number of classes where an output of this shape is a vector of class scores for each of the `batch` entries of a
/// sample, or for the whole sample: `[N, C]` or `[N, C, 1, 1]` with C above 1.
pub fn n_classes(shape: &[usize], batch: usize) -> Option<usize> {
    match *shape {
        [n, c] | [n, c, 1, 1] if c > 1 && (n == batch || n == 1) => Some(c),
        _ => None,
    }
}
