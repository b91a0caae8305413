//! Rounding in steps that vectorize, for affine integers of at most 16 bits.

use super::QuantParams;

/// Adding and taking it away again rounds half to even, for numbers below 2^22.
const ROUND: f32 = 12_582_912.0;

impl QuantParams {
    /// The integer that [`QuantParams::quantize`] gives; NaN becomes `zero_point`, too.
    pub fn quantize_fast(&self, x: f32) -> i32 {
        let QuantParams { scale, zero_point, q_min, q_max, .. } = *self;
        let steps = if x.is_nan() { 0.0 } else { x / scale };
        let low = q_min.saturating_sub(zero_point) as f32;
        let high = q_max.saturating_sub(zero_point) as f32;
        (steps.max(low).min(high) + ROUND - ROUND) as i32 + zero_point
    }

    /// What [`QuantParams::fake_quantize`] makes of a value, computed in float32: divided by the scale, saturated, rounded
    /// half to even, multiplied again. NaN becomes the lowest value, not 0.
    pub fn fake_quantizer(&self) -> impl Fn(f32) -> f32 + Copy + use<> {
        let low = (self.q_min - self.zero_point) as f32;
        let high = (self.q_max - self.zero_point) as f32;
        let scale = self.scale;
        move |x| ((x / scale).max(low).min(high) + ROUND - ROUND) * scale
    }
}

#[cfg(test)]
mod tests {
    use crate::quant::{Codes, QuantParams};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_fast_way_gives_the_same(
            scale in 1e-3f32..1e3, zero_point in 0i32..65536, steps in -70_000i32..70_000, off in -1i32..2
        ) {
            // Half-way between two integers, and the floats on both sides.
            let tie = (steps as f32 + 0.5) * scale;
            let x = f32::from_bits((tie.to_bits() as i32 + off) as u32);
            let (q_min, q_max) = (0, 65535);
            let params = QuantParams { scale, zero_point, q_min, q_max, codes: Codes::Affine };
            prop_assert_eq!(params.quantize_fast(x), params.quantize(x));
            prop_assert_eq!(params.fake_quantizer()(x), params.fake_quantize(x));
        }
    }

    #[test]
    fn what_is_no_number_becomes_zero_or_the_lowest_value() {
        let params =
            QuantParams { scale: 0.5, zero_point: 3, q_min: 0, q_max: 15, codes: Codes::Affine };
        for (x, q) in [(f32::INFINITY, 15), (f32::NEG_INFINITY, 0), (f32::NAN, 3)] {
            assert_eq!([params.quantize(x), params.quantize_fast(x)], [q; 2], "{x}");
        }
        assert_eq!(params.fake_quantize(f32::NAN), 0.0);
        assert_eq!(params.fake_quantizer()(f32::NAN), -1.5);
        assert_eq!(params.fake_quantizer()(f32::INFINITY), 6.0);
    }
}
