//! Classes from rows of scores.

/// Returns the index of the largest value, the first of equal ones; `None` if a value is NaN or there are no values.
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

/// Whether two rows of class scores have the same class with the largest score. False if `other` has a NaN or infinite
/// value where `float` has another value.
pub fn same_class(float: &[f32], other: &[f32]) -> bool {
    let is_sound = |(a, b): (&f32, &f32)| b.is_finite() || a == b;
    let top = argmax(float);
    top.is_some() && top == argmax(other) && float.iter().zip(other).all(is_sound)
}

/// Returns the number of classes, if this is the shape of class scores: `[N, C]` or `[N, C, 1, 1]` with C above 1,
/// where N is 1 or the number of entries of the batch.
pub fn n_classes(shape: &[usize], batch: usize) -> Option<usize> {
    match *shape {
        [n, c] | [n, c, 1, 1] if c > 1 && (n == batch || n == 1) => Some(c),
        _ => None,
    }
}
