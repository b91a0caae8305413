//! Mean average precision as COCO defines it, for boxes of all sizes: pycocotools' `COCOeval` with `bbox`.

use std::collections::BTreeSet;

/// A labeled box.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Truth {
    pub class: usize,
    pub is_crowd: bool,
    pub corners: [f64; 4],
}

/// A box that a network finds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Predicted {
    pub class: usize,
    pub score: f64,
    pub corners: [f64; 4],
}

/// Maximum boxes of a class in an image.
const MAX_BOXES: usize = 100;
/// Number of IoU thresholds of a right box: 0.50, 0.55 … 0.95.
const N_THRESHOLDS: usize = 10;
/// Number of recalls at which the precision is taken: 0, 0.01 … 1.
const N_RECALLS: usize = 101;

/// A box of a network, judged by the labeled boxes of its image.
#[derive(Debug, Clone, Copy)]
struct JudgedBox {
    score: f64,
    is_right: bool,
    /// Whether the box lies in a crowd and counts as neither right nor wrong.
    is_ignored: bool,
}

/// Returns the average precision, mean over the classes of the labeled boxes and over the thresholds; `None` without
/// labeled boxes outside crowds.
pub(super) fn mean_average_precision(truths: &[Vec<Truth>], found: &[Vec<Predicted>]) -> Option<f64> {
    let classes: BTreeSet<usize> =
        truths.iter().flatten().filter(|truth| !truth.is_crowd).map(|truth| truth.class).collect();
    let mut precisions = Vec::new();
    for &class in &classes {
        let images = truths.iter().zip(found).map(|(truths, found)| ClassInImage::new(truths, found, class));
        let images: Vec<ClassInImage> = images.collect();
        let n_true = truths.iter().flatten().filter(|truth| truth.class == class && !truth.is_crowd).count();
        for threshold in 0..N_THRESHOLDS {
            let least = (0.5 + 0.05 * threshold as f64).min(1.0 - 1e-10);
            let judged = images.iter().flat_map(|image| image.judge(least));
            precisions.push(average_precision(judged.collect(), n_true));
        }
    }
    (!precisions.is_empty()).then(|| precisions.iter().sum::<f64>() / precisions.len() as f64)
}

/// The boxes of a class in an image.
struct ClassInImage {
    /// Whether each labeled box is a crowd; crowds come last.
    is_crowd: Vec<bool>,
    /// The boxes of a network in descending order of their scores: the score and the IoU with each labeled box.
    found: Vec<(f64, Vec<f64>)>,
}

impl ClassInImage {
    fn new(truths: &[Truth], found: &[Predicted], class: usize) -> ClassInImage {
        let mut truths: Vec<&Truth> = truths.iter().filter(|truth| truth.class == class).collect();
        truths.sort_by_key(|truth| truth.is_crowd);
        let mut found: Vec<&Predicted> = found.iter().filter(|one| one.class == class).collect();
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found.truncate(MAX_BOXES);
        let with_ious = |one: &Predicted| (one.score, truths.iter().map(|truth| iou(one, truth)).collect());
        ClassInImage {
            is_crowd: truths.iter().map(|truth| truth.is_crowd).collect(),
            found: found.into_iter().map(with_ious).collect(),
        }
    }

    /// Judges the boxes of the network. `least` is the least IoU of a right box.
    fn judge(&self, least: f64) -> Vec<JudgedBox> {
        let mut is_taken = vec![false; self.is_crowd.len()];
        let mut judge = |(score, ious): &(f64, Vec<f64>)| {
            let mut best: Option<usize> = None;
            let mut least = least;
            for (i, (&is_crowd, &iou)) in self.is_crowd.iter().zip(ious).enumerate() {
                if is_taken[i] && !is_crowd {
                    continue;
                }
                // A box that fits one object is not matched with crowds.
                if is_crowd && best.is_some_and(|best| !self.is_crowd[best]) {
                    break;
                }
                if iou >= least {
                    (least, best) = (iou, Some(i));
                }
            }
            if let Some(best) = best {
                is_taken[best] = true;
            }
            let is_ignored = best.is_some_and(|best| self.is_crowd[best]);
            JudgedBox { score: *score, is_right: best.is_some() && !is_ignored, is_ignored }
        };
        self.found.iter().map(&mut judge).collect()
    }
}

/// Returns the IoU; for a crowd, the share of the found box that lies in it.
fn iou(found: &Predicted, truth: &Truth) -> f64 {
    let (a, b) = (&found.corners, &truth.corners);
    let side = |low: usize| (a[low + 2].min(b[low + 2]) - a[low].max(b[low])).max(0.0);
    let area = |c: &[f64; 4]| (c[2] - c[0]) * (c[3] - c[1]);
    let shared = side(0) * side(1);
    let all = if truth.is_crowd { area(a) } else { area(a) + area(b) - shared };
    if all > 0.0 { shared / all } else { 0.0 }
}

/// Returns the mean over the recalls of the best precision at that recall or a higher one.
fn average_precision(mut judged: Vec<JudgedBox>, n_true: usize) -> f64 {
    judged.sort_by(|a, b| b.score.total_cmp(&a.score));
    let (mut n_right, mut n_wrong) = (0.0, 0.0);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for one in judged.iter().filter(|one| !one.is_ignored) {
        if one.is_right {
            n_right += 1.0
        } else {
            n_wrong += 1.0
        };
        points.push((n_right / n_true as f64, n_right / (n_right + n_wrong)));
    }
    let mut best: f64 = 0.0;
    for point in points.iter_mut().rev() {
        best = best.max(point.1);
        point.1 = best;
    }
    let at = |recall: usize| {
        let first = points.partition_point(|(reached, _)| *reached < recall as f64 / (N_RECALLS - 1) as f64);
        points.get(first).map_or(0.0, |(_, precision)| *precision)
    };
    (0..N_RECALLS).map(at).sum::<f64>() / N_RECALLS as f64
}
