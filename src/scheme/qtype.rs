//! Integer types of a table, and how a range is mapped to them.

use super::Scheme;
use super::wrong::{Wrong, ensure, wrong};
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
    /// Two's complement or unsigned.
    pub signed: bool,
    /// Symmetric or asymmetric.
    pub symmetry: Symmetry,
    /// What the integers mean.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: Codes,
    /// One scale for the tensor, one per slice of an axis, or one per block along an axis.
    #[serde(default)]
    pub granularity: Granularity,
    /// Values of a block, for `per_block` and only there.
    pub block_size: Option<usize>,
    /// Leaves the lowest integer of a signed grid out.
    #[serde(default)]
    pub narrow_range: bool,
    /// Bits of the integer that holds the value, where it is wider than `bits` (7-bit weights in int8).
    pub storage_bits: Option<u8>,
    /// For weights of kernels that add two products in 16 bits: the largest sum of two neighbours, in
    /// integer steps. Scales widen where the integers would be heavier.
    pub max_pair_sum: Option<u16>,
    /// Which scales there are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scale: ScaleKind,
    /// How a scale becomes a power of two; `ceil` where the table says nothing.
    pub pot_rounding: Option<PotRounding>,
    /// Halves the scale up to so many times where that lowers the squared error of what was observed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pot_search: u8,
    /// Scales that are powers of two are no finer than 2 to the power of minus this.
    pub max_fraction_bits: Option<u8>,
    /// The unsigned grid of as many bits where no value below 0 was observed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ada_sign: bool,
    /// What the largest absolute value of a symmetric signed grid is divided by.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scale_divisor: ScaleDivisor,
    /// The narrowest range, in the tensor's units; 0 for none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub min_real_range: f64,
    /// Where the type's facts are from, if not from the table's source.
    pub source: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl QType {
    /// The grid of one scale of this type.
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

    /// The finest scale; 0 where there is none.
    pub fn min_scale(&self) -> f64 {
        self.max_fraction_bits.map_or(0.0, |bits| f64::from(bits).exp2().recip())
    }

    /// How often a scale may be halved in search of a better one.
    pub fn n_halvings(&self, scale: f32) -> u8 {
        let fits = |n: &u8| f64::from(scale) * (-f64::from(*n)).exp2() >= self.min_scale();
        (0..=self.pot_search).rev().find(fits).unwrap_or(0)
    }

    /// The lowest scale of the type that is not below `scale`: the next power of two, where scales are such.
    pub fn scale_at_least(&self, scale: f64) -> f32 {
        let nearest = scale as f32;
        match self.scale {
            ScaleKind::Float => nearest,
            ScaleKind::PowerOfTwo => f64::from(nearest).log2().ceil().exp2() as f32,
        }
    }

    /// The ONNX name of the integer that holds the values; `nnie8` for NNIE's codes, which ONNX does not have.
    pub fn dtype(&self) -> String {
        if self.kind == Codes::Nnie {
            return "nnie8".to_string();
        }
        let bits = self.storage_bits.unwrap_or(self.bits);
        format!("{}int{bits}", if self.signed { "" } else { "u" })
    }

    /// Whether weights may have the type, which is called `name`.
    pub(super) fn check_for_weight(&self, name: &str, at: &str) -> Result<(), Wrong> {
        ensure(!self.ada_sign, at, || format!("type `{name}` has `ada_sign`, expected it for activations only"))
    }

    /// The type to use for a tensor whose lowest observed value is `min`: with `ada_sign`, the unsigned
    /// one of as many bits where that is not below 0.
    pub fn adapted(&self, min: Option<f32>) -> QType {
        let unsigned = self.ada_sign && self.signed && min.is_some_and(|min| min >= 0.0);
        match unsigned {
            true => QType { signed: false, narrow_range: false, ..self.clone() },
            false => self.clone(),
        }
    }
}

impl Scheme {
    /// The type `name`, which the table asks for at `at`.
    pub(super) fn find_type(&self, name: &str, at: &str) -> Result<&QType, Wrong> {
        let names = self.types.keys().map(String::as_str);
        let unknown = || wrong(at, none_of(format_args!("type `{name}` is unknown"), name, names));
        self.types.get(name).ok_or_else(unknown)
    }

    /// As [`Scheme::find_type`], with one scale.
    pub(super) fn per_tensor_type(&self, name: &str, at: &str) -> Result<&QType, Wrong> {
        let qtype = self.find_type(name, at)?;
        ensure(qtype.granularity == Granularity::PerTensor, at, || {
            format!("type `{name}` has several scales, expected a type per tensor")
        })?;
        Ok(qtype)
    }
}

/// How many scales a tensor has.
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

/// Which scales a type has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleKind {
    /// Any float32.
    #[default]
    Float,
    /// Powers of two.
    PowerOfTwo,
}

/// How a table spells the divisor of a symmetric signed grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleDivisor {
    /// The highest integer: 127 for 8 bits.
    #[default]
    QMax,
    /// Half the number of steps: 127.5 for -128 to 127.
    HalfRange,
}
