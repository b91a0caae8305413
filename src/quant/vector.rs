//! Vectorizable rounding for affine integers with at most 16 bits.

use super::QuantParams;

/// Adding and subtracting it rounds half to even, for numbers below 2^22.
const ROUND: f32 = 12_582_912.0;

impl QuantParams {
    /// As [`QuantParams::quantize`]; NaN becomes `zero_point`, too.
    pub fn quantize_fast(&self, x: f32) -> i32 {
        let QuantParams { scale, zero_point, q_min, q_max, .. } = *self;
        let steps = if x.is_nan() { 0.0 } else { x / scale };
        let low = q_min.saturating_sub(zero_point) as f32;
        let high = q_max.saturating_sub(zero_point) as f32;
        (steps.max(low).min(high) + ROUND - ROUND) as i32 + zero_point
    }

    /// As [`QuantParams::fake_quantize`], computed in float32: divided by the scale, saturated, rounded half to even,
    /// multiplied again. NaN becomes the lowest value, not 0.
    pub fn fake_quantizer(&self) -> impl Fn(f32) -> f32 + Copy + use<> {
        let low = (self.q_min - self.zero_point) as f32;
        let high = (self.q_max - self.zero_point) as f32;
        let scale = self.scale;
        move |x| ((x / scale).max(low).min(high) + ROUND - ROUND) * scale
    }
}
