//! Integer grids and affine quantization parameters.
//!
//! In: real ranges and values. Out: `scale`, `zero_point`, integers. The only module that rounds values to a grid. It
//! knows no statistics and no backend.
//!
//! Sources: ONNX `QuantizeLinear` (opset 13 and 21); gemmlowp, `doc/quantization.md`.

mod given;
mod layout;
mod nnie;
mod power_of_two;
mod scaling;
mod vector;

pub use given::GivenRange;
pub use layout::{ScaleLayout, TensorParams, scale_shape};
pub use power_of_two::PotRounding;
pub use scaling::ChannelScaling;
pub use vector::round_small;

use anyhow::{Result, ensure};
use power_of_two::power_of_two;
use serde::{Deserialize, Serialize};
use vector::round_half_even_f32;

/// The symmetry of a grid about zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Symmetry {
    /// `zero_point` is 0 on a signed grid.
    Symmetric,
    /// `zero_point` is chosen so that both ends of the range are used.
    Asymmetric,
}

/// Meaning of the integers of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Codes {
    /// The real value of `q` is `scale * (q - zero_point)`.
    #[default]
    Affine,
    /// HiSilicon NNIE's logarithmic codes. [`QuantParams::scale`] is their largest value.
    Nnie,
}

/// The rule by which a range gives a scale.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScaleRule {
    /// Rounding to a power of two; `None` for any scale.
    pub power_of_two: Option<PotRounding>,
    /// On a symmetric signed grid, the largest absolute value is divided by half the number of steps
    /// (127.5 for -128 to 127), not by `q_max`. Source: PyTorch's and MQBench's observers.
    pub half_range: bool,
    /// Minimum width of the range, in the tensor's units; a narrower one is widened upwards. Source: ONNX Runtime,
    /// `MinimumRealRange`.
    pub min_real_range: f64,
    /// Minimum scale, in the tensor's units per step; 0 for none. Source: MQBench's Vitis quantizers, whose exponents
    /// end at 12.
    pub min_scale: f64,
}

impl ScaleRule {
    /// Any scale, `amax / q_max` where the grid is symmetric, and any range.
    pub const PLAIN: ScaleRule =
        ScaleRule { power_of_two: None, half_range: false, min_real_range: 0.0, min_scale: 0.0 };
}

/// An integer grid: the values of a quantized tensor, and how a range is mapped to them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// Bits per value, 2 to 16.
    pub bits: u8,
    /// Two's complement or unsigned.
    pub signed: bool,
    /// Symmetric or asymmetric.
    pub symmetry: Symmetry,
    /// Excludes the lowest value of a signed grid, so that it is [-127, 127] for 8 bits.
    pub narrow_range: bool,
    /// The rule by which a range gives a scale.
    pub scale_rule: ScaleRule,
    /// Meaning of the integers.
    pub codes: Codes,
}

impl Grid {
    /// Signed, symmetric, narrow: TensorRT's grid for weights and activations.
    pub const INT8_SYMMETRIC: Grid = Grid {
        bits: 8,
        signed: true,
        symmetry: Symmetry::Symmetric,
        narrow_range: true,
        scale_rule: ScaleRule::PLAIN,
        codes: Codes::Affine,
    };
    /// Unsigned, asymmetric: the usual grid of activations on CPUs.
    pub const UINT8_ASYMMETRIC: Grid = Grid {
        bits: 8,
        signed: false,
        symmetry: Symmetry::Asymmetric,
        narrow_range: false,
        scale_rule: ScaleRule::PLAIN,
        codes: Codes::Affine,
    };

    /// Returns the lowest integer of the grid.
    pub fn q_min(&self) -> i32 {
        match self.signed {
            true => -(1 << (self.bits - 1)) + i32::from(self.narrow_range),
            false => 0,
        }
    }

    /// Returns the highest integer of the grid.
    pub fn q_max(&self) -> i32 {
        match self.signed {
            true => (1 << (self.bits - 1)) - 1,
            false => (1 << self.bits) - 1,
        }
    }

    /// Returns the grid with power-of-two scales only rounded up: a scale that is rounded down clips the range.
    #[must_use]
    pub fn with_scales_rounded_up(self) -> Grid {
        let power_of_two = self.scale_rule.power_of_two.map(|_| PotRounding::Ceil);
        Grid { scale_rule: ScaleRule { power_of_two, ..self.scale_rule }, ..self }
    }

    /// Whether the grid's range is `[-amax, amax]`.
    pub fn is_centred(&self) -> bool {
        self.signed && self.symmetry == Symmetry::Symmetric
    }
}

/// A closed range of real values, in the tensor's own units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// Lower end.
    pub min: f64,
    /// Upper end.
    pub max: f64,
}

impl Range {
    /// Returns the range from `-amax` to `amax`.
    pub fn symmetric(amax: f64) -> Range {
        Range { min: -amax, max: amax }
    }

    /// Returns the largest absolute value in the range.
    pub fn amax(&self) -> f64 {
        self.min.abs().max(self.max.abs())
    }
}

/// Parameters of a grid: a real value is `scale * (q - zero_point)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantParams {
    /// Real units per integer step; finite, normal, positive. For NNIE's codes, the largest value.
    pub scale: f32,
    /// The integer that stands for 0.0.
    pub zero_point: i32,
    /// Lowest integer.
    pub q_min: i32,
    /// Highest integer.
    pub q_max: i32,
    /// Meaning of the integers.
    pub codes: Codes,
}

/// Rounds half to even, as in ONNX `QuantizeLinear`.
pub fn round_half_even(x: f64) -> f64 {
    x.round_ties_even()
}

/// Returns parameters that cover `range` and represent 0.0 exactly.
///
/// The range is first widened to contain 0 and to have the rule's minimum width. A symmetric signed grid has
/// `zero_point = 0` and `scale = amax / q_max`; with [`ScaleRule::half_range`], `amax` is divided by half the number of
/// steps. Otherwise:
///
/// ```text
/// scale      = (max - min) / (q_max - q_min)
/// zero_point = round_half_even(q_min - min / scale), kept inside the grid
/// ```
///
/// A power-of-two rule rounds the scale before the zero point is computed. Parameters are computed in f64; the scale is
/// stored as f32. A range of width zero gets `scale = 1`. A scale that f32 could only hold as zero or a subnormal
/// number is raised to `f32::MIN_POSITIVE`.
///
/// # Errors
/// If a bound is NaN or infinite, if `min > max`, if the scale overflows f32, or if the grid's bits are
/// outside 2 to 16. The caller adds the tensor's name.
pub fn params_for_range(range: Range, grid: &Grid) -> Result<QuantParams> {
    ensure!((2..=16).contains(&grid.bits), "grid has {} bits, expected 2 to 16", grid.bits);
    ensure!(
        range.min.is_finite() && range.max.is_finite() && range.min <= range.max,
        "range is [{}, {}], expected two finite numbers in ascending order",
        range.min,
        range.max
    );
    let rule = &grid.scale_rule;
    let (q_min, q_max) = (grid.q_min(), grid.q_max());
    let lo = range.min.min(0.0);
    let hi = range.max.max(0.0).max(lo + rule.min_real_range);
    let centred = grid.is_centred();
    let n_steps = f64::from(q_max - q_min);
    let step = match (centred, rule.half_range) {
        (true, false) => lo.abs().max(hi) / f64::from(q_max),
        (true, true) => lo.abs().max(hi) / (0.5 * n_steps),
        (false, _) => hi / n_steps - lo / n_steps,
    };
    if grid.codes == Codes::Nnie {
        let amax = lo.abs().max(hi);
        let scale = if amax == 0.0 { 1.0 } else { nnie::parameter(amax) as f32 };
        ensure!(scale.is_normal(), "range is [{lo}, {hi}], too wide or too narrow for a float32 parameter");
        return Ok(QuantParams { scale, zero_point: nnie::ZERO, q_min, q_max, codes: grid.codes });
    }
    if step == 0.0 {
        let zero_point = if grid.signed { 0 } else { q_min };
        return Ok(QuantParams { scale: 1.0, zero_point, q_min, q_max, codes: grid.codes });
    }
    let step = rule.power_of_two.map_or(step, |rounding| power_of_two(step, rounding));
    let step = step.max(rule.min_scale);
    let scale = (step as f32).max(f32::MIN_POSITIVE);
    ensure!(scale.is_finite(), "range is [{lo}, {hi}], too wide for a float32 scale");
    let zero_point = |scale: f32| match centred {
        true => 0,
        false => {
            let exact = round_half_even(f64::from(q_min) - lo / f64::from(scale));
            exact.clamp(f64::from(q_min), f64::from(q_max)) as i32
        }
    };
    let smaller = |scale: f32| if rule.power_of_two.is_some() { scale / 2.0 } else { scale.next_down() };
    // The scale of a range near the largest float may be rounded up, so that its ends are infinite.
    let is_finite = |scale: &f32| [q_min, q_max].iter().all(|q| ((q - zero_point(*scale)) as f32 * scale).is_finite());
    let scale = std::iter::successors(Some(scale), |scale| Some(smaller(*scale))).find(is_finite).unwrap_or(scale);
    let zero_point = zero_point(scale);
    Ok(QuantParams { scale, zero_point, q_min, q_max, codes: grid.codes })
}

impl QuantParams {
    /// Quantizes `x`: divides by the stored scale, rounds half to even and saturates. A multiplication by the
    /// reciprocal would differ at ties. NaN gives the lowest integer, as in ONNX Runtime, and 0 on NNIE's grid.
    pub fn quantize(&self, x: f32) -> i32 {
        if self.codes == Codes::Nnie {
            return nnie::encode(x, self.scale);
        }
        let q = f64::from(round_half_even_f32(x / self.scale)) + f64::from(self.zero_point);
        q.max(f64::from(self.q_min)).min(f64::from(self.q_max)) as i32
    }

    /// Returns the real value of `q`.
    pub fn dequantize(&self, q: i32) -> f32 {
        match self.codes {
            Codes::Affine => q.saturating_sub(self.zero_point) as f32 * self.scale,
            Codes::Nnie => nnie::decode(q, self.scale),
        }
    }

    /// Quantizes and dequantizes.
    pub fn fake_quantize(&self, x: f32) -> f32 {
        self.dequantize(self.quantize(x))
    }
}
