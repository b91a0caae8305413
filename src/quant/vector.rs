//! Vectorizable rounding for affine integers with at most 16 bits.

use super::QuantParams;

/// A float32 constant: adding and subtracting it rounds a number below 2^22 half to even.
const ROUND: f32 = 12_582_912.0;
/// A float64 constant: adding and subtracting it rounds a number below 2^51 half to even.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

/// Rounds a number below 2^51 half to even, without a call of the math library.
pub fn round_small(x: f64) -> f64 {
    x + ROUND_F64 - ROUND_F64
}

/// Rounds half to even. Numbers below 2^22 need no call of the math library.
pub(super) fn round_half_even_f32(x: f32) -> f32 {
    const MAX: f32 = 4_194_304.0;
    if x.abs() < MAX { x + ROUND - ROUND } else { x.round_ties_even() }
}

impl QuantParams {
    /// Quantizes affine codes as [`QuantParams::quantize`] does.
    pub fn quantize_fast(&self, x: f32) -> i32 {
        let QuantParams { scale, zero_point, q_min, q_max, .. } = *self;
        let low = q_min.saturating_sub(zero_point) as f32;
        let high = q_max.saturating_sub(zero_point) as f32;
        ((x / scale).max(low).min(high) + ROUND - ROUND) as i32 + zero_point
    }

    /// Returns [`QuantParams::fake_quantize`] as a function in float32: it divides by the scale, saturates, rounds half
    /// to even and multiplies by the scale.
    pub fn fake_quantizer(&self) -> impl Fn(f32) -> f32 + Copy + use<> {
        let low = (self.q_min - self.zero_point) as f32;
        let high = (self.q_max - self.zero_point) as f32;
        let scale = self.scale;
        // Each comparison is one instruction; `max` and `min` check both operands for NaN.
        move |x| {
            let steps = x / scale;
            let steps = if steps > low { steps } else { low };
            let steps = if steps < high { steps } else { high };
            (steps + ROUND - ROUND) * scale
        }
    }

    /// Returns [`QuantParams::fake_quantizer`] in float64.
    pub fn fake_quantizer_f64(&self) -> impl Fn(f64) -> f64 + Copy + use<> {
        let [low, high] = [self.q_min, self.q_max].map(|q| f64::from(q - self.zero_point));
        let scale = f64::from(self.scale);
        move |x| round_small((x / scale).max(low).min(high)) * scale
    }
}
