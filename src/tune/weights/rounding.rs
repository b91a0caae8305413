//! Learned rounding without gradients: the integers of a weight that reproduce the layer's float output.
//!
//! With `b` the layer's input in the quantized network and `y` its output in the float one, both as seen
//! on the calibration samples, the best real weights solve a ridge regression of `y` on `b`,
//!
//! ```text
//! w* = (cov(y, b) + w L) (cov(b, b) + L)^-1
//! ```
//!
//! with a diagonal ridge `L`. The integers `q` come from coordinate descent on `(w* - s q) H (w* - s q)^T`,
//! `H = cov(b, b) + L`, starting from the nearest integers: each step can only lower the error. Because of the ridge, a
//! row may end with more error on the samples than the nearest integers of `w` have. Such a row gets the nearest
//! integers.
//!
//! Where the layer's bias has few bits and quantization parameters of its own, its mean error m counts as well, and the
//! integers compensate for the bias's rounding: the error then is
//! `(w* - s q) H (w* - s q)^T + (m + E[b] (s q - s q0)^T)^2`.
//!
//! Sources: GPTQ (Frantar et al., 2022, arXiv 2210.17323) for the objective, COMQ (Zhang et al., 2024, arXiv
//! 2403.07134) for the descent.

use super::descent::QuadraticError;
use super::moments::{Moments, gather};
use super::problem::{LayerData, Rows, WeightProblem};
use super::scales::choose;
use anyhow::{Result, anyhow};
use mqq_concrete::matrix::Matrix;
use rayon::prelude::*;

/// Ridge relative to an input's variance (half its own, half the mean of all), for grids of few and of many integers.
/// The less rounding can gain, the less the targets may follow a few samples. Figures: docs/design/rounding.md.
const RIDGES: [f64; 2] = [0.2, 1.0];
/// Number of integers from which a grid has many.
const MANY: i32 = 64;
/// Minimum positions per weight of a row for the regression.
const MIN_POSITIONS_PER_WEIGHT: usize = 20;
/// Maximum weights of a row. The matrix of moments of such a row takes 170 MB, and twice that while it is factorized.
pub const MAX_ROW: usize = 4608;

/// Number of rows that are multiplied at a time. The matrix is packed once for all of them.
const BLOCK: usize = 128;

/// Learns the integers of a weight from its inputs in the quantized network and its outputs in the float one.
///
/// # Errors
/// If the inputs' moments are not finite.
pub fn round(problem: &WeightProblem, data: LayerData) -> Result<RoundedWeight> {
    let layer = &problem.layer;
    let n_integers = problem.bounds.high - problem.bounds.low + 1;
    let ridge = RIDGES[usize::from(n_integers >= MANY)];
    let given: Vec<f64> = problem.w.iter().map(|&w| f64::from(w)).collect();
    let of_group = layer.n_in * (layer.n_out / layer.groups);
    let moments = gather(layer, data).into_par_iter().zip(given.par_chunks(of_group));
    let groups = moments.map(|(moments, given)| Group::new(moments, given, ridge));
    let groups: Vec<Group> = groups.collect::<Result<_>>()?;
    let targets: Vec<f64> = groups.iter().flat_map(|group| &group.targets).copied().collect();
    let diagonal: Vec<f64> = groups.iter().flat_map(Group::diagonal).collect();
    let scales = choose(problem, &targets, &diagonal);
    let steps: Vec<f64> = (0..layer.n_out).flat_map(|o| problem.steps(&scales, o)).collect();
    let rows = groups.par_iter().zip(given.par_chunks(of_group)).zip(steps.par_chunks(of_group)).enumerate();
    let first = |group: usize| group * (layer.n_out / layer.groups);
    let rounded = rows.map(|(i, ((group, given), steps))| group.round(problem, first(i), given, steps));
    let (integers, slopes): (Vec<Vec<i32>>, Vec<Vec<f64>>) = rounded.collect::<Vec<_>>().into_iter().flatten().unzip();
    Ok(RoundedWeight { rows: Rows { integers: integers.concat(), scales }, slopes, groups })
}

/// Learned integers, and the moments that they were learned from.
pub struct RoundedWeight {
    /// The integers and their scales.
    pub rows: Rows,
    /// Half the negative slope of each row's error.
    slopes: Vec<Vec<f64>>,
    groups: Vec<Group>,
}

impl RoundedWeight {
    /// Learns the integers again so that they compensate for errors of the bias. `errors` holds the candidate errors of
    /// each row's bias, at least one. Returns the index of the chosen error for each row.
    pub fn compensate_bias(&mut self, problem: &WeightProblem, errors: &[Vec<f64>]) -> Vec<usize> {
        let (n_in, per_group) = (problem.layer.n_in, problem.layer.n_out / problem.layer.groups);
        let quadratics: Vec<QuadraticError> =
            self.groups.iter().map(|group| QuadraticError::new(&group.h, &group.means)).collect();
        let of_row = |(o, errors): (usize, &Vec<f64>)| {
            let group = o / per_group;
            let steps = problem.steps(&self.rows.scales, o);
            let integers = &self.rows.integers[o * n_in..(o + 1) * n_in];
            let made_up = |(choice, &error): (usize, &f64)| {
                let mut q: Vec<f64> = integers.iter().map(|&q| f64::from(q)).collect();
                let means = self.slopes[o].iter().zip(&self.groups[group].means);
                let mut slope: Vec<f64> = means.map(|(slope, mean)| slope - error * mean).collect();
                let change = quadratics[group].descend(&problem.bounds_of(o), &steps, &mut q, &mut slope);
                (error * error + change, choice, q)
            };
            errors.iter().enumerate().map(made_up).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, choice, q)| (choice, q))
        };
        let rows: Vec<Option<(usize, Vec<f64>)>> = errors.par_iter().enumerate().map(of_row).collect();
        let mut chosen = vec![0; errors.len()];
        for (o, (choice, q)) in rows.into_iter().enumerate().filter_map(|(o, row)| Some((o, row?))) {
            chosen[o] = choice;
            let stored = &mut self.rows.integers[o * n_in..(o + 1) * n_in];
            stored.iter_mut().zip(q).for_each(|(stored, q)| *stored = q as i32);
        }
        chosen
    }
}

/// Moments and targets of one group of channels. Its rows are `[outputs of the group, n_in]`.
struct Group {
    /// `cov(b, b)` with the ridge on its diagonal, `[n_in, n_in]`.
    h: Matrix,
    /// `cov(b, y)`, `[n_in, outputs of the group]`.
    by: Matrix,
    /// Ridge of each input.
    ridge: Vec<f64>,
    /// Mean of each input.
    means: Vec<f64>,
    /// The best real-valued rows.
    targets: Vec<f64>,
    /// `H` times the targets, where they differ from the given weights.
    products: Option<Vec<f64>>,
}

impl Group {
    /// Solves for the best real-valued rows where there are enough positions.
    fn new(moments: Moments, given: &[f64], ridge: f64) -> Result<Group> {
        let Moments { bb: mut h, by, b: means, n, .. } = moments;
        let n_in = means.len();
        let variance = (0..n_in).map(|i| h[(i, i)]).sum::<f64>() / n_in as f64;
        if !variance.is_finite() {
            return Err(anyhow!("the inputs are not finite"));
        }
        let trusted = n >= MIN_POSITIONS_PER_WEIGHT * n_in && variance > 0.0;
        let share = if trusted { ridge } else { 2.0 * ridge };
        let of_input = |k: usize| share * (variance + h[(k, k)]) / 2.0;
        let ridge: Vec<f64> = (0..n_in).map(|k| of_input(k).max(f64::MIN_POSITIVE)).collect();
        (0..n_in).for_each(|k| h[(k, k)] += ridge[k]);
        let solve = || -> Option<(Vec<f64>, Vec<f64>)> {
            let mut right = by.clone();
            for i in 0..right.n_columns() {
                let rows = right.column_mut(i).iter_mut().zip(&ridge).zip(&given[i * n_in..]);
                rows.for_each(|((value, ridge), given)| *value += ridge * given);
            }
            let targets = h.solve_positive_definite(&right)?.into_columns();
            let products = right.into_columns();
            targets.iter().all(|w| w.is_finite()).then_some((targets, products))
        };
        let (targets, products) = if trusted { solve() } else { None }.unzip();
        Ok(Group { h, by, ridge, means, targets: targets.unwrap_or_else(|| given.to_vec()), products })
    }

    fn diagonal(&self) -> impl Iterator<Item = f64> {
        (0..self.means.len()).map(|k| self.h[(k, k)])
    }

    /// Returns the integers of each row and half the negative slope of its error. `first` is the index of the first
    /// row.
    fn round(&self, problem: &WeightProblem, first: usize, given: &[f64], steps: &[f64]) -> Vec<(Vec<i32>, Vec<f64>)> {
        let n_in = self.means.len();
        let nearest = |rows: &[f64]| -> Vec<f64> {
            let rows = rows.par_chunks(n_in).zip(steps.par_chunks(n_in)).enumerate();
            let rows = rows.map(|(i, (row, steps))| problem.bounds_of(first + i).nearest_row(row, |k| steps[k]));
            rows.collect::<Vec<_>>().concat()
        };
        let start = nearest(&self.targets);
        let start_slopes = self.slopes(&start, steps);
        let other = self.products.as_ref().map(|products| {
            let nearest = nearest(given);
            let slopes = self.slopes(&nearest, steps);
            (nearest, slopes, products)
        });
        let quadratic = QuadraticError::new(&self.h, &[]);
        let of_row = |i: usize| {
            let row = i * n_in..(i + 1) * n_in;
            let steps = &steps[row.clone()];
            let (mut q, mut slope) = (start[row.clone()].to_vec(), start_slopes[row.clone()].to_vec());
            quadratic.descend(&problem.bounds_of(first + i), steps, &mut q, &mut slope);
            if let Some((nearest, slopes, products)) = &other {
                let (nearest, nearest_slope, products) = (&nearest[row.clone()], &slopes[row.clone()], &products[row]);
                let error = |q: &[f64], slope: &[f64]| self.error(i, q, slope, steps, products);
                if error(nearest, nearest_slope) < error(&q, &slope) {
                    (q, slope) = (nearest.to_vec(), nearest_slope.to_vec());
                }
            }
            (q.iter().map(|&q| q as i32).collect(), slope)
        };
        (0..steps.len() / n_in).into_par_iter().map(of_row).collect()
    }

    /// Returns `H` times the difference between targets and dequantized integers: half the negative slopes of the
    /// errors.
    fn slopes(&self, q: &[f64], steps: &[f64]) -> Vec<f64> {
        let left = self.targets.iter().zip(q).zip(steps).map(|((target, q), step)| target - q * step);
        times(&self.h, &left.collect::<Vec<_>>())
    }

    /// Returns the mean squared error of output `i` for the integers `q`, up to a constant. `products` is `H` times the
    /// targets of this output.
    fn error(&self, i: usize, q: &[f64], slope: &[f64], steps: &[f64], products: &[f64]) -> f64 {
        let of = |k: usize| {
            let w = q[k] * steps[k];
            w * (products[k] - slope[k] - self.ridge[k] * w - 2.0 * self.by[(k, i)])
        };
        (0..q.len()).map(of).sum()
    }
}

/// Returns `H` times each of the rows, bit-identical for any number of threads.
fn times(h: &Matrix, rows: &[f64]) -> Vec<f64> {
    let n = h.n_rows();
    let mut products = vec![0f64; rows.len()];
    products.par_chunks_mut(n * BLOCK).zip(rows.par_chunks(n * BLOCK)).for_each(|(products, rows)| {
        h.times(rows, products);
    });
    products
}
