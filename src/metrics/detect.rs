//! Metrics of detectors: the float network's boxes against the quantized network's.

use super::layout::FloatOutput;
use super::metric::{Better, Figure, FoundCounts, Metric};
use super::task_outputs::{ImageSums, TaskOutputs};
use crate::heads::{Candidates, DetectHead, Detection, OutputView, TaskHead, TaskName, iou};
use anyhow::Result;

/// `2 right / (boxes of float + boxes of quantized)`. A box is right if one of the float network's has the same class and an
/// IoU of 0.5 or more with it; each is taken once, by the quantized network's boxes in the order of their scores.
pub const F1: Metric = Metric {
    name: "f1",
    title: "F1",
    unit: "",
    decimals: 3,
    better: Better::Higher,
    best: 1.0,
    about: "boxes of both networks with the same class and an IoU of 0.5 or more, 0 to 1",
    task: Some(TaskName::Detect),
    prepare: |outputs, head| Box::new(boxes(outputs, head, f1)),
};

/// Mean IoU of matched boxes.
pub const BOX_IOU: Metric = Metric {
    name: "box-iou",
    title: "mean IoU of matched boxes",
    unit: "",
    decimals: 3,
    better: Better::Higher,
    best: 1.0,
    about: "mean IoU of the boxes that are matched in F1",
    task: Some(TaskName::Detect),
    prepare: |outputs, head| Box::new(boxes(outputs, head, box_iou)),
};

/// Lowest IoU of matched boxes.
const LEAST_IOU: f32 = 0.5;
/// Number of bins of a histogram of scores.
const N_PARTS: usize = 10;
/// Sums: matched boxes, their IoU, boxes of both networks, histograms of the scores of both.
const N_SUMS: usize = 4 + 2 * N_PARTS;

type DecodedBoxes = (Candidates, Vec<Detection>);

fn boxes(
    outputs: &[FloatOutput],
    head: Option<&TaskHead>,
    figure: fn(&[f64]) -> Option<Figure>,
) -> ImageSums<DetectHead, DecodedBoxes> {
    ImageSums { outputs: TaskOutputs::new(outputs, head), n_sums: N_SUMS, decode, add, figure }
}

fn decode(outputs: &TaskOutputs<DetectHead>, views: &[OutputView]) -> Result<DecodedBoxes> {
    let candidates = outputs.head.candidates(views, outputs.input)?;
    let detections = outputs.head.detections(&candidates);
    Ok((candidates, detections))
}

fn add(float: DecodedBoxes, quantized: DecodedBoxes, sums: &mut [f64]) {
    for (network, (candidates, detections)) in [&float, &quantized].into_iter().enumerate() {
        let scores = candidates.all.iter().map(|candidate| candidate.score);
        scores.for_each(|score| sums[4 + network * N_PARTS + part(score)] += 1.0);
        sums[2 + network] += detections.len() as f64;
    }
    let ious = right(&float.1, &quantized.1);
    sums[0] += ious.len() as f64;
    sums[1] += ious.iter().map(|&iou| f64::from(iou)).sum::<f64>();
}

fn f1(sums: &[f64]) -> Option<Figure> {
    let n = sums[2] + sums[3];
    let found = |network: usize| {
        let scores = &sums[4 + network * N_PARTS..][..N_PARTS];
        FoundCounts { n: sums[2 + network] as usize, scores: scores.iter().map(|&n| n as usize).collect() }
    };
    (n > 0.0).then(|| Figure { found: Some([found(0), found(1)]), ..Figure::of(2.0 * sums[0] / n) })
}

fn box_iou(sums: &[f64]) -> Option<Figure> {
    (sums[0] > 0.0).then(|| Figure::of(sums[1] / sums[0]))
}

/// The part of the histogram that a score belongs to.
fn part(score: f32) -> usize {
    ((score * N_PARTS as f32) as usize).min(N_PARTS - 1)
}

/// The IoU of each right box, the best scores first.
fn right(float: &[Detection], quantized: &[Detection]) -> Vec<f32> {
    let mut free: Vec<&Detection> = float.iter().collect();
    let mut ious = Vec::new();
    for detection in quantized {
        let same = (0..free.len()).filter(|&i| free[i].class == detection.class);
        let best = same.map(|i| (i, iou(&free[i].corners, &detection.corners)));
        // The first of equal ones.
        let best = best.reduce(|a, b| if b.1 > a.1 { b } else { a });
        if let Some((i, iou)) = best.filter(|(_, iou)| *iou >= LEAST_IOU) {
            free.remove(i);
            ious.push(iou);
        }
    }
    ious
}
