//! Learned rounding without gradients: the integers of a weight that reproduce the layer's float output.
//!
//! With `b` the layer's input in the quantized network and `y` its output in the float one, both as seen
//! on the calibration samples, the best real weights solve a ridge regression of `y` on `b`,
//!
//! ```text
//! w* = (cov(y, b) + w L) (cov(b, b) + L)^-1
//! ```
//!
//! with a diagonal ridge `L`, and the integers `q` come from coordinate descent on `(w* - s q) H (w* - s q)^T`,
//! `H = cov(b, b) + L`, from the nearest integers on: each step can only lower the error. A row that leaves more error
//! on the samples than the nearest integers of `w`, which the ridge allows, gets these.
//!
//! Where the layer's bias lies on a coarse grid of its own, its mean error m counts as well, and the integers make
//! up for what the grid leaves: the error then is `(w* - s q) H (w* - s q)^T + (m + E[b] (s q - s q0)^T)^2`.
//!
//! Sources: GPTQ (Frantar et al., 2022, arXiv 2210.17323) for the objective, COMQ (Zhang et al., 2024, arXiv 2403.07134)
//! for the descent.

use super::moments::gather;
use super::scales::{Bounds, Problem, Rows, choose};
use crate::engine::Value;
use anyhow::{Result, anyhow};
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};
use rayon::prelude::*;

/// Ridge, as a share of the variance of an input, half its own and half the mean of all: where scales are powers of
/// two, the mean alone costs mobilenetv1_025 and mlperf_resnet8 0.3 and 0.9 dB and brings squeezenet1_1 0.2. It is for
/// grids of few integers and of many. The less there is to win by rounding, the less the targets may follow what a few
/// samples ask for: at 8 bits 0.2 costs squeezenet1_1 and mobilenetv1_025 0.3 to 0.6 dB on other images, at 4 bits 1
/// costs mobilenetv1_025 and mlperf_resnet8 0.3 and 1.6.
const RIDGES: [f64; 2] = [0.2, 1.0];
/// Integers from which a grid has many.
const MANY: i32 = 64;
/// Positions per weight of a row from which the regression is trusted.
const MIN_POSITIONS_PER_WEIGHT: usize = 20;
/// Sweeps of the coordinate descent.
const MAX_SWEEPS: usize = 12;
/// Longest row: its matrix of moments takes 170 MB, twice while it is factorized.
pub const MAX_ROW: usize = 4608;

/// Rounds the weight for the inputs `b` of the quantized network and the outputs `y` of the float one.
/// `centred` says that the layer's bias will be corrected afterwards.
///
/// # Errors
/// If the inputs' moments are not finite.
pub fn round(problem: &Problem, (b, y): (&[Value], &[Value]), centred: bool) -> Result<Learned> {
    let layer = &problem.layer;
    let (n_in, n_out, per_group) = (layer.n_in, layer.n_out, layer.n_out / layer.groups);
    let n_integers = problem.bounds.high - problem.bounds.low + 1;
    let ridge = RIDGES[usize::from(n_integers >= MANY)];
    let mut groups = Vec::with_capacity(layer.groups);
    let given: Vec<f64> = problem.w.iter().map(|&w| f64::from(w)).collect();
    let mut targets = given.clone();
    for (group, moments) in gather(layer, b, y, centred).into_iter().enumerate() {
        let mut h = moments.bb;
        let variance = (0..n_in).map(|i| h[(i, i)]).sum::<f64>() / n_in as f64;
        if !variance.is_finite() {
            return Err(anyhow!("the inputs are not finite"));
        }
        let trusted = moments.n >= MIN_POSITIONS_PER_WEIGHT * n_in && variance > 0.0;
        let share = if trusted { ridge } else { 2.0 * ridge };
        let of_input = |k: usize| share * (variance + h[(k, k)]) / 2.0;
        let ridge: Vec<f64> = (0..n_in).map(|k| of_input(k).max(f64::MIN_POSITIVE)).collect();
        (0..n_in).for_each(|k| h[(k, k)] += ridge[k]);
        let rows = group * per_group..(group + 1) * per_group;
        if trusted && let Ok(factor) = h.llt(Side::Lower) {
            let right = Mat::from_fn(n_in, per_group, |k, i| {
                moments.by[(k, i)] + ridge[k] * targets[(rows.start + i) * n_in + k]
            });
            let solved = factor.solve(&right);
            for (i, o) in rows.enumerate() {
                let row = &mut targets[o * n_in..(o + 1) * n_in];
                if (0..n_in).all(|k| solved[(k, i)].is_finite()) {
                    row.iter_mut().enumerate().for_each(|(k, w)| *w = solved[(k, i)]);
                }
            }
        }
        groups.push(Group { h, by: moments.by, ridge, means: moments.b });
    }
    let diagonal: Vec<f64> =
        groups.iter().flat_map(|group| (0..n_in).map(move |k| group.h[(k, k)])).collect();
    let scales = choose(problem, &targets, &diagonal);
    let round_row = |o: usize| {
        let row = |of: &[f64]| of[o * n_in..(o + 1) * n_in].to_vec();
        let group = &groups[o / per_group];
        let steps = problem.steps(&scales, o);
        let target = row(&targets);
        let start = problem.bounds.nearest_row(&target, |k| steps[k]);
        let gradient = group.gradient(&target, &start, &steps);
        let learned = descend(&problem.bounds, &group.h, gradient, start, &steps);
        let given: Vec<f64> = row(&given);
        let nearest = problem.bounds.nearest_row(&given, |k| steps[k]);
        let error = |q: &[f64]| group.error(o % per_group, q, &steps);
        let q = if error(&learned) <= error(&nearest) { learned } else { nearest };
        q.iter().map(|&q| q as i32).collect()
    };
    let integers: Vec<Vec<i32>> = (0..n_out).into_par_iter().map(round_row).collect();
    Ok(Learned { rows: Rows { integers: integers.concat(), scales }, targets, groups })
}

/// Learned integers, and what they were learned from.
pub struct Learned {
    /// The integers and their scales.
    pub rows: Rows,
    /// `[n_out, n_in]`.
    targets: Vec<f64>,
    groups: Vec<Group>,
}

impl Learned {
    /// Other integers, which make up for biases that are not what they should be: `errors` holds for each row by how
    /// much, one or more of which one is taken. Gives their positions.
    pub fn make_up(&mut self, problem: &Problem, errors: &[Vec<f64>]) -> Vec<usize> {
        let (n_in, per_group) = (problem.layer.n_in, problem.layer.n_out / problem.layer.groups);
        let with_means: Vec<Mat<f64>> = self.groups.par_iter().map(Group::with_means).collect();
        let of_row = |(o, errors): (usize, &Vec<f64>)| {
            let row = o * n_in..(o + 1) * n_in;
            let (group, h) = (&self.groups[o / per_group], &with_means[o / per_group]);
            let steps = problem.steps(&self.rows.scales, o);
            let target = &self.targets[row.clone()];
            let start: Vec<f64> = self.rows.integers[row].iter().map(|&q| f64::from(q)).collect();
            let slope = group.gradient(target, &start, &steps);
            let made_up = |(choice, &error): (usize, &f64)| {
                let mut gradient = slope.clone();
                gradient.iter_mut().zip(&group.means).for_each(|(g, mean)| *g -= error * mean);
                let q = descend(&problem.bounds, h, gradient, start.clone(), &steps);
                (group.left(target, (&start, &q), &steps, error), choice, q)
            };
            let all = errors.iter().enumerate().map(made_up);
            all.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, choice, q)| (choice, q))
        };
        let rows: Vec<Option<(usize, Vec<f64>)>> =
            errors.par_iter().enumerate().map(of_row).collect();
        let mut chosen = vec![0; errors.len()];
        for (o, (choice, q)) in rows.into_iter().enumerate().filter_map(|(o, row)| Some((o, row?)))
        {
            chosen[o] = choice;
            let stored = &mut self.rows.integers[o * n_in..(o + 1) * n_in];
            stored.iter_mut().zip(q).for_each(|(stored, q)| *stored = q as i32);
        }
        chosen
    }
}

/// What is known of one group of channels.
struct Group {
    /// `cov(b, b)` with the ridge on its diagonal, `[n_in, n_in]`.
    h: Mat<f64>,
    /// `cov(b, y)`, `[n_in, outputs of the group]`.
    by: Mat<f64>,
    /// One per input.
    ridge: Vec<f64>,
    /// Mean of each input.
    means: Vec<f64>,
}

impl Group {
    /// Mean squared error of an output for the integers `q`, up to what they do not change.
    fn error(&self, output: usize, q: &[f64], scales: &[f64]) -> f64 {
        let w: Vec<f64> = q.iter().zip(scales).map(|(q, scale)| q * scale).collect();
        let products = self.times(&w);
        let of = |(k, w_k): (usize, &f64)| {
            w_k * (products[k] - self.ridge[k] * w_k - 2.0 * self.by[(k, output)])
        };
        w.iter().enumerate().map(of).sum()
    }

    /// `H` times a vector, column by column: no sum waits for the one before.
    fn times(&self, vector: &[f64]) -> Vec<f64> {
        let mut products = vec![0f64; vector.len()];
        for (k, v) in vector.iter().enumerate() {
            let column = self.h.col_as_slice(k);
            products.iter_mut().zip(column).for_each(|(product, h)| *product += h * v);
        }
        products
    }

    /// `H` times what the integers leave of the target: half the slope of the error, downwards.
    fn gradient(&self, target: &[f64], q: &[f64], scales: &[f64]) -> Vec<f64> {
        let errors = target.iter().zip(q).zip(scales).map(|((w, q), scale)| w - scale * q);
        self.times(&errors.collect::<Vec<f64>>())
    }

    /// `H` and the products of the means.
    fn with_means(&self) -> Mat<f64> {
        let n = self.means.len();
        Mat::from_fn(n, n, |i, j| self.h[(i, j)] + self.means[i] * self.means[j])
    }

    /// The error that the integers `q` leave, that of the mean among it, which was `error` for `from`.
    fn left(&self, target: &[f64], (from, q): (&[f64], &[f64]), scales: &[f64], error: f64) -> f64 {
        let slope = self.gradient(target, q, scales);
        let (mut left, mut mean) = (0.0, error);
        for k in 0..target.len() {
            left += (target[k] - scales[k] * q[k]) * slope[k];
            mean += (q[k] - from[k]) * scales[k] * self.means[k];
        }
        left + mean * mean
    }
}

/// Coordinate descent from the integers `q`, where half the downward slope of the error is `gradient`; the inputs
/// that vary most come first.
fn descend(
    bounds: &Bounds,
    h: &Mat<f64>,
    mut gradient: Vec<f64>,
    mut q: Vec<f64>,
    scales: &[f64],
) -> Vec<f64> {
    let n = q.len();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| h[(b, b)].total_cmp(&h[(a, a)]).then(a.cmp(&b)));
    for _ in 0..MAX_SWEEPS {
        let mut moved = false;
        for &j in &order {
            let best = q[j] + gradient[j] / (scales[j] * h[(j, j)]);
            let (low, high) = bounds.of(&q, j);
            let best = best.round_ties_even().clamp(low, high);
            let by = (best - q[j]) * scales[j];
            if by == 0.0 || !by.is_finite() {
                continue;
            }
            // A tie at half a step would go to and fro.
            let change = by * (by * h[(j, j)] - 2.0 * gradient[j]);
            if change >= 0.0 {
                continue;
            }
            q[j] = best;
            moved = true;
            gradient.iter_mut().zip(h.col_as_slice(j)).for_each(|(g, h)| *g -= by * h);
        }
        if !moved {
            break;
        }
    }
    q
}
