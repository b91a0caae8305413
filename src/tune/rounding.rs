//! Learned rounding without gradients: the integers of a weight that reproduce the layer's float output.
//!
//! With `b` the layer's input in the quantized network and `y` its output in the float one, both as seen
//! on the calibration samples, the best real weights solve a ridge regression of `y` on `b`,
//!
//! ```text
//! w* = (cov(y, b) + lambda w) (cov(b, b) + lambda I)^-1
//! ```
//!
//! and the integers `q` come from coordinate descent on `(w* - s q) H (w* - s q)^T`, `H = cov(b, b) +
//! lambda I`, from the nearest integers on: each step can only lower the error. Sources: GPTQ (Frantar
//! et al., 2022, arXiv 2210.17323) for the objective, COMQ (Zhang et al., 2024, arXiv 2403.07134) for the
//! descent.

use super::layer::Layer;
use crate::engine::Value;
use anyhow::{Result, anyhow};
use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatMut, MatRef, Par, Side};
use rayon::prelude::*;

/// Ridge, as a share of the mean variance of an input.
const RIDGE: f64 = 0.05;
/// Positions per weight of a row from which the regression is trusted.
const MIN_POSITIONS_PER_WEIGHT: usize = 20;
/// Positions looked at: at most so many per weight of a row, and so many more.
const POSITIONS_PER_WEIGHT: usize = 40;
const MORE_POSITIONS: usize = 10_000;
/// Sweeps of the coordinate descent.
const MAX_SWEEPS: usize = 12;
/// Scales tried, as shares of the one that covers the largest weight.
const SCALE_SHARES: std::ops::RangeInclusive<u32> = 20..=40;

/// Second moments of one group of channels.
struct Moments {
    /// Sum of `b b^T`, `[n_in, n_in]`.
    bb: Mat<f64>,
    /// Sum of `b y^T`, `[n_in, outputs of the group]`.
    by: Mat<f64>,
    /// Sum of `b`.
    b: Vec<f64>,
    /// Sum of `y`.
    y: Vec<f64>,
    n: usize,
}

impl Moments {
    fn zero(n_in: usize, n_out: usize) -> Moments {
        Moments {
            bb: Mat::zeros(n_in, n_in),
            by: Mat::zeros(n_in, n_out),
            b: vec![0.0; n_in],
            y: vec![0.0; n_out],
            n: 0,
        }
    }

    /// The moments of some positions of one sample.
    fn of(layer: &Layer, group: usize, x: &Value, y: &Value, positions: &[usize]) -> Moments {
        let (n_in, n_out) = (layer.n_in, layer.n_out / layer.groups);
        let mut moments = Moments::zero(n_in, n_out);
        let patches = layer.patches(x, y, group, positions);
        let Some(outputs) = y.f32s().filter(|_| !patches.is_empty()) else { return moments };
        let mut targets = Vec::with_capacity(positions.len() * n_out);
        for &p in positions {
            let channels = group * n_out..(group + 1) * n_out;
            targets.extend(channels.map(|o| outputs[layer.out_at(y, o, p)]));
        }
        let b = MatRef::from_row_major_slice(&patches, positions.len(), n_in);
        let t = MatRef::from_row_major_slice(&targets, positions.len(), n_out);
        let product = |right: MatRef<f32>| {
            let mut out = vec![0f32; n_in * right.ncols()];
            let to = MatMut::from_column_major_slice_mut(&mut out, n_in, right.ncols());
            matmul(to, Accum::Replace, b.transpose(), right, 1.0, Par::Seq);
            Mat::from_fn(n_in, right.ncols(), |i, j| f64::from(out[j * n_in + i]))
        };
        moments.bb = product(b);
        moments.by = product(t);
        for patch in patches.chunks(n_in) {
            patch.iter().zip(&mut moments.b).for_each(|(v, sum)| *sum += f64::from(*v));
        }
        for target in targets.chunks(n_out) {
            target.iter().zip(&mut moments.y).for_each(|(v, sum)| *sum += f64::from(*v));
        }
        moments.n = positions.len();
        moments
    }

    fn add(&mut self, other: &Moments) {
        self.bb += &other.bb;
        self.by += &other.by;
        self.b.iter_mut().zip(&other.b).for_each(|(sum, v)| *sum += v);
        self.y.iter_mut().zip(&other.y).for_each(|(sum, v)| *sum += v);
        self.n += other.n;
    }

    /// Means of the products, about the means where `centred`.
    fn finish(mut self, centred: bool) -> Moments {
        let n = self.n.max(1) as f64;
        let (b, y) = (&self.b, &self.y);
        let about = |sum: f64, a: f64, b: f64| match centred {
            true => sum / n - a / n * (b / n),
            false => sum / n,
        };
        self.bb = Mat::from_fn(b.len(), b.len(), |i, j| about(self.bb[(i, j)], b[i], b[j]));
        self.by = Mat::from_fn(b.len(), y.len(), |i, j| about(self.by[(i, j)], b[i], y[j]));
        self
    }
}

/// Moments of every group over the samples, whatever the number of threads the same bits.
fn gather(layer: &Layer, b: &[Value], y: &[Value], centred: bool) -> Vec<Moments> {
    let n_positions: usize = y.iter().map(|y| layer.n_positions(y)).sum();
    let wanted = POSITIONS_PER_WEIGHT * layer.n_in + MORE_POSITIONS;
    let stride = n_positions.div_ceil(wanted).max(1);
    let positions = |sample: usize| -> Vec<usize> {
        // Another first position in each sample, so that not always the same places are seen.
        (sample * 7 % stride..layer.n_positions(&y[sample])).step_by(stride).collect()
    };
    let of = |group: usize, sample: usize| {
        Moments::of(layer, group, &b[sample], &y[sample], &positions(sample))
    };
    let zero = || Moments::zero(layer.n_in, layer.n_out / layer.groups);
    if layer.groups > 1 {
        let whole = |group: usize| {
            let mut sum = zero();
            (0..b.len()).for_each(|sample| sum.add(&of(group, sample)));
            sum.finish(centred)
        };
        return (0..layer.groups).into_par_iter().map(whole).collect();
    }
    let mut sum = zero();
    let samples: Vec<usize> = (0..b.len()).collect();
    for wave in samples.chunks(rayon::current_num_threads().max(1)) {
        let parts: Vec<Moments> = wave.par_iter().map(|&sample| of(0, sample)).collect();
        parts.iter().for_each(|part| sum.add(part));
    }
    vec![sum.finish(centred)]
}

/// What the rounding may do with the scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    /// They stay.
    Fixed,
    /// One per row may shrink.
    PerRow,
    /// The only one may shrink.
    Shared,
}

/// A weight's integers and scales, row by row.
pub struct Rows {
    /// `[n_out, n_in]`.
    pub integers: Vec<i32>,
    /// One per row.
    pub scales: Vec<f32>,
}

/// Rounds the weight `w` (`[n_out, n_in]`, rows as in [`Layer`]) for the inputs `b` of the quantized
/// network and the outputs `y` of the float one. `scales` holds one per row; integers stay within
/// `bounds`, and 0 stands for 0. `centred` says that the layer's bias will be corrected afterwards.
///
/// # Errors
/// If the inputs' moments are not finite.
pub fn round(
    layer: &Layer,
    w: &[f32],
    scales: &[f32],
    bounds: (i32, i32),
    search: Scales,
    (b, y): (&[Value], &[Value]),
    centred: bool,
) -> Result<Rows> {
    let (n_in, n_out, per_group) = (layer.n_in, layer.n_out, layer.n_out / layer.groups);
    let mut groups = Vec::with_capacity(layer.groups);
    let mut targets: Vec<f64> = w.iter().map(|&w| f64::from(w)).collect();
    for (group, moments) in gather(layer, b, y, centred).into_iter().enumerate() {
        let mut h = moments.bb;
        let variance = (0..n_in).map(|i| h[(i, i)]).sum::<f64>() / n_in as f64;
        if !variance.is_finite() {
            return Err(anyhow!("the inputs are not finite"));
        }
        let trusted = moments.n >= MIN_POSITIONS_PER_WEIGHT * n_in && variance > 0.0;
        let ridge = variance * if trusted { RIDGE } else { 2.0 * RIDGE };
        let ridge = ridge.max(f64::MIN_POSITIVE);
        (0..n_in).for_each(|i| h[(i, i)] += ridge);
        let rows = group * per_group..(group + 1) * per_group;
        if trusted && let Ok(factor) = h.llt(Side::Lower) {
            let right = Mat::from_fn(n_in, per_group, |k, i| {
                moments.by[(k, i)] + ridge * targets[(rows.start + i) * n_in + k]
            });
            let solved = factor.solve(&right);
            for (i, o) in rows.enumerate() {
                let row = &mut targets[o * n_in..(o + 1) * n_in];
                if (0..n_in).all(|k| solved[(k, i)].is_finite()) {
                    row.iter_mut().enumerate().for_each(|(k, w)| *w = solved[(k, i)]);
                }
            }
        }
        groups.push(h);
    }
    let row = |o: usize| &targets[o * n_in..(o + 1) * n_in];
    let scales = choose_scales(layer, &groups, row, scales, bounds, search);
    let round_row =
        |o: usize| descend(&groups[o / per_group], row(o), f64::from(scales[o]), bounds);
    let integers: Vec<Vec<i32>> = (0..n_out).into_par_iter().map(round_row).collect();
    Ok(Rows { integers: integers.concat(), scales })
}

fn nearest(w: f64, scale: f64, bounds: (i32, i32)) -> f64 {
    (w / scale).round_ties_even().clamp(f64::from(bounds.0), f64::from(bounds.1))
}

/// The scales with the least error of nearest rounding, weighted by the inputs' variances.
fn choose_scales<'t>(
    layer: &Layer,
    groups: &[Mat<f64>],
    row: impl Fn(usize) -> &'t [f64] + Sync,
    scales: &[f32],
    bounds: (i32, i32),
    search: Scales,
) -> Vec<f32> {
    let per_group = layer.n_out / layer.groups;
    let error = |o: usize, scale: f64| -> f64 {
        let h = &groups[o / per_group];
        let of =
            |(k, &w): (usize, &f64)| h[(k, k)] * (w - scale * nearest(w, scale, bounds)).powi(2);
        row(o).iter().enumerate().map(of).sum()
    };
    let full = |o: usize| {
        row(o).iter().fold(0f64, |amax, w| amax.max(w.abs())) / f64::from(bounds.1.max(1))
    };
    let steps = f64::from(*SCALE_SHARES.end());
    let best_of = |full: f64, given: f32, error: &dyn Fn(f64) -> f64| -> f32 {
        // A scale that was widened on purpose, or of a row without weights, stays.
        if full <= f64::from(f32::MIN_POSITIVE) || f64::from(given) > 1.5 * full {
            return given;
        }
        let tries = SCALE_SHARES.map(|share| (full * f64::from(share) / steps) as f32);
        let tries = tries.chain([given]).filter(|scale| scale.is_normal());
        let scored = tries.map(|scale| (error(f64::from(scale)), scale));
        scored.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(given, |(_, scale)| scale)
    };
    match search {
        Scales::Fixed => scales.to_vec(),
        Scales::PerRow => (0..layer.n_out)
            .into_par_iter()
            .map(|o| best_of(full(o), scales[o], &|scale| error(o, scale)))
            .collect(),
        Scales::Shared => {
            let widest = (0..layer.n_out).map(full).fold(0f64, f64::max);
            let all = |scale: f64| (0..layer.n_out).map(|o| error(o, scale)).sum();
            vec![best_of(widest, scales[0], &all); layer.n_out]
        }
    }
}

/// Coordinate descent from the nearest integers; the inputs that vary most come first.
fn descend(h: &Mat<f64>, target: &[f64], scale: f64, bounds: (i32, i32)) -> Vec<i32> {
    let n = target.len();
    let mut q: Vec<f64> = target.iter().map(|&w| nearest(w, scale, bounds)).collect();
    let error: Vec<f64> = target.iter().zip(&q).map(|(w, q)| w - scale * q).collect();
    // The gradient, up to a factor of -2: H times what is left of the target.
    let mut gradient = vec![0f64; n];
    for (j, e) in error.iter().enumerate() {
        let column = h.col_as_slice(j);
        gradient.iter_mut().zip(column).for_each(|(g, h)| *g += h * e);
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| h[(b, b)].total_cmp(&h[(a, a)]).then(a.cmp(&b)));
    for _ in 0..MAX_SWEEPS {
        let mut moved = false;
        for &j in &order {
            let best = q[j] + gradient[j] / (scale * h[(j, j)]);
            let best = best.round_ties_even().clamp(f64::from(bounds.0), f64::from(bounds.1));
            let step = best - q[j];
            if step == 0.0 || !step.is_finite() {
                continue;
            }
            // A tie at half a step would go to and fro.
            let change = step * scale * (step * scale * h[(j, j)] - 2.0 * gradient[j]);
            if change >= 0.0 {
                continue;
            }
            q[j] = best;
            moved = true;
            let by = step * scale;
            gradient.iter_mut().zip(h.col_as_slice(j)).for_each(|(g, h)| *g -= by * h);
        }
        if !moved {
            break;
        }
    }
    q.iter().map(|&q| q as i32).collect()
}
