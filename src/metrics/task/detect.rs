//! Boxes: how many of the float network's the quantized one finds.

use super::share;
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::cmp::Reverse;

/// Boxes are the same where they overlap by this or more.
const SAME_IOU: f64 = 0.5;
const N_BINS: usize = 10;

/// A box that a detector found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Detection {
    /// Index of its class.
    pub class: usize,
    /// How sure it is, 0 to 1.
    pub score: f64,
    /// Left, top, right, bottom, in any unit.
    pub corners: [f64; 4],
}

/// Intersection over union of two boxes; 0 where both are empty.
pub fn overlap(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let area = |c: &[f64; 4]| (c[2] - c[0]).max(0.0) * (c[3] - c[1]).max(0.0);
    let shared = area(&[a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    let union = area(a) + area(b) - shared;
    if shared > 0.0 && union > 0.0 { shared / union } else { 0.0 }
}

/// Non-maximum suppression: the boxes that no better one of their class overlaps by more than `iou`, best first; all of
/// them where there is no bound. Of boxes with one score the first is better.
pub fn suppressed(mut candidates: Vec<Detection>, iou: Option<f64>) -> Vec<Detection> {
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    let Some(bound) = iou else { return candidates };
    let mut kept: Vec<Detection> = Vec::new();
    for one in candidates {
        let covers = |other: &Detection| other.class == one.class && overlap(&one.corners, &other.corners) > bound;
        if !kept.iter().any(covers) {
            kept.push(one);
        }
    }
    kept
}

/// Counts of boxes.
#[derive(Debug, Clone, Default)]
pub(super) struct DetectionSums {
    n_float: usize,
    n_quantized: usize,
    n_matched: usize,
    iou: f64,
    /// Boxes by score, float and quantized.
    histograms: [[usize; N_BINS]; 2],
}

/// Figures of boxes.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct DetectionFigures {
    /// Twice the matched boxes by the boxes of both networks, 0 to 1; absent where the float network found none.
    pub f1: Option<f64>,
    /// Mean intersection over union of matched boxes, 0 to 1; absent where none is matched.
    pub mean_iou: Option<f64>,
    /// Total variation distance of the histograms of the boxes' scores over ten bins of 0 to 1: half the sum of the
    /// differences of their shares, 0 to 1. Absent where the float network found none, 1 where the quantized one did.
    pub score_distance: Option<f64>,
    /// Boxes of the float network.
    pub n_float: usize,
    /// Boxes of the quantized one.
    pub n_quantized: usize,
    /// Boxes of both that are the same: of one class, overlapping by .5 or more.
    pub n_matched: usize,
}

impl DetectionSums {
    /// Adds an image. The quantized boxes choose in the order of their scores, each the box of its class that it overlaps
    /// most among those that are left.
    pub fn add(&mut self, float: &[Detection], quantized: &[Detection]) {
        self.n_float += float.len();
        self.n_quantized += quantized.len();
        for (histogram, boxes) in self.histograms.iter_mut().zip([float, quantized]) {
            let bin = |score: f64| ((score * N_BINS as f64) as usize).min(N_BINS - 1);
            boxes.iter().for_each(|one| histogram[bin(one.score)] += 1);
        }
        let mut free: Vec<&Detection> = float.iter().collect();
        let mut order: Vec<&Detection> = quantized.iter().collect();
        order.sort_by(|a, b| b.score.total_cmp(&a.score));
        for one in order {
            let same = free.iter().enumerate().filter(|(_, other)| other.class == one.class);
            let ious = same.map(|(i, other)| (overlap(&one.corners, &other.corners), i));
            let best = ious.max_by(|a, b| a.0.total_cmp(&b.0).then(Reverse(a.1).cmp(&Reverse(b.1))));
            if let Some((iou, i)) = best.filter(|(iou, _)| *iou >= SAME_IOU) {
                free.remove(i);
                self.n_matched += 1;
                self.iou += iou;
            }
        }
    }

    pub fn merge(&mut self, other: &DetectionSums) {
        self.n_float += other.n_float;
        self.n_quantized += other.n_quantized;
        self.n_matched += other.n_matched;
        self.iou += other.iou;
        let bins = self.histograms.iter_mut().flatten().zip(other.histograms.iter().flatten());
        bins.for_each(|(all, one)| *all += one);
    }

    pub fn figures(&self) -> DetectionFigures {
        let measured = self.n_float > 0;
        DetectionFigures {
            f1: share(2 * self.n_matched, self.n_float + self.n_quantized).filter(|_| measured),
            mean_iou: (self.n_matched > 0).then(|| self.iou / self.n_matched as f64),
            score_distance: measured.then(|| self.score_distance()),
            n_float: self.n_float,
            n_quantized: self.n_quantized,
            n_matched: self.n_matched,
        }
    }

    fn score_distance(&self) -> f64 {
        if self.n_quantized == 0 {
            return 1.0;
        }
        let [float, quantized] = &self.histograms;
        let share = |n: usize, all: usize| n as f64 / all as f64;
        let differences = float.iter().zip(quantized);
        0.5 * differences.map(|(a, b)| (share(*a, self.n_float) - share(*b, self.n_quantized)).abs()).sum::<f64>()
    }
}
