//! An order of a list whose first samples, however many, are spread over the whole list.

/// 2^64 divided by the golden ratio.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the positions 0 to `n` - 1, ordered by the fractional part of their multiples of the golden ratio.
///
/// Each stretch of the list has about the same share of the first samples. No period of the list coincides with a
/// period of the order. Neither folders of classes nor images of two alternating cameras are left out.
///
/// Source: Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
pub fn spread(n: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..n).collect();
    positions.sort_unstable_by_key(|&i| (i as u64).wrapping_mul(STRIDE));
    positions
}
