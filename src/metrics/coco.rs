//! The metric of detectors with labels: COCO's mean average precision.

use super::coco_precision::{Predicted, Truth, mean_average_precision};
use super::metric::{Figure, FigureScale, Measure, Metric, SamplePair};
use super::task_outputs::TaskOutputs;
use crate::heads::{DetectHead, Detection, OutputView, TaskName};

/// COCO's mAP at an IoU of 0.50 to 0.95, of both networks. It needs boxes as labels. The sums hold every box, and grow
/// with the number of samples.
pub const COCO_MAP: Metric = Metric {
    name: "coco-map",
    title: "mAP",
    scale: FigureScale { decimals: 4, ..FigureScale::SHARE },
    about: "COCO's mean average precision at an IoU of 0.50 to 0.95, with boxes as labels",
    task: Some(TaskName::Detect),
    prepare: |outputs, head| Box::new(BoxPrecision(TaskOutputs::new(outputs, head))),
};

#[derive(Debug)]
struct BoxPrecision(Option<TaskOutputs<DetectHead>>);

/// Length of an image's header in the sums: the numbers of boxes in the truth, of float, and of quantized. The boxes
/// follow.
const N_HEADER: usize = 3;
/// Numbers per box in the sums: class, then crowd flag or score, then corners.
const N_BOX: usize = 6;

impl Measure for BoxPrecision {
    fn sums(&self, sample: &SamplePair) -> Vec<f64> {
        let (Some(outputs), Some(truths)) = (&self.0, sample.truths) else { return Vec::new() };
        let mut sums = Vec::new();
        for (images, truth) in outputs.images(sample).iter().zip(truths) {
            let decoded = |views: &Vec<OutputView>| {
                let candidates = outputs.head.candidates(views, outputs.input).ok()?;
                Some(outputs.head.detections(&candidates))
            };
            let [Some(float), Some(quantized)] = images.each_ref().map(decoded) else {
                return vec![f64::NAN; N_HEADER];
            };
            sums.extend([truth.boxes.len(), float.len(), quantized.len()].map(|n| n as f64));
            for one in &truth.boxes {
                sums.extend([one.class as f64, f64::from(u8::from(one.is_crowd))]);
                sums.extend(one.corners);
            }
            let sides =
                outputs.input.filter(|_| outputs.head.normalized).map_or([1.0; 2], |[h, w]| [w as f64, h as f64]);
            let detection = |one: &Detection| -> [f64; N_BOX] {
                let corners = std::array::from_fn(|i| f64::from(one.corners[i]) * sides[i % 2]);
                let [left, top, right, bottom] = truth.fit.to_image(corners);
                [one.class as f64, f64::from(one.score), left, top, right, bottom]
            };
            sums.extend(float.iter().chain(&quantized).flat_map(detection));
        }
        sums
    }

    fn merge(&self, total: &mut Vec<f64>, sample: &[f64]) {
        total.extend(sample);
    }

    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>> {
        vec![figure(sums)]
    }
}

fn figure(mut sums: &[f64]) -> Option<Figure> {
    let mut truths: Vec<Vec<Truth>> = Vec::new();
    let mut found: [Vec<Vec<Predicted>>; 2] = Default::default();
    while let Some((header, rest)) = sums.split_at_checked(N_HEADER) {
        if header.iter().any(|n| n.is_nan()) {
            // An image could not be decoded.
            return None;
        }
        let [n_true, n_float, n_quantized] = [0, 1, 2].map(|i| header[i] as usize);
        let (boxes, rest) = rest.split_at_checked(N_BOX * (n_true + n_float + n_quantized))?;
        sums = rest;
        let mut boxes = boxes.as_chunks::<N_BOX>().0.iter();
        let truth = |&[class, crowd, l, t, r, b]: &[f64; N_BOX]| Truth {
            class: class as usize,
            is_crowd: crowd > 0.0,
            corners: [l, t, r, b],
        };
        truths.push(boxes.by_ref().take(n_true).map(truth).collect());
        let predicted = |&[class, score, l, t, r, b]: &[f64; N_BOX]| Predicted {
            class: class as usize,
            score,
            corners: [l, t, r, b],
        };
        for (network, n) in [n_float, n_quantized].into_iter().enumerate() {
            found[network].push(boxes.by_ref().take(n).map(predicted).collect());
        }
    }
    let [float, quantized] = found.each_ref().map(|found| mean_average_precision(&truths, found));
    Some(Figure { float: Some(float?), ..Figure::of(quantized?) })
}
