//! Class scores: which class has the largest.

/// Position of the largest value, the first of equal ones; `None` where a value is NaN or there is none.
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

/// Whether the largest of two rows of class scores is the same; never where `other` has a value that is NaN or infinite
/// and `float` has not.
pub fn same_class(float: &[f32], other: &[f32]) -> bool {
    let is_sound = |(a, b): (&f32, &f32)| b.is_finite() || a == b;
    let top = argmax(float);
    top.is_some() && top == argmax(other) && float.iter().zip(other).all(is_sound)
}

/// The number of classes where an output of this shape is a vector of class scores for each of the `batch` parts of a
/// sample, or for all of it: `[N, C]` or `[N, C, 1, 1]` with C above 1.
pub fn n_classes(shape: &[usize], batch: usize) -> Option<usize> {
    match *shape {
        [n, c] | [n, c, 1, 1] if c > 1 && (n == batch || n == 1) => Some(c),
        _ => None,
    }
}
