//! Networks with scores of detections: with the right pixel values, scores differ more from image to image. The result
//! is a hint only: of three networks that were not used to choose the limits, one gave a false hint.
//!
//! The figure is 0.15 · ln(I / H). I is the mutual information of scores and images, the sum over scores p of H(mean p)
//! − mean H(p). H is the entropy of the scores, the sum of H(mean p). Scores are the columns of outputs whose values
//! are in 0 to 1 with all candidates.

use super::{PixelTrials, bootstraps, entropy, is_clearly_higher};
use crate::data::{Array, PixelValues, Values};
use crate::diag::count;
use crate::engine::Session;
use anyhow::Result;

/// Approximate maximum number of values that are taken of an output.
const MAX_VALUES: usize = 1 << 13;
const WEIGHT: f64 = 0.15;
const TINY: f64 = 1e-12;

/// A part of the output values of one image, by output and column.
type Columns = Vec<Vec<Vec<f32>>>;

/// Returns a sentence that names the pixel values with which scores differ clearly more; `None` if there are none.
pub fn search(trials: &PixelTrials) -> Result<Option<String>> {
    let all = trials.spread(trials.images.len());
    let tried: Vec<PixelValues> = std::iter::once(trials.given.clone()).chain(trials.usual()).collect();
    let of_values = |values: &PixelValues| trials.run_images(&all, values, |image| Ok(image.brighter(1.0)), columns);
    let of_tried: Vec<Vec<Columns>> = tried.iter().map(of_values).collect::<Result<_>>()?;
    let scores: Vec<Vec<Vec<f32>>> = scores(&of_tried);
    if scores[0].iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let sets = bootstraps(&all);
    let shares = |of_images: &Vec<Vec<f32>>| -> Vec<f64> {
        let sum = |scores: &Vec<f32>| scores.iter().map(|score| binary_entropy(f64::from(*score))).sum();
        let entropies: Vec<f64> = of_images.iter().map(sum).collect();
        sets.iter().map(|set| share(of_images, &entropies, set)).collect()
    };
    let shares: Vec<Vec<f64>> = scores.iter().map(shares).collect();
    let of_shares = |shares: &Vec<f64>| shares.iter().map(|share| WEIGHT * share.max(TINY).ln()).collect();
    let figures: Vec<Vec<f64>> = shares.iter().map(of_shares).collect();
    let better = (1..tried.len()).filter(|&i| is_clearly_higher(&figures[i], &figures[0]));
    let Some(best) = better.max_by(|&a, &b| figures[a][0].total_cmp(&figures[b][0])) else { return Ok(None) };
    let percent = |i: usize| 100.0 * shares[i][0];
    Ok(Some(format!(
        "perhaps {}: with it, images explain {:.1} % of the entropy of the scores instead of {:.1} %, on {}",
        tried[best].to_options(),
        percent(best),
        percent(0),
        count(all.len(), "image"),
    )))
}

/// Runs an image and returns some values of every column of the float outputs.
fn columns(session: &mut Session, array: Array) -> Result<Columns> {
    let arrays = session.run(&[array], &mut |_, _, _| Ok(()))?;
    let of_output = |array: Array| {
        let Values::F32(values) = array.values else { return Vec::new() };
        let (n_columns, inner) = match array.shape[..] {
            [_, rows, columns] if columns <= rows => (columns, 1),
            [_, columns, ref inner @ ..] if !inner.is_empty() => (columns, inner.iter().product()),
            _ => (1, 1),
        };
        let mut of_columns = vec![Vec::new(); n_columns];
        let step = (values.len() / n_columns.max(1)).div_ceil((MAX_VALUES / n_columns.max(1)).max(1)).max(1);
        for (column, of_column) in of_columns.iter_mut().enumerate() {
            let runs = values.chunks(inner.max(1)).skip(column).step_by(n_columns);
            of_column.extend(runs.flatten().step_by(step));
        }
        of_columns
    };
    Ok(arrays.into_iter().map(of_output).collect())
}

/// Returns, by candidate and image, the values of the columns that are in 0 to 1 for all candidates and images.
fn scores(of_tried: &[Vec<Columns>]) -> Vec<Vec<Vec<f32>>> {
    let all = || of_tried.iter().flatten();
    let is_score = |output: usize, column: usize| {
        let of_column = |image: &Columns| {
            image
                .get(output)
                .and_then(|output| output.get(column))
                .is_some_and(|values| !values.is_empty() && values.iter().all(|value| (0.0..=1.0).contains(value)))
        };
        all().all(of_column)
    };
    let n_outputs = all().next().map_or(0, Vec::len);
    let n_columns = |output: usize| all().next().map_or(0, |image| image[output].len());
    let listed = (0..n_outputs).flat_map(|output| (0..n_columns(output)).map(move |column| (output, column)));
    let listed: Vec<(usize, usize)> = listed.filter(|&(output, column)| is_score(output, column)).collect();
    let of_image = |image: &Columns| {
        let values = listed.iter().flat_map(|&(output, column)| &image[output][column]);
        values.copied().collect()
    };
    of_tried.iter().map(|images| images.iter().map(of_image).collect()).collect()
}

/// Returns the share of the entropy of the scores that the images of `set` explain, 0 to 1. `entropies` has, by image,
/// the summed entropy of the image's scores.
fn share(of_images: &[Vec<f32>], entropies: &[f64], set: &[usize]) -> f64 {
    let n = set.len() as f64;
    let mut sums = vec![0.0; of_images[0].len()];
    for &image in set {
        sums.iter_mut().zip(&of_images[image]).for_each(|(sum, score)| *sum += f64::from(*score));
    }
    let of_means: f64 = sums.into_iter().map(|sum| binary_entropy(sum / n)).sum();
    let explained = of_means - set.iter().map(|&image| entropies[image]).sum::<f64>() / n;
    if of_means > 0.0 { explained / of_means } else { 0.0 }
}

/// Returns the entropy of a binary event with probability `p`, in nats.
fn binary_entropy(p: f64) -> f64 {
    entropy(&[p, 1.0 - p])
}
