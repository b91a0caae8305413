//! Integer types of a table, and how a range is mapped to them.

use super::Scheme;
use super::table_error::{TableError, ensure, table_error};
use crate::diag::none_of;
use crate::quant::{Codes, Grid, PotRounding, ScaleRule, Symmetry};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// An integer type of a table.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QType {
    /// Bits per value.
    pub bits: u8,
    /// Whether the integers are signed, in two's complement.
    pub signed: bool,
    /// Symmetric or asymmetric.
    pub symmetry: Symmetry,
    /// Meaning of the integers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: Codes,
    /// One scale for the tensor, one per slice of an axis, or one per block along an axis.
    #[serde(default)]
    pub granularity: Granularity,
    /// Block size; only for `per_block`.
    pub block_size: Option<usize>,
    /// Whether a signed grid excludes its lowest integer.
    #[serde(default)]
    pub narrow_range: bool,
    /// Bits of the stored integer, if it is wider than `bits` (7-bit weights in int8).
    pub storage_bits: Option<u8>,
    /// Largest sum of two neighboring weights in integer steps, for kernels that add two products in 16 bits. Scales
    /// widen where a sum would be larger.
    pub max_pair_sum: Option<u16>,
    /// Allowed scales.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scale: ScaleKind,
    /// How a scale is rounded to a power of two; the default is `ceil`.
    pub pot_rounding: Option<PotRounding>,
    /// Maximum number of halvings of the scale in the search for the least squared error on the statistics; 0 for no
    /// search.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pot_search: u8,
    /// Maximum number of fraction bits: power-of-two scales are at least 2 to the power of minus this number.
    pub max_fraction_bits: Option<u8>,
    /// Whether a tensor without a negative observed value uses the unsigned grid with as many bits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ada_sign: bool,
    /// The divisor of the largest absolute value on a symmetric signed grid.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scale_divisor: ScaleDivisor,
    /// Minimum width of the range, in the tensor's units; 0 for none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub min_real_range: f64,
    /// Source of the type's facts, if not the table's.
    pub source: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl QType {
    /// Returns the grid for one scale of this type.
    pub fn grid(&self) -> Grid {
        let powers_of_two = self.scale == ScaleKind::PowerOfTwo;
        let scale_rule = ScaleRule {
            power_of_two: powers_of_two.then(|| self.pot_rounding.unwrap_or(PotRounding::Ceil)),
            half_range: self.scale_divisor == ScaleDivisor::HalfRange,
            min_real_range: self.min_real_range,
            min_scale: self.min_scale(),
        };
        Grid {
            bits: self.bits,
            signed: self.signed,
            symmetry: self.symmetry,
            narrow_range: self.narrow_range,
            scale_rule,
            codes: self.kind,
        }
    }

    /// The minimum scale; 0 for none.
    pub fn min_scale(&self) -> f64 {
        self.max_fraction_bits.map_or(0.0, |bits| f64::from(bits).exp2().recip())
    }

    /// Returns the maximum number of halvings of `scale` in a search, so that the result is not below the minimum
    /// scale.
    pub fn n_halvings(&self, scale: f32) -> u8 {
        let fits = |n: &u8| f64::from(scale) * (-f64::from(*n)).exp2() >= self.min_scale();
        (0..=self.pot_search).rev().find(fits).unwrap_or(0)
    }

    /// Returns the smallest scale of the type that is at least `scale`, which for power-of-two scales is the next power
    /// of two.
    pub fn scale_at_least(&self, scale: f64) -> f32 {
        let nearest = scale as f32;
        match self.scale {
            ScaleKind::Float => nearest,
            ScaleKind::PowerOfTwo => f64::from(nearest).log2().ceil().exp2() as f32,
        }
    }

    /// The ONNX name of the stored integer; `nnie8` for NNIE's codes, which ONNX does not have.
    pub fn dtype(&self) -> String {
        if self.kind == Codes::Nnie {
            return "nnie8".to_string();
        }
        let bits = self.storage_bits.unwrap_or(self.bits);
        format!("{}int{bits}", if self.signed { "" } else { "u" })
    }

    /// Whether ONNX has the type only from operator set [`WIDE_OPSET`](super::WIDE_OPSET) on.
    pub fn needs_wide_opset(&self) -> bool {
        self.storage_bits.unwrap_or(self.bits) != 8 || self.granularity == Granularity::PerBlock
    }

    /// Fails if weights cannot have this type. `name` and `at` are the type's name and its use, for the error.
    pub(super) fn check_for_weight(&self, name: &str, at: &str) -> Result<(), TableError> {
        ensure(!self.ada_sign, at, || format!("type `{name}` has `ada_sign`, which only types of activations may have"))
    }

    /// Returns the type for a tensor with the lowest observed value `min`. With `ada_sign`, that is the unsigned type
    /// with as many bits if `min` is not negative.
    pub fn adapted(&self, min: Option<f32>) -> QType {
        let unsigned = self.ada_sign && self.signed && min.is_some_and(|min| min >= 0.0);
        match unsigned {
            true => QType { signed: false, narrow_range: false, ..self.clone() },
            false => self.clone(),
        }
    }
}

impl Scheme {
    /// The type `name`, which the table uses at `at`.
    pub(super) fn find_type(&self, name: &str, at: &str) -> Result<&QType, TableError> {
        let names = self.types.keys().map(String::as_str);
        let unknown = || table_error(at, none_of(format_args!("type `{name}` is unknown"), name, names));
        self.types.get(name).ok_or_else(unknown)
    }

    /// Returns the per-tensor type `name`, which the table uses at `at`.
    pub(super) fn per_tensor_type(&self, name: &str, at: &str) -> Result<&QType, TableError> {
        let qtype = self.find_type(name, at)?;
        ensure(qtype.granularity == Granularity::PerTensor, at, || {
            format!("type `{name}` has several scales, expected a type with one scale per tensor")
        })?;
        Ok(qtype)
    }
}

/// Number of scales per tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// One.
    #[default]
    PerTensor,
    /// One per slice of an axis.
    PerChannel,
    /// One per run of `block_size` values along an axis.
    PerBlock,
}

/// The scales that a type allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleKind {
    /// Any float32.
    #[default]
    Float,
    /// Powers of two.
    PowerOfTwo,
}

/// The divisor of a symmetric signed grid, as spelled in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleDivisor {
    /// The largest integer: 127 for 8 bits.
    #[default]
    QMax,
    /// Half the number of steps: 127.5 for -128 to 127.
    HalfRange,
}
