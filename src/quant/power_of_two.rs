//! Power-of-two scales.

use serde::{Deserialize, Serialize};

/// The rounding of a scale to a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PotRounding {
    /// To the nearest exponent, half to even. It may clip the range by up to a factor of the square root of 2. Source:
    /// MQBench, `pot_scale` (`2 ** round(log2(scale))`).
    Round,
    /// Up: never clips. Source: TI edgeai-torchmodelopt, `ceil2_func`; Vitis AI's `floor(log2(1 / scale))` is the same.
    Ceil,
    /// Down: the finest scale that is not above the exact one.
    Floor,
}

/// Lowest and highest exponent of a normal float32.
const EXPONENTS: (i32, i32) = (-126, 127);

/// Returns the power of two for a positive finite scale, within the normal numbers of float32.
pub(super) fn power_of_two(scale: f64, rounding: PotRounding) -> f64 {
    let exponent = match rounding {
        PotRounding::Round => scale.log2().round_ties_even() as i32,
        PotRounding::Floor => floor_log2(scale),
        PotRounding::Ceil => {
            let floor = floor_log2(scale);
            floor + i32::from(2f64.powi(floor) < scale)
        }
    };
    2f64.powi(exponent.clamp(EXPONENTS.0, EXPONENTS.1))
}

/// Returns the exponent of the largest power of two up to `scale`. It is exact even where `log2` of a number next to a
/// power of two rounds to an integer.
fn floor_log2(scale: f64) -> i32 {
    let near = scale.log2().floor() as i32;
    if 2f64.powi(near) > scale {
        near - 1
    } else if 2f64.powi(near + 1) <= scale {
        near + 1
    } else {
        near
    }
}
