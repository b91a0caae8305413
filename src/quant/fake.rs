//! Fake quantization of many values at a time.

use super::QuantParams;

impl QuantParams {
    /// What [`QuantParams::fake_quantize`] makes of a value of an affine grid, computed in float32: divided by the scale,
    /// saturated, rounded half to even, multiplied again. NaN becomes the lowest value, not 0.
    pub fn fake_quantizer(&self) -> impl Fn(f32) -> f32 + Copy + use<> {
        /// Adding and taking it away again rounds half to even, for numbers below 2^22.
        const ROUND: f32 = 12_582_912.0;
        let low = (self.q_min - self.zero_point) as f32;
        let high = (self.q_max - self.zero_point) as f32;
        let scale = self.scale;
        move |x| ((x / scale).max(low).min(high) + ROUND - ROUND) * scale
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Grid, Range, params_for_range};

    #[test]
    fn both_ways_to_fake_quantize_agree_but_on_nan() {
        for grid in [Grid::INT8_SYMMETRIC, Grid::UINT8_ASYMMETRIC] {
            let params = params_for_range(Range { min: -1.0, max: 3.0 }, &grid).unwrap();
            let fake_quantize = params.fake_quantizer();
            for i in -400..400 {
                let x = i as f32 * 0.01;
                assert_eq!(fake_quantize(x), params.fake_quantize(x), "{x}");
            }
            assert_eq!(params.fake_quantize(f32::NAN), 0.0);
            assert_eq!(fake_quantize(f32::NAN), params.dequantize(params.q_min));
        }
    }
}
