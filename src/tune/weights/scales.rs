//! Scales of weights with the least error at the layer's output.
//!
//! The error of each weight is weighted by the variance of its input: `sum_k var(x_k) (w_k - s q_k)^2`. That is the
//! error of the output for uncorrelated inputs.

use super::moments::variances;
use super::problem::{LayerData, Rows, WeightProblem};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Candidate scales, in 40ths of the scale that covers the largest weight.
const SHARES: std::ops::RangeInclusive<u32> = 16..=40;

/// Returns the scales with the least error at the layer's output, and the nearest integers. Of the float outputs only
/// the shapes count. `None` where the inputs are not finite or always 0.
pub fn search(problem: &WeightProblem, data: LayerData) -> Option<Rows> {
    let n_in = problem.layer.n_in;
    let mut variances = variances(&problem.layer, data);
    let mean = variances.iter().sum::<f64>() / variances.len() as f64;
    if !mean.is_finite() || mean <= 0.0 {
        return None;
    }
    // An input that is 0 on these samples may be nonzero on others.
    variances.iter_mut().for_each(|variance| *variance += 0.01 * mean);
    let targets: Vec<f64> = problem.w.iter().map(|&w| f64::from(w)).collect();
    let scales = choose(problem, &targets, &variances);
    let nearest = |(o, row): (usize, &[f64])| -> Vec<i32> {
        let scale = |k: usize| f64::from(scales[problem.scale_of(o, k)]);
        problem.bounds_of(o).nearest_row(row, scale).iter().map(|&q| q as i32).collect()
    };
    let integers: Vec<Vec<i32>> = targets.par_chunks(n_in).enumerate().map(nearest).collect();
    Some(Rows { integers: integers.concat(), scales })
}

/// Returns the scales with the least error of nearest rounding of `targets` (`[n_out, n_in]`), weighted by the inputs'
/// variances (`[groups, n_in]`).
pub fn choose(problem: &WeightProblem, targets: &[f64], variances: &[f64]) -> Vec<f32> {
    if !problem.free {
        return problem.scales.clone();
    }
    let WeightProblem { layer, scales, .. } = problem;
    let (n_in, per_group) = (layer.n_in, layer.n_out / layer.groups);
    // The row and columns of the weights that each scale covers.
    let mut parts: Vec<Vec<(usize, Vec<usize>)>> = vec![Vec::new(); scales.len()];
    for o in 0..layer.n_out {
        let mut of_row: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        (0..n_in).for_each(|k| of_row.entry(problem.scale_of(o, k)).or_default().push(k));
        of_row.into_iter().for_each(|(scale, columns)| parts[scale].push((o, columns)));
    }
    // The error of a part; a partial sum once it reaches `limit`.
    let error = |(o, columns): &(usize, Vec<usize>), scale: f64, limit: f64| -> f64 {
        let bounds = problem.bounds_of(*o);
        let row = &targets[o * n_in..(o + 1) * n_in];
        let variance = &variances[o / per_group * n_in..(o / per_group + 1) * n_in];
        let mut sum = 0.0;
        let mut is_below = |k: usize, q: f64| {
            sum += variance[k] * (row[k] - scale * q).powi(2);
            sum < limit
        };
        if bounds.pairs.is_some() && columns.len() == n_in {
            bounds.nearest_in_turn(row, |_| scale, is_below);
        } else {
            columns.iter().all(|&k| is_below(k, bounds.nearest(k, row[k], scale)));
        }
        sum
    };
    let steps = f64::from(*SHARES.end());
    let best = |(parts, &given): (&Vec<(usize, Vec<usize>)>, &f32)| -> f32 {
        // The scale that covers a weight at the upper end; at the lower end for negative weights where zero points
        // differ.
        let needed = |(o, k): (usize, usize)| {
            let w = targets[o * n_in + k];
            let (low, high) = problem.bounds_of(o).ends(k);
            let end = if w < 0.0 && !problem.shifts.is_empty() { low } else { high };
            w.abs() / f64::from(end.abs().max(1))
        };
        let weights = parts.iter().flat_map(|(o, columns)| columns.iter().map(move |&k| (*o, k)));
        let full = weights.map(needed).fold(0f64, f64::max);
        // A scale that was widened on purpose stays, and so does the scale of weights that are all 0.
        if full <= f64::from(f32::MIN_POSITIVE) || f64::from(given) > 1.5 * full {
            return given;
        }
        let tries = SHARES.rev().map(|share| (full * f64::from(share) / steps) as f32);
        let tries = std::iter::once(given).chain(tries).filter(|scale| scale.is_normal());
        let (mut best, mut least) = (given, f64::INFINITY);
        for scale in tries {
            let add =
                |sum: f64, part| Some(sum + error(part, f64::from(scale), least - sum)).filter(|sum| *sum < least);
            if let Some(sum) = parts.iter().try_fold(0.0, add) {
                (best, least) = (scale, sum);
            }
        }
        best
    };
    parts.par_iter().zip(scales.par_iter()).map(best).collect()
}
