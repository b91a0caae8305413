//! An order of a list in which the first samples of any number are spread over the whole list.

/// 2^64 over the golden ratio.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The positions 0 to `n` - 1, ordered by the fraction of their multiples of the golden ratio.
///
/// Of each stretch of the list about the same share is among the first, and no period of the list meets that of the order:
/// neither folders of classes nor images of two cameras in turn are left out.
///
/// Source: Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
pub fn spread(n: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..n).collect();
    positions.sort_unstable_by_key(|&i| (i as u64).wrapping_mul(STRIDE));
    positions
}
