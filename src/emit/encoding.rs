//! What formats ask of one tensor's parameters.

use super::sidecar::{Encoding, OneOrMany};
use anyhow::{Result, ensure};

impl Encoding {
    /// Number of scales.
    pub fn len(&self) -> usize {
        self.y_scale.as_slice().len()
    }

    /// Whether there is no scale, which no sidecar of mqq has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the scales lie along an axis.
    pub fn is_per_channel(&self) -> bool {
        matches!(self.y_scale, OneOrMany::Many(_))
    }

    /// Whether this is a bias in int32.
    pub fn is_int32(&self) -> bool {
        self.output_dtype == "int32"
    }

    /// The zero point of slice `channel`.
    pub fn zero_point_of(&self, channel: usize) -> i32 {
        let zero_points = self.y_zero_point.as_slice();
        zero_points.get(channel).or(zero_points.first()).copied().unwrap_or(0)
    }

    /// Scale and zero point of every slice; real units per step.
    pub fn slices(&self) -> impl Iterator<Item = (f64, i32)> + '_ {
        let scales = self.y_scale.as_slice().iter().enumerate();
        scales.map(|(channel, &scale)| (f64::from(scale), self.zero_point_of(channel)))
    }

    /// The one scale and zero point.
    ///
    /// # Errors
    /// If there is one per slice of an axis.
    pub fn per_tensor(&self) -> Result<(f64, i32)> {
        let mut slices = self.slices();
        match (slices.next(), slices.next(), self.is_per_channel()) {
            (Some(only), None, false) => Ok(only),
            _ => anyhow::bail!(
                "tensor `{}`: has {} scales along axis {}, expected one for the tensor",
                self.name,
                self.len(),
                self.axis.unwrap_or(0)
            ),
        }
    }

    /// Real values of the grid's lowest and highest integer, one pair per slice.
    pub fn bounds(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let [q_min, q_max] = self.q_range.map(i64::from);
        self.slices().map(move |(scale, zero_point)| {
            let zero_point = i64::from(zero_point);
            (scale * (q_min - zero_point) as f64, scale * (q_max - zero_point) as f64)
        })
    }

    /// [`Encoding::bounds`] of a tensor with one scale.
    ///
    /// # Errors
    /// As [`Encoding::per_tensor`].
    pub fn per_tensor_bounds(&self) -> Result<(f64, f64)> {
        self.per_tensor()?;
        Ok(self.bounds().next().unwrap_or((0.0, 0.0)))
    }

    /// The scales of a symmetric grid that int8 holds.
    ///
    /// # Errors
    /// If the integers are others, or a zero point is not 0.
    pub fn symmetric_int8(&self) -> Result<Vec<f64>> {
        let zero_point = self.slices().map(|(_, zero_point)| zero_point).find(|&zero| zero != 0);
        ensure!(
            self.output_dtype == "int8" && zero_point.is_none(),
            "tensor `{}`: is {} with zero point {}, expected int8 with zero point 0",
            self.name,
            self.output_dtype,
            zero_point.unwrap_or(0)
        );
        Ok(self.slices().map(|(scale, _)| scale).collect())
    }

    /// The largest absolute value of a symmetric int8 grid with one scale: `127 * scale`.
    ///
    /// # Errors
    /// As [`Encoding::symmetric_int8`] and [`Encoding::per_tensor`].
    pub fn amax_int8(&self) -> Result<f64> {
        self.symmetric_int8()?;
        Ok(self.per_tensor()?.0 * 127.0)
    }

    /// Bits of the integer that holds the values, and whether it is signed.
    pub fn storage(&self) -> (u32, bool) {
        let signed = !self.output_dtype.starts_with('u');
        let digits = self.output_dtype.trim_start_matches(|c: char| !c.is_ascii_digit());
        (digits.parse().unwrap_or(u32::from(self.bits)), signed)
    }
}
