//! Networks with class scores: with the right pixel values, classes differ from image to image, and the class of an
//! image stays when the image is changed a little.
//!
//! The figure is H(mean p) − mean H(p) − 3 · mean JS(p, p'), in nats. p are the class probabilities of an image; p' are
//! those of the mirrored and cropped image, and of a brighter image. The first two terms are the mutual information, an
//! upper bound of the figure. A candidate whose mutual information is too low is therefore not run on changed images. A
//! candidate that is too low on a few images is not run on more images.
//!
//! Against a candidate with more confident probabilities, the given pixel values get the figure of the power
//! `p^k / sum(p^k)` that fits best and is not more confident. Without normalization in the network, larger pixels make
//! larger logits, which raise the figure as the power does, and show nothing.

use super::{BetterScores, MARGIN, PixelTrials, bootstraps, entropy, is_clearly_higher};
use crate::data::{Array, FittedImage, PixelValues, Values};
use crate::engine::Session;
use crate::metrics::{EvaluatedOutput, FloatOutput, n_classes};
use anyhow::Result;
use std::borrow::Cow;

/// Numbers of images of the rounds before the round of all images.
const N_FIRST: [usize; 2] = [4, N_FEW];
/// Number of images whose values tell whether an output is class scores.
const N_FEW: usize = 8;
/// Factor of the pixels of a brighter image.
const BRIGHTER: f32 = 1.05;
/// Difference of figures, in nats, below which two candidates fit equally well.
const ALIKE: f64 = 0.005;
/// Largest absolute value, as a median over the images, up to which outputs can be logits of a trained network. An
/// embedding looks like logits if its pixels are a hundred times too large.
const HUGE: f32 = 60.0;
/// Weight of the divergence JS(p, p').
const CONSISTENCY: f64 = 3.0;
/// Powers of the probabilities with the given pixel values; see [`Scores::as_confident_as`].
const POWERS: [f64; 3] = [2.0, 4.0, 16.0];

/// Returns the pixel values that fit clearly better, or `Some(None)` if there are none; `None` if the network has no
/// class scores.
pub fn search(trials: &PixelTrials, outputs: &[EvaluatedOutput]) -> Result<Option<Option<BetterScores>>> {
    let all = trials.spread(trials.images.len());
    // One image shows whether an output has the shape of class scores.
    if Scores::new(trials, &trials.spread(1), &trials.given, outputs)?.is_none() {
        return Ok(None);
    }
    let Some(mut given) = Scores::new(trials, &all, &trials.given, outputs)? else { return Ok(None) };
    let usual = trials.usual();
    let others: Vec<Scores> = if given.are_class_scores {
        let others = usual.map(|values| Scores::of_no_image(trials, values)).collect();
        let others = remaining_candidates(trials, &mut given, others, outputs)?;
        if others.is_empty() {
            return Ok(Some(None));
        }
        others
    } else {
        let of_usual = |images: &[usize]| -> Result<Vec<Scores>> {
            usual.clone().filter_map(|values| Scores::new(trials, images, &values, outputs).transpose()).collect()
        };
        if !of_usual(&trials.spread(N_FEW))?.iter().any(|scores| scores.are_class_scores) {
            return Ok(None);
        }
        let others = of_usual(&all)?;
        given.add_changed(trials, &all, outputs)?;
        others
    };
    let sets = bootstraps(&all);
    let of_given = |scores: &Scores| given.as_confident_as(scores, &all).figures(&sets);
    let mut limits: Vec<(Vec<f64>, Vec<f64>, Scores)> =
        others.into_iter().map(|scores| (scores.figures(&sets), of_given(&scores), scores)).collect();
    limits.retain(|(limit, of_given, _)| is_clearly_higher(limit, of_given));
    limits.sort_by(|(a, ..), (b, ..)| b[0].total_cmp(&a[0]));
    let (mut better, mut highest): (Vec<BetterScores>, _) = (Vec::new(), f64::NEG_INFINITY);
    for (limit, of_given, mut scores) in limits {
        if limit[0] < highest - ALIKE {
            break;
        }
        scores.add_changed(trials, &all, outputs)?;
        let figures = scores.figures(&sets);
        if is_clearly_higher(&figures, &of_given) {
            highest = figures[0].max(highest);
            better.push(BetterScores { values: scores.values, figures: [of_given[0], figures[0]] });
        }
    }
    // The given order of the color channels is preferred if both fit equally well: the images may be gray.
    better.retain(|better| better.figures[1] >= highest - ALIKE);
    better.sort_by_key(|better| (better.values.color != trials.given.color, (-1e6 * better.figures[1]) as i64));
    Ok(Some(better.into_iter().next()))
}

/// Runs `given` and the candidates in rounds of more and more images, and drops candidates that are worse than `given`
/// by the margin. Returns the remaining candidates, which were run on all images.
fn remaining_candidates(
    trials: &PixelTrials,
    given: &mut Scores,
    mut others: Vec<Scores>,
    outputs: &[EvaluatedOutput],
) -> Result<Vec<Scores>> {
    let mut seen: Vec<usize> = Vec::new();
    for n in N_FIRST.into_iter().chain([trials.images.len()]) {
        let images: Vec<usize> = trials.spread(n).into_iter().filter(|image| !seen.contains(image)).collect();
        given.add_changed(trials, &images, outputs)?;
        seen.extend(&images);
        let mut left = Vec::new();
        for mut scores in others {
            let fits =
                |scores: &Scores| scores.figure(&seen) >= given.as_confident_as(scores, &seen).figure(&seen) - MARGIN;
            if scores.add(trials, &images, outputs)? && fits(&scores) {
                left.push(scores);
            }
        }
        if left.is_empty() {
            return Ok(left);
        }
        others = left;
    }
    Ok(others)
}

/// Returns whether the largest absolute value is above [`HUGE`] in more than half of the rows.
fn are_huge<'r>(rows: impl Iterator<Item = &'r [f32]>) -> bool {
    let of_rows: Vec<f32> = rows.map(|row| row.iter().fold(0.0, |largest, x| x.abs().max(largest))).collect();
    2 * of_rows.iter().filter(|largest| **largest > HUGE).count() > of_rows.len()
}

/// The class probabilities of each image with some pixel values.
#[derive(Clone)]
struct Scores {
    values: PixelValues,
    /// Probabilities by image; empty for an image that was not run.
    of_images: Vec<Vec<f64>>,
    /// Probabilities of the mirrored and cropped images, and of the brighter ones; empty for an image that was not run.
    changed: [Vec<Vec<f64>>; 2],
    /// Whether the output's values are class scores.
    are_class_scores: bool,
}

impl Scores {
    /// Returns the scores of the images at `indices`; `None` if no output has the shape of class scores.
    fn new(
        trials: &PixelTrials,
        indices: &[usize],
        values: &PixelValues,
        outputs: &[EvaluatedOutput],
    ) -> Result<Option<Scores>> {
        let mut scores = Scores::of_no_image(trials, values.clone());
        Ok(scores.add(trials, indices, outputs)?.then_some(scores))
    }

    fn of_no_image(trials: &PixelTrials, values: PixelValues) -> Scores {
        let of_images = vec![Vec::new(); trials.images.len()];
        let changed = [of_images.clone(), of_images.clone()];
        Scores { values, of_images, changed, are_class_scores: false }
    }

    /// Runs the images at `indices` and decides by their values whether the output is class scores. Returns false if no
    /// output has the shape of class scores.
    fn add(&mut self, trials: &PixelTrials, indices: &[usize], outputs: &[EvaluatedOutput]) -> Result<bool> {
        let same = |image: &FittedImage| Ok(image.brighter(1.0));
        let rows = trials.run_images(indices, &self.values, same, |session, array| run(session, array, outputs))?;
        let Some(rows) = rows.into_iter().collect::<Option<Vec<ScoreRow>>>() else { return Ok(false) };
        let Some(first) = rows.first() else { return Ok(true) };
        let output = FloatOutput {
            about: &outputs[first.output_idx],
            batch: 1,
            shape: &first.shape,
            samples: rows.iter().map(|row| &row.scores[..]).collect(),
            shapes: Vec::new(),
        };
        self.are_class_scores = output.n_classes().is_some() && !are_huge(rows.iter().map(|row| &row.scores[..]));
        for (&index, row) in indices.iter().zip(&rows) {
            self.of_images[index] = probabilities(&row.scores);
        }
        Ok(true)
    }

    /// Runs the changed versions of the images at `indices`.
    fn add_changed(&mut self, trials: &PixelTrials, indices: &[usize], outputs: &[EvaluatedOutput]) -> Result<()> {
        let changes: [fn(&FittedImage) -> Result<FittedImage>; 2] =
            [FittedImage::mirrored_and_cropped, |image| Ok(image.brighter(BRIGHTER))];
        for (changed, change) in self.changed.iter_mut().zip(changes) {
            let rows =
                trials.run_images(indices, &self.values, change, |session, array| run(session, array, outputs))?;
            for (&index, row) in indices.iter().zip(rows.into_iter().flatten()) {
                changed[index] = probabilities(&row.scores);
            }
        }
        Ok(())
    }

    /// Returns the scores with all probabilities raised to the power that has the largest figure over the images at
    /// `indices`, among those with at least the mean entropy of `other`.
    fn as_confident_as<'s>(&'s self, other: &Scores, indices: &[usize]) -> Cow<'s, Scores> {
        let least = other.mean_entropy(indices);
        let mut best = (self.figure(indices), Cow::Borrowed(self));
        if least >= self.mean_entropy(indices) {
            return best.1;
        }
        for power in POWERS {
            let raised = self.raised(power);
            if raised.mean_entropy(indices) < least {
                break;
            }
            let figure = raised.figure(indices);
            if figure > best.0 {
                best = (figure, Cow::Owned(raised));
            }
        }
        best.1
    }

    fn raised(&self, power: f64) -> Scores {
        let rows = |rows: &Vec<Vec<f64>>| rows.iter().map(|row| raised(row, power)).collect();
        let (of_images, changed) = (rows(&self.of_images), [rows(&self.changed[0]), rows(&self.changed[1])]);
        Scores { values: self.values.clone(), of_images, changed, are_class_scores: self.are_class_scores }
    }

    /// Returns the mean entropy of the probabilities of the images at `indices`, in nats.
    fn mean_entropy(&self, indices: &[usize]) -> f64 {
        indices.iter().map(|&i| entropy(&self.of_images[i])).sum::<f64>() / indices.len().max(1) as f64
    }

    /// Returns the figure over the images at `indices`.
    fn figure(&self, indices: &[usize]) -> f64 {
        self.figures(&[indices.to_vec()])[0]
    }

    /// Returns the figure over each set of images; only the mutual information if the changed images were not run.
    fn figures(&self, sets: &[Vec<usize>]) -> Vec<f64> {
        let entropies: Vec<f64> = self.of_images.iter().map(|p| entropy(p)).collect();
        let difference = |i: usize| {
            let of_change = |changed: &Vec<Vec<f64>>| {
                Some(&changed[i]).filter(|q| !q.is_empty()).map_or(0.0, |q| {
                    entropy(&mean([&self.of_images[i], q].into_iter())) - (entropies[i] + entropy(q)) / 2.0
                })
            };
            self.changed.iter().map(of_change).sum::<f64>() / self.changed.len() as f64
        };
        let differences: Vec<f64> = (0..entropies.len()).map(difference).collect();
        let figure = |set: &Vec<usize>| {
            let of_mean = entropy(&mean(set.iter().map(|&i| &self.of_images[i])));
            let costs = set.iter().map(|&i| entropies[i] + CONSISTENCY * differences[i]);
            of_mean - costs.sum::<f64>() / set.len() as f64
        };
        sets.iter().map(figure).collect()
    }
}

/// An output that has the shape of class scores.
struct ScoreRow {
    output_idx: usize,
    shape: Vec<usize>,
    scores: Vec<f32>,
}

fn run(session: &mut Session, array: Array, outputs: &[EvaluatedOutput]) -> Result<Option<ScoreRow>> {
    let arrays = session.run(&[array], &mut |_, _, _| Ok(()))?;
    let is_row = |(output, array): (&EvaluatedOutput, &Array)| output.is_float && n_classes(&array.shape, 1).is_some();
    let output_idx = outputs.iter().zip(&arrays).position(is_row);
    let row = output_idx.and_then(|output_idx| {
        let array = arrays.into_iter().nth(output_idx)?;
        let Values::F32(scores) = array.values else { return None };
        Some(ScoreRow { output_idx, shape: array.shape, scores })
    });
    Ok(row)
}

/// Returns the scores as probabilities: unchanged if they are not negative and sum to 1, else their Softmax.
fn probabilities(scores: &[f32]) -> Vec<f64> {
    let scores: Vec<f64> = scores.iter().copied().map(f64::from).collect();
    if scores.iter().all(|&p| p >= 0.0) && (scores.iter().sum::<f64>() - 1.0).abs() < 1e-2 {
        return scores;
    }
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Returns the probabilities raised to a power, with a sum of 1.
fn raised(probabilities: &[f64], power: f64) -> Vec<f64> {
    let largest = probabilities.iter().copied().fold(0.0, f64::max);
    let powers: Vec<f64> = probabilities.iter().map(|p| (p / largest).powf(power)).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

fn mean<'p>(rows: impl Iterator<Item = &'p Vec<f64>>) -> Vec<f64> {
    let (mut sums, mut n) = (Vec::new(), 0.0);
    for row in rows {
        sums.resize(row.len(), 0.0);
        sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += p);
        n += 1.0;
    }
    sums.iter().map(|sum| sum / n).collect()
}
