//! Metrics of detectors: the boxes of the quantized network against the boxes of the float network.

use super::layout::FloatOutput;
use super::metric::{Figure, FigureScale, FoundCounts, Metric};
use super::task_outputs::{ImageSums, TaskOutputs};
use crate::heads::{Candidates, DetectHead, Detection, OutputView, TaskHead, TaskName, iou};
use anyhow::Result;

/// `2 right / (boxes of float + boxes of quantized)`. A box of the quantized network is right if a box of the float
/// network has the same class and an IoU of 0.5 or more with it. Each float box is taken once, by the quantized boxes
/// in the order of their scores.
pub const F1: Metric = Metric {
    name: "f1",
    title: "F1",
    scale: FigureScale::SHARE,
    about: "share of boxes that match between both networks, with the same class and an IoU of 0.5 or more, 0 to 1",
    task: Some(TaskName::Detect),
    prepare: |outputs, head| Box::new(boxes(outputs, head, f1)),
};

/// Mean IoU of the matched boxes.
pub const BOX_IOU: Metric = Metric {
    name: "box-iou",
    title: "mean IoU of matched boxes",
    scale: FigureScale::SHARE,
    about: "mean IoU of the boxes that are matched in F1",
    task: Some(TaskName::Detect),
    prepare: |outputs, head| Box::new(boxes(outputs, head, box_iou)),
};

/// Overlap of the boxes of both networks, weighted by their scores, for networks in which TopK or non-maximum
/// suppression chooses the rows of the outputs. In such outputs a row of one network does not correspond to the same
/// row of the other, so boxes are matched as in [`F1`]. A pair counts with the smaller of its two weights, and with
/// less if its IoU is below 0.75. This figure changes with every score, whereas [`F1`] changes only when a score passes
/// the threshold.
pub const BOX_OVERLAP: Metric = Metric {
    name: "box-overlap",
    title: "box overlap",
    scale: FigureScale::SHARE,
    about: "share of boxes that match between both networks, weighted by score and IoU, where the network chooses the boxes, 0 to 1",
    task: Some(TaskName::Detect),
    prepare: |outputs, head| {
        let is_selected = outputs.iter().any(|output| output.about.is_selected);
        let outputs = TaskOutputs::new(outputs, head).filter(|_| is_selected);
        Box::new(ImageSums { outputs, n_sums: 3, decode: decode_weighed, add: add_weighed, figure: box_overlap })
    },
};

/// IoU from which on a pair of boxes counts fully in [`BOX_OVERLAP`].
const FULL_IOU: f32 = 0.75;
/// IoU above which a pair of boxes counts in [`BOX_OVERLAP`].
const NO_IOU: f32 = 0.25;
/// Share of the head's threshold at which a box has weight 0.
const ZERO_WEIGHT_SHARE: f32 = 0.25;
/// Least IoU of matched boxes.
const LEAST_IOU: f32 = 0.5;
/// Number of bins in a histogram of scores.
const N_BINS: usize = 10;
/// Number of sums: matched boxes, sum of their IoU, boxes of each network, histogram of the scores of each network.
const N_SUMS: usize = 4 + 2 * N_BINS;

pub(super) type DecodedBoxes = (Candidates, Vec<Detection>);

fn boxes(
    outputs: &[FloatOutput],
    head: Option<&TaskHead>,
    figure: fn(&[f64]) -> Option<Figure>,
) -> ImageSums<DetectHead, DecodedBoxes> {
    ImageSums { outputs: TaskOutputs::new(outputs, head), n_sums: N_SUMS, decode: boxes_of, add, figure }
}

/// Decodes all boxes of a network for an image, and the detections among them.
pub(super) fn boxes_of(outputs: &TaskOutputs<DetectHead>, views: &[OutputView]) -> Result<DecodedBoxes> {
    let candidates = outputs.head.candidates(views, outputs.input)?;
    let detections = outputs.head.detections(&candidates);
    Ok((candidates, detections))
}

fn add(float: DecodedBoxes, quantized: DecodedBoxes, sums: &mut [f64]) {
    for (network, (candidates, detections)) in [&float, &quantized].into_iter().enumerate() {
        let scores = candidates.all.iter().map(|candidate| candidate.score);
        scores.for_each(|score| sums[4 + network * N_BINS + score_bin(score)] += 1.0);
        sums[2 + network] += detections.len() as f64;
    }
    let right = right(&float.1, &quantized.1);
    sums[0] += right.len() as f64;
    sums[1] += right.iter().map(|(.., iou)| f64::from(*iou)).sum::<f64>();
}

/// Decodes the boxes of a network, with weights in place of scores, in descending order of the weights.
fn decode_weighed(outputs: &TaskOutputs<DetectHead>, views: &[OutputView]) -> Result<Vec<Detection>> {
    let least = ZERO_WEIGHT_SHARE * outputs.head.threshold;
    let weighed = |detection: Detection| Detection { score: detection.score - least, ..detection };
    let all = outputs.head.candidates(views, outputs.input)?.all.into_iter().map(weighed);
    let mut boxes: Vec<Detection> = all.filter(|detection| detection.score > 0.0).collect();
    boxes.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(boxes)
}

fn add_weighed(float: Vec<Detection>, quantized: Vec<Detection>, sums: &mut [f64]) {
    for (network, boxes) in [&float, &quantized].into_iter().enumerate() {
        sums[1 + network] += boxes.iter().map(|detection| f64::from(detection.score)).sum::<f64>();
    }
    for (float, quantized, iou) in matched(&float, &quantized, |iou| iou > NO_IOU) {
        let share = ((iou - NO_IOU) / (FULL_IOU - NO_IOU)).min(1.0);
        sums[0] += f64::from(float.score.min(quantized.score) * share);
    }
}

fn box_overlap(sums: &[f64]) -> Option<Figure> {
    let total = sums[1] + sums[2];
    (total > 0.0).then(|| Figure::of(2.0 * sums[0] / total))
}

fn f1(sums: &[f64]) -> Option<Figure> {
    let n = sums[2] + sums[3];
    let found = |network: usize| {
        let scores = &sums[4 + network * N_BINS..][..N_BINS];
        FoundCounts { n_found: sums[2 + network] as usize, scores: scores.iter().map(|&n| n as usize).collect() }
    };
    (n > 0.0).then(|| Figure { found: Some([found(0), found(1)]), ..Figure::of(2.0 * sums[0] / n) })
}

fn box_iou(sums: &[f64]) -> Option<Figure> {
    (sums[0] > 0.0).then(|| Figure::of(sums[1] / sums[0]))
}

/// Returns the bin of the histogram for a score.
fn score_bin(score: f32) -> usize {
    ((score * N_BINS as f32) as usize).min(N_BINS - 1)
}

/// Returns the right boxes as [`F1`] defines them: float, quantized, IoU.
pub(super) fn right<'b>(
    float: &'b [Detection],
    quantized: &'b [Detection],
) -> Vec<(&'b Detection, &'b Detection, f32)> {
    matched(float, quantized, |iou| iou >= LEAST_IOU)
}

/// Pairs the boxes of the quantized network, in order, with the free float box of the same class that has the largest
/// IoU, if `counts` accepts that IoU. Returns float, quantized, IoU. Of equal IoUs the first is taken.
fn matched<'b>(
    float: &'b [Detection],
    quantized: &'b [Detection],
    counts: impl Fn(f32) -> bool,
) -> Vec<(&'b Detection, &'b Detection, f32)> {
    let mut free: Vec<&Detection> = float.iter().collect();
    let mut pairs = Vec::new();
    for detection in quantized {
        let same = (0..free.len()).filter(|&i| free[i].class == detection.class);
        let best = same.map(|i| (i, iou(&free[i].corners, &detection.corners)));
        let best = best.reduce(|a, b| if b.1 > a.1 { b } else { a });
        if let Some((i, iou)) = best.filter(|(_, iou)| counts(*iou)) {
            pairs.push((free.remove(i), detection, iou));
        }
    }
    pairs
}
