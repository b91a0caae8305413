//! Scales of weights by the error that they leave at the layer's output.
//!
//! The error of a weight counts as much as the input that it is multiplied by varies: `sum_k var(x_k) (w_k - s q_k)^2`,
//! which is the error of the output where the inputs do not depend on each other.

use super::rounding::ROUNDING;
use super::weights::{WeightRule, WeightSearch};
use crate::engine::Value;
use crate::plan::Pairs;
use crate::simulate::{LayerHook, NoHook};
use crate::tune::layer::LayerProduct;
use crate::tune::method::{Action, LayerContext, Method};
use crate::tune::moments::variances;
use anyhow::Result;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Scales of weights by the error that they leave at the layer's output. They are tried only where some have few bits
/// (docs/design/rounding.md).
pub const CLIP: Method = Method {
    name: "clip",
    title: "weight range search",
    about: "scales of weights by the error that they leave at the layer's output",
    is_tried: |case| case.effort.level() > 0 && case.few_bits,
    needs: &[],
    action: Action::Layer(hook),
};

/// Learned rounding chooses the scales as well.
fn hook<'a>(context: &'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>> {
    match context.has(ROUNDING.name) {
        true => Ok(Box::new(NoHook)),
        false => Ok(Box::new(WeightSearch::new(WeightRule::Scales, context))),
    }
}

/// Scales tried, as shares of the one that covers the largest weight.
const SHARES: std::ops::RangeInclusive<u32> = 16..=40;

/// What the integers may be, counted from the zero point.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Lowest.
    pub low: i32,
    /// Highest.
    pub high: i32,
    /// Which may not be large side by side.
    pub pairs: Option<Pairs>,
}

impl Bounds {
    fn nearest(&self, w: f64, scale: f64) -> f64 {
        (w / scale).round_ties_even().clamp(f64::from(self.low), f64::from(self.high))
    }

    /// Bounds of weight `k` of the row `q`.
    pub fn of(&self, q: &[f64], k: usize) -> (f64, f64) {
        let (low, high) = match &self.pairs {
            None => (self.low, self.high),
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
            q[k] = self.nearest(w, scale(k)).clamp(low, high);
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
    /// What the integers may be.
    pub bounds: Bounds,
    /// Whether scales may change.
    pub free: bool,
}

impl Problem {
    /// Index of the scale of weight `k` of row `o`.
    pub fn scale_of(&self, o: usize, k: usize) -> usize {
        self.scale_idx.get(o * self.layer.n_in + k).map_or(o, |&idx| idx as usize)
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
}

/// A weight's integers and scales.
pub struct Rows {
    /// `[n_out, n_in]`, rows as in [`LayerProduct`].
    pub integers: Vec<i32>,
    /// As many as the problem has.
    pub scales: Vec<f32>,
}

/// The nearest integers on the scales with the least error at the layer's output; of the float outputs only the shapes
/// count. `None` where the inputs are not finite or always 0.
pub fn search(problem: &Problem, data: LayerData) -> Option<Rows> {
    let LayerData { b, y, centred } = data;
    let n_in = problem.layer.n_in;
    let mut variances = variances(&problem.layer, b, y, centred);
    let mean = variances.iter().sum::<f64>() / variances.len() as f64;
    if !mean.is_finite() || mean <= 0.0 {
        return None;
    }
    // An input that was 0 on these samples may be another on others.
    variances.iter_mut().for_each(|variance| *variance += 0.01 * mean);
    let targets: Vec<f64> = problem.w.iter().map(|&w| f64::from(w)).collect();
    let scales = choose(problem, &targets, &variances);
    let nearest = |(o, row): (usize, &[f64])| -> Vec<i32> {
        let scale = |k: usize| f64::from(scales[problem.scale_of(o, k)]);
        problem.bounds.nearest_row(row, scale).iter().map(|&q| q as i32).collect()
    };
    let integers: Vec<Vec<i32>> = targets.par_chunks(n_in).enumerate().map(nearest).collect();
    Some(Rows { integers: integers.concat(), scales })
}

/// The scales with the least error of nearest rounding of `targets` (`[n_out, n_in]`), weighted by the
/// inputs' variances (`[groups, n_in]`).
pub fn choose(problem: &Problem, targets: &[f64], variances: &[f64]) -> Vec<f32> {
    if !problem.free {
        return problem.scales.clone();
    }
    let Problem { layer, scales, bounds, .. } = problem;
    let (n_in, per_group) = (layer.n_in, layer.n_out / layer.groups);
    // What each scale is for: columns of rows.
    let mut parts: Vec<Vec<(usize, Vec<usize>)>> = vec![Vec::new(); scales.len()];
    for o in 0..layer.n_out {
        let mut of_row: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        (0..n_in).for_each(|k| of_row.entry(problem.scale_of(o, k)).or_default().push(k));
        of_row.into_iter().for_each(|(scale, columns)| parts[scale].push((o, columns)));
    }
    let error = |(o, columns): &(usize, Vec<usize>), scale: f64| -> f64 {
        let row = &targets[o * n_in..(o + 1) * n_in];
        let variance = &variances[o / per_group * n_in..(o / per_group + 1) * n_in];
        let of = |k: usize, q: f64| variance[k] * (row[k] - scale * q).powi(2);
        if bounds.pairs.is_some() && columns.len() == n_in {
            let q = bounds.nearest_row(row, |_| scale);
            return (0..n_in).map(|k| of(k, q[k])).sum();
        }
        columns.iter().map(|&k| of(k, bounds.nearest(row[k], scale))).sum()
    };
    let steps = f64::from(*SHARES.end());
    let best = |(parts, &given): (&Vec<(usize, Vec<usize>)>, &f32)| -> f32 {
        let values = parts.iter().flat_map(|(o, columns)| columns.iter().map(move |&k| targets[o * n_in + k].abs()));
        let full = values.fold(0f64, f64::max) / f64::from(bounds.high.max(1));
        // A scale that was widened on purpose, or of a row without weights, stays.
        if full <= f64::from(f32::MIN_POSITIVE) || f64::from(given) > 1.5 * full {
            return given;
        }
        let tries = SHARES.map(|share| (full * f64::from(share) / steps) as f32);
        let tries = tries.chain([given]).filter(|scale| scale.is_normal());
        let total = |scale: f32| parts.iter().map(|part| error(part, f64::from(scale))).sum();
        let scored = tries.map(|scale| -> (f64, f32) { (total(scale), scale) });
        scored.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(given, |(_, scale)| scale)
    };
    parts.par_iter().zip(scales.par_iter()).map(best).collect()
}
