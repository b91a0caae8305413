//! Networks with batch normalizations: with the right scale of the pixels, the inputs of the normalizations have the
//! means and variances of the training. They do not tell the order of the color channels.
//!
//! The figure is −3 · mean over the normalizations of ln(1 + mean over channels of min(KL, 100)). KL is the divergence
//! of the observed normal distribution from the trained one, (r + z² − 1 − ln r) / 2; r is the ratio of the observed
//! variance to the trained one, and z the deviation of the mean in trained standard deviations.

use super::{MARGIN, PixelTrials, bootstraps, candidates, is_clearly_higher};
use crate::data::{Array, PixelValues};
use crate::diag::{count, quoted};
use crate::engine::Session;
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::GraphProto;
use anyhow::Result;
use std::collections::BTreeMap;

/// Minimum number of normalizations; fewer tell too little.
pub const MIN_NORMS: usize = 5;
/// Number of images that candidates are run on first. A candidate that is worse there by the margin is dropped.
const N_FIRST: usize = 8;
/// Maximum divergence that counts for a channel.
const MAX_DIVERGENCE: f64 = 100.0;
const WEIGHT: f64 = 3.0;
const TINY: f64 = 1e-12;

/// A BatchNormalization node with its trained statistics.
pub struct Norm {
    /// The node's input.
    pub tensor: String,
    mean: Vec<f32>,
    variance: Vec<f32>,
}

/// Mean and mean square, by image, normalization and channel.
type NormMoments = BTreeMap<usize, Vec<Vec<[f64; 2]>>>;

/// Returns the normalizations of a graph whose trained statistics are constants.
pub fn of(graph: &GraphProto) -> Vec<Norm> {
    let index = GraphIndex::new(graph);
    let nodes = graph.node.iter().filter(|node| node.op_type() == "BatchNormalization");
    let norm = nodes.filter_map(|node| {
        let [x, _, _, mean, variance] = node.input.as_slice() else { return None };
        Some(Norm { tensor: x.clone(), mean: index.floats(mean)?, variance: index.floats(variance)? })
    });
    norm.collect()
}

/// Returns the options of another scale that fits clearly better, and a sentence about it; `None` if there is none.
pub fn search(trials: &PixelTrials, norms: &[Norm]) -> Result<Option<(String, String)>> {
    let [all, first] = [trials.images.len(), N_FIRST].map(|n| trials.spread(n.min(trials.images.len())));
    let given = moments(trials, norms, &first, &trials.given)?;
    let limit = figure(norms, &given, &first) - MARGIN;
    let mut left: Vec<(PixelValues, NormMoments)> = Vec::new();
    for values in candidates(trials.given.color).into_iter().filter(|values| !values.has_same_scale(&trials.given)) {
        let of_values = moments(trials, norms, &first, &values)?;
        if figure(norms, &of_values, &first) >= limit {
            left.push((values, of_values));
        }
    }
    if left.is_empty() {
        return Ok(None);
    }
    let others: Vec<usize> = all.iter().copied().filter(|image| !first.contains(image)).collect();
    let sets = bootstraps(&all);
    let figures = |values: &PixelValues, mut of_images: NormMoments| -> Result<Vec<f64>> {
        of_images.extend(moments(trials, norms, &others, values)?);
        Ok(sets.iter().map(|set| figure(norms, &of_images, set)).collect())
    };
    let of_given = figures(&trials.given, given)?;
    let mut better: Vec<(Vec<f64>, PixelValues)> = Vec::new();
    for (values, of_images) in left {
        let of_values = figures(&values, of_images)?;
        if is_clearly_higher(&of_values, &of_given) {
            better.push((of_values, values));
        }
    }
    better.sort_by(|(a, _), (b, _)| b[0].total_cmp(&a[0]));
    let Some((best, _)) = better.first() else { return Ok(None) };
    // All scales that are not clearly worse than the best one are named.
    let alike = better.iter().filter(|(figures, _)| !is_clearly_higher(best, figures));
    let spelled = alike.map(|(_, values)| match values.presets()[..] {
        [] => values.to_options(),
        ref names => format!("{} (as in {})", values.to_options(), quoted(names, ", ")),
    });
    let spelled = spelled.collect::<Vec<String>>().join(" or ");
    let sentence = format!(
        "another scale of the pixels fits the network clearly better: {spelled}; the inputs of its {} deviate by {:.2} from \
         their trained means and variances, not by {:.2}, on {}",
        count(norms.len(), "BatchNormalization node"),
        -best[0],
        -of_given[0],
        count(trials.images.len(), "image"),
    );
    Ok(Some((spelled, sentence)))
}

/// Returns the moments of the images at `indices` with the pixel values `values`.
fn moments(trials: &PixelTrials, norms: &[Norm], indices: &[usize], values: &PixelValues) -> Result<NormMoments> {
    let run = |session: &mut Session, array: Array| {
        let mut moments = vec![Vec::new(); norms.len()];
        session.run(&[array], &mut |norm_idx, shape, values| {
            moments[norm_idx] = moments_of(shape, values);
            Ok(())
        })?;
        Ok(moments)
    };
    let of_images = trials.run_images(indices, values, |image| Ok(image.brighter(1.0)), run)?;
    Ok(indices.iter().copied().zip(of_images).collect())
}

fn moments_of(shape: &[usize], values: &[f32]) -> Vec<[f64; 2]> {
    let n_channels = shape.get(1).copied().unwrap_or(0);
    let plane: usize = shape.iter().skip(2).product();
    let mut sums = vec![[0.0; 2]; n_channels];
    if n_channels == 0 || plane == 0 {
        return sums;
    }
    for (i, values) in values.chunks_exact(plane).enumerate() {
        let [sum, squares] = &mut sums[i % n_channels];
        for &value in values {
            let value = f64::from(value);
            *sum += value;
            *squares += value * value;
        }
    }
    let n = (values.len() / n_channels) as f64;
    sums.into_iter().map(|sums| sums.map(|sum| sum / n)).collect()
}

fn figure(norms: &[Norm], of_images: &NormMoments, set: &[usize]) -> f64 {
    let n = set.len() as f64;
    let of_norm = |(norm_idx, norm): (usize, &Norm)| {
        let n_channels = norm.mean.len();
        let divergence = |channel: usize| {
            let of_set = |moment: usize| {
                set.iter().filter_map(|i| of_images[i][norm_idx].get(channel)).map(|sums| sums[moment]).sum::<f64>() / n
            };
            let (mean, variance) = (of_set(0), (of_set(1) - of_set(0) * of_set(0)).max(0.0));
            let trained = f64::from(norm.variance[channel]).max(TINY);
            let ratio = (variance / trained).max(TINY);
            let z = (mean - f64::from(norm.mean[channel])) / trained.sqrt();
            ((ratio + z * z - 1.0 - ratio.ln()) / 2.0).min(MAX_DIVERGENCE)
        };
        (1.0 + (0..n_channels).map(divergence).sum::<f64>() / n_channels as f64).ln()
    };
    -WEIGHT * norms.iter().enumerate().map(of_norm).sum::<f64>() / norms.len() as f64
}
