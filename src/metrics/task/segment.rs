//! Maps of classes: how much of the float network's areas the quantized one's share.

use super::super::classes::argmax;
use super::{AlongAxis, OutputPair, TaskOptions, percent};
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;

/// The positions of a class.
#[derive(Debug, Clone, Copy, Default)]
struct Area {
    float: usize,
    quantized: usize,
    shared: usize,
}

/// Counts of positions by class.
#[derive(Debug, Clone, Default)]
pub(super) struct SegmentSums {
    areas: BTreeMap<i64, Area>,
    n_positions: usize,
    n_agree: usize,
}

/// Figures of maps of classes.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct SegmentFigures {
    /// Intersection over union of a class's positions in all samples together, mean over the classes that either network
    /// found, 0 to 1. Of one channel: of the positions above the threshold. Absent where neither found any.
    pub miou: Option<f64>,
    /// The class with the lowest.
    pub worst: Option<WorstClass>,
    /// Positions with the same class, in percent.
    pub agreement_percent: Option<f64>,
    /// Classes that either network found.
    pub n_classes: usize,
    /// Positions of all samples.
    pub n_positions: usize,
}

/// The class with the lowest intersection over union.
#[derive(Debug, Clone, Serialize)]
pub struct WorstClass {
    /// Its index.
    pub class: i64,
    /// 0 to 1.
    pub iou: f64,
}

/// The axis of the channels: the given one, or the second; the last where only the two in between are as long as
/// each other. `None` for a map without channels.
fn channel_axis(shape: &[usize], given: Option<usize>) -> Option<usize> {
    match *shape {
        _ if given.is_some() => given,
        [_, h, w, c] if h == w && w != c => Some(3),
        [_, _, _, _, ..] => Some(1),
        _ => None,
    }
}

impl SegmentSums {
    pub fn of(pair: &OutputPair, options: &TaskOptions) -> Option<SegmentSums> {
        let mut sums = SegmentSums::default();
        if pair.shape.len() < 3 || pair.float.is_empty() {
            return None;
        }
        let axis = channel_axis(pair.shape, options.channel_axis).filter(|_| pair.is_float);
        let lines = match axis {
            Some(axis) => AlongAxis::of(pair.shape, axis)?,
            None => AlongAxis { outer: pair.float.len(), n: 1, inner: 1 },
        };
        // A position for each image is no map.
        if lines.outer * lines.inner <= pair.n_parts {
            return None;
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let class = |line: &[f32]| match line {
            [value] if !pair.is_float => value.round() as i64,
            [value] => i64::from(f64::from(*value) > options.threshold),
            line => argmax(line).map_or(-1, |class| class as i64),
        };
        for i in 0..lines.outer * lines.inner {
            lines.read(pair.float, i, &mut a);
            lines.read(pair.quantized, i, &mut b);
            sums.add(class(&a), class(&b));
        }
        if pair.is_float && lines.n == 1 {
            sums.areas.remove(&0);
        }
        Some(sums)
    }

    fn add(&mut self, float: i64, quantized: i64) {
        self.n_positions += 1;
        self.areas.entry(float).or_default().float += 1;
        self.areas.entry(quantized).or_default().quantized += 1;
        if float == quantized {
            self.n_agree += 1;
            self.areas.entry(float).or_default().shared += 1;
        }
    }

    pub fn merge(&mut self, other: &SegmentSums) {
        self.n_positions += other.n_positions;
        self.n_agree += other.n_agree;
        for (class, one) in &other.areas {
            let all = self.areas.entry(*class).or_default();
            all.float += one.float;
            all.quantized += one.quantized;
            all.shared += one.shared;
        }
    }

    pub fn figures(&self) -> SegmentFigures {
        let iou = |area: &Area| area.shared as f64 / (area.float + area.quantized - area.shared) as f64;
        let ious: Vec<(i64, f64)> = self.areas.iter().map(|(class, area)| (*class, iou(area))).collect();
        let mean = ious.iter().map(|(_, iou)| iou).sum::<f64>() / ious.len() as f64;
        let worst = ious.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        SegmentFigures {
            miou: (!ious.is_empty()).then_some(mean),
            worst: worst.map(|&(class, iou)| WorstClass { class, iou }),
            agreement_percent: percent(self.n_agree, self.n_positions),
            n_classes: ious.len(),
            n_positions: self.n_positions,
        }
    }
}
