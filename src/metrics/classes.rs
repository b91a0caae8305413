//! Classes from rows of scores.

use crate::heads::largest;

/// Returns the index of the largest value, the first of equal ones; `None` if a value is NaN or there are no values.
pub fn argmax(values: &[f32]) -> Option<usize> {
    largest(values).map(|(class, _)| class)
}

/// Number of best classes.
pub(super) const N_BEST: usize = 5;

/// Whether fewer than five classes have a larger score than `class`; of equal scores, the first is the largest. False
/// if the score is NaN or infinite.
pub fn is_among_best(scores: &[f32], class: usize) -> bool {
    let Some(&score) = scores.get(class).filter(|score| score.is_finite()) else { return false };
    let is_above = |(other, x): &(usize, &f32)| **x > score || **x == score && *other < class;
    scores.iter().enumerate().filter(is_above).count() < N_BEST
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
