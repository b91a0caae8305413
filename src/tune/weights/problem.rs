//! A weight whose integers or scales are searched.

use super::layer::LayerProduct;
use crate::engine::Value;
use crate::plan::Pairs;
use crate::quant::round_small;
use crate::simulate::TokenMask;

/// Allowed integers, relative to the zero point.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// Smallest integer.
    pub low: i32,
    /// Largest integer.
    pub high: i32,
    /// Limits on the sum of neighboring weights.
    pub pairs: Option<Pairs>,
    /// Amount by which both limits are lower, for each weight of a row; empty where all have one zero point.
    pub shifts: &'a [i32],
}

impl Bounds<'_> {
    /// Returns the smallest and largest integer of weight `k` of a row, without the limits on pairs.
    pub(super) fn ends(&self, k: usize) -> (i32, i32) {
        let shift = self.shifts.get(k).copied().unwrap_or_default();
        (self.low - shift, self.high - shift)
    }

    pub(super) fn nearest(&self, k: usize, w: f64, scale: f64) -> f64 {
        let (low, high) = self.ends(k);
        round_small((w / scale).clamp(f64::from(low), f64::from(high)))
    }

    /// Returns the smallest and largest integer of weight `k`, given the other integers `q` of its row.
    pub fn of(&self, q: &[f64], k: usize) -> (f64, f64) {
        let (low, high) = match &self.pairs {
            None => self.ends(k),
            Some(pairs) => {
                let (low, high) = pairs.bounds(|k| q[k] as i32, k);
                (low.max(self.low), high.min(self.high))
            }
        };
        (f64::from(low), f64::from(high))
    }

    /// Returns the nearest allowed integers of a row. Of a pair above the limit, the second integer is reduced.
    pub fn nearest_row(&self, row: &[f64], scale: impl Fn(usize) -> f64) -> Vec<f64> {
        self.nearest_in_turn(row, scale, |_, _| true)
    }

    /// Returns the integers as [`Bounds::nearest_row`], up to the first integer for which `goes_on` is false; the
    /// others are 0.
    pub(super) fn nearest_in_turn(
        &self,
        row: &[f64],
        scale: impl Fn(usize) -> f64,
        mut goes_on: impl FnMut(usize, f64) -> bool,
    ) -> Vec<f64> {
        let mut q = vec![0f64; row.len()];
        for (k, &w) in row.iter().enumerate() {
            // Later integers of the row are still 0.
            let (low, high) = self.of(&q, k);
            q[k] = self.nearest(k, w, scale(k)).clamp(low, high);
            if !goes_on(k, q[k]) {
                break;
            }
        }
        q
    }
}

/// A weight whose integers or scales are searched.
pub struct WeightProblem {
    /// The weight's layer.
    pub layer: LayerProduct,
    /// Values, `[n_out, n_in]`, rows as in [`LayerProduct`].
    pub w: Vec<f32>,
    /// The current scales.
    pub scales: Vec<f32>,
    /// The index of the scale of each weight; empty where row `o` has scale `o`.
    pub scale_idx: Vec<u32>,
    /// Allowed integers, relative to the first zero point.
    pub bounds: Bounds<'static>,
    /// Zero point of each weight minus the first one, as `w`; empty where all have one zero point.
    pub shifts: Vec<i32>,
    /// Whether scales may be any float, so that they can change.
    pub free: bool,
}

impl WeightProblem {
    /// Returns the index of the scale of weight `k` of row `o`.
    pub fn scale_of(&self, o: usize, k: usize) -> usize {
        self.scale_idx.get(o * self.layer.n_in + k).map_or(o, |&idx| idx as usize)
    }

    /// Returns the allowed integers of row `o`.
    pub fn bounds_of(&self, o: usize) -> Bounds<'_> {
        let n_in = self.layer.n_in;
        Bounds { shifts: self.shifts.get(o * n_in..(o + 1) * n_in).unwrap_or_default(), ..self.bounds }
    }

    /// Returns the scale of each weight of row `o`.
    pub fn steps(&self, scales: &[f32], o: usize) -> Vec<f64> {
        (0..self.layer.n_in).map(|k| f64::from(scales[self.scale_of(o, k)])).collect()
    }
}

/// Inputs and outputs of a layer, per sample.
#[derive(Clone, Copy)]
pub struct LayerData<'a> {
    /// Inputs in the quantized network.
    pub inputs: &'a [Value],
    /// Outputs in the float network.
    pub outputs: &'a [Value],
    /// The bias that the outputs include, one value per output channel; empty for none.
    pub bias: &'a [f32],
    /// Whether the bias will be corrected afterwards.
    pub corrects_bias: bool,
    /// Tokens of each sample that are not padding; empty where that is not known.
    pub tokens: &'a [TokenMask],
}

/// The integers and scales of a weight.
pub struct Rows {
    /// `[n_out, n_in]`, rows as in [`LayerProduct`].
    pub integers: Vec<i32>,
    /// As [`WeightProblem::scales`].
    pub scales: Vec<f32>,
}
