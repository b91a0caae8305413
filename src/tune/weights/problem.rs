//! A weight whose integers or scales are asked for.

use super::layer::LayerProduct;
use crate::engine::Value;
use crate::plan::Pairs;
use crate::simulate::TokenMask;

/// What the integers may be, counted from the zero point.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// Lowest.
    pub low: i32,
    /// Highest.
    pub high: i32,
    /// Which may not be large side by side.
    pub pairs: Option<Pairs>,
    /// By how much lower both are, for each weight of a row; empty where all have one zero point.
    pub shifts: &'a [i32],
}

impl Bounds<'_> {
    /// Lowest and highest integer of weight `k` of a row, whatever stands beside it.
    pub(super) fn ends(&self, k: usize) -> (i32, i32) {
        let shift = self.shifts.get(k).copied().unwrap_or_default();
        (self.low - shift, self.high - shift)
    }

    pub(super) fn nearest(&self, k: usize, w: f64, scale: f64) -> f64 {
        // Added, it leaves no bits behind the point: ties go to the even integer, without a call of the maths library.
        const NO_FRACTION: f64 = 1.5 * (1u64 << 52) as f64;
        let (low, high) = self.ends(k);
        (w / scale).clamp(f64::from(low), f64::from(high)) + NO_FRACTION - NO_FRACTION
    }

    /// Bounds of weight `k` of the row `q`.
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

    /// The nearest integers; of two that are too heavy together the later one gives way.
    pub fn nearest_row(&self, row: &[f64], scale: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut q = vec![0f64; row.len()];
        for (k, &w) in row.iter().enumerate() {
            // What comes later is still 0.
            let (low, high) = self.of(&q, k);
            q[k] = self.nearest(k, w, scale(k)).clamp(low, high);
        }
        q
    }
}

/// A weight whose integers are asked for.
pub struct Problem {
    /// The layer that it belongs to.
    pub layer: LayerProduct,
    /// `[n_out, n_in]`, rows as in [`LayerProduct`].
    pub w: Vec<f32>,
    /// As decided so far.
    pub scales: Vec<f32>,
    /// The index of the scale of each weight; empty where every row has one, in their order.
    pub scale_idx: Vec<u32>,
    /// What the integers may be, counted from the first zero point.
    pub bounds: Bounds<'static>,
    /// By how much the zero point of each weight is above the first, as `w`; empty where there is one.
    pub shifts: Vec<i32>,
    /// Whether scales may change.
    pub free: bool,
}

impl Problem {
    /// Index of the scale of weight `k` of row `o`.
    pub fn scale_of(&self, o: usize, k: usize) -> usize {
        self.scale_idx.get(o * self.layer.n_in + k).map_or(o, |&idx| idx as usize)
    }

    /// What the integers of row `o` may be.
    pub fn bounds_of(&self, o: usize) -> Bounds<'_> {
        let n_in = self.layer.n_in;
        Bounds { shifts: self.shifts.get(o * n_in..(o + 1) * n_in).unwrap_or_default(), ..self.bounds }
    }

    /// The scale of each weight of row `o`.
    pub fn steps(&self, scales: &[f32], o: usize) -> Vec<f64> {
        (0..self.layer.n_in).map(|k| f64::from(scales[self.scale_of(o, k)])).collect()
    }
}

/// What a layer reads and makes, per sample.
#[derive(Clone, Copy)]
pub struct LayerData<'a> {
    /// Its inputs in the quantized network.
    pub b: &'a [Value],
    /// Its outputs in the float network.
    pub y: &'a [Value],
    /// Whether its bias will be corrected afterwards.
    pub centred: bool,
    /// Which tokens of each sample are no padding; empty where that is not known.
    pub tokens: &'a [TokenMask],
}

/// A weight's integers and scales.
pub struct Rows {
    /// `[n_out, n_in]`, rows as in [`LayerProduct`].
    pub integers: Vec<i32>,
    /// As many as the problem has.
    pub scales: Vec<f32>,
}
