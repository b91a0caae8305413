//! The logarithmic codes of HiSilicon's NNIE: sixteen per octave, seven bits and a sign.
//!
//! The parameter `c` is such that `16 log2(c)` is an integer, and `z = 16 log2(c) - 127`. Code `k` from 0 to 127 stands
//! for `2^((k + z) / 16)`, code `-k` from -1 to -127 for the negative of that, and -128 for 0. So the largest value is
//! `c`, and the smallest positive value is 245 times smaller. Values up to half the smallest value of their sign become
//! 0.
//!
//! Source: MQBench, `mqbench/fake_quantize/nnie.py`.

/// The code of 0.0.
pub(super) const ZERO: i32 = -128;

/// Returns the parameter nearest, on the logarithmic scale, to a positive largest absolute value.
pub(super) fn parameter(amax: f64) -> f64 {
    ((16.0 * amax.log2()).round_ties_even() / 16.0).exp2()
}

fn z_of(parameter: f32) -> f64 {
    (16.0 * f64::from(parameter).log2()).round_ties_even() - 127.0
}

pub(super) fn encode(x: f32, parameter: f32) -> i32 {
    let z = z_of(parameter);
    let size = f64::from(x.abs());
    let code = |lowest: f64| (16.0 * size.log2() - z).round_ties_even().clamp(lowest, 127.0) as i32;
    if x > 0.0 && size > ((z - 16.0) / 16.0).exp2() {
        code(0.0)
    } else if x < 0.0 && size > ((z + 1.0 - 16.0) / 16.0).exp2() {
        -code(1.0)
    } else {
        ZERO
    }
}

pub(super) fn decode(code: i32, parameter: f32) -> f32 {
    if code == ZERO {
        return 0.0;
    }
    let size = ((f64::from(code.abs()) + z_of(parameter)) / 16.0).exp2() as f32;
    if code < 0 { -size } else { size }
}
