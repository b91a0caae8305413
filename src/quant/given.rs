//! Ranges that are given instead of observed.

use super::{Grid, Range, Symmetry};
use anyhow::{Result, ensure};

/// A given range of a tensor, in the tensor's own units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GivenRange {
    /// Real values of the lowest and highest integer in the file.
    pub range: Range,
    /// Real value of the highest integer, for a grid symmetric about 0. The lowest integer may have no counterpart.
    pub amax: Option<f64>,
}

impl GivenRange {
    /// Returns the range for `grid`, such that a grid like the file's gets the file's scale.
    pub fn for_grid(&self, grid: &Grid) -> Range {
        match self.amax {
            Some(amax) if grid.signed && grid.symmetry == Symmetry::Symmetric => Range::symmetric(amax),
            _ => self.range,
        }
    }

    /// Returns the range of a grid of `bits` with this `scale` and `zero_point`.
    ///
    /// # Errors
    /// If the scale is negative or not finite, or the grid has less than 2 or more than 16 bits.
    pub fn from_params(scale: f64, zero_point: i64, bits: u64, signed: bool) -> Result<GivenRange> {
        ensure!(scale.is_finite() && scale >= 0.0, "scale is {scale}, expected a finite number of 0 or more");
        ensure!((2..=16).contains(&bits), "has {bits} bits, expected 2 to 16");
        let (q_min, q_max) = match signed {
            true => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
            false => (0, (1i64 << bits) - 1),
        };
        let at = |q: i64| scale * (q as f64 - zero_point as f64);
        let symmetric = signed && zero_point == 0;
        Ok(GivenRange { range: Range { min: at(q_min), max: at(q_max) }, amax: symmetric.then_some(at(q_max)) })
    }
}
