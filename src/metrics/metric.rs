//! The interface of metrics, and the values that they take and give.

use super::groups::OutputGroups;
use super::layout::FloatOutput;
use crate::data::ImageTruth;
use crate::heads::{TaskHead, TaskName};
use anyhow::{Result, ensure};
use serde::{Serialize, Serializer};
use std::fmt::Debug;

/// A measure of how similar two networks' outputs are.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name on the command line and in JSON.
    pub name: &'static str,
    /// Name in printed text.
    pub title: &'static str,
    /// Unit and limits of the figures.
    pub scale: FigureScale,
    /// Definition in one line.
    pub about: &'static str,
    /// The task that the metric belongs to, with one figure for the network; `None` if each output has a figure.
    pub task: Option<TaskName>,
    /// Prepares the metric on the float outputs of some samples and on the network's head. Metrics take medians, groups
    /// of channels, and the outputs that they apply to from the float outputs.
    pub prepare: fn(&[FloatOutput], Option<&TaskHead>) -> Box<dyn Measure>,
}

/// Unit and limits of the figures of a metric.
#[derive(Debug, Clone, Copy)]
pub struct FigureScale {
    /// Unit of the figures; empty for a plain number.
    pub unit: &'static str,
    /// Number of printed decimals.
    pub decimals: usize,
    /// Which of two figures is better.
    pub better: Better,
    /// The best figure, which equal outputs have.
    pub best: f64,
    /// The worst figure; infinite if figures have no limit.
    pub worst: f64,
}

impl FigureScale {
    /// A share, 0 to 1.
    pub const SHARE: FigureScale = FigureScale { unit: "", decimals: 3, better: Better::Higher, best: 1.0, worst: 0.0 };
    /// A share in percent.
    pub const PERCENT: FigureScale = FigureScale { unit: "%", decimals: 1, best: 100.0, ..FigureScale::SHARE };
    /// A ratio in decibels.
    pub const DECIBELS: FigureScale =
        FigureScale { unit: "dB", decimals: 2, best: super::MAX_DB, worst: f64::NEG_INFINITY, ..FigureScale::SHARE };
}

/// The direction in which figures become better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Higher figures are better.
    Higher,
    /// Lower figures are better.
    Lower,
}

/// A metric prepared for the outputs of one float network.
pub trait Measure: Send + Sync + Debug {
    /// Returns the metric's sums over one sample.
    fn sums(&self, sample: &SamplePair) -> Vec<f64>;

    /// Adds the sums of a sample to the total.
    fn merge(&self, total: &mut Vec<f64>, sample: &[f64]) {
        total.iter_mut().zip(sample).for_each(|(total, sample)| *total += sample);
    }

    /// Returns the figure of each output, or only that of the network for a metric of a task; `None` if the metric does
    /// not apply.
    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>>;

    /// Returns one figure for all outputs: the mean of their figures.
    fn mean(&self, figures: &[Option<Figure>]) -> Option<f64> {
        let values: Vec<f64> = figures.iter().flatten().map(|figure| figure.value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Returns the channels of [`Figure::groups`], by output.
    fn groups(&self) -> &[OutputGroups] {
        &[]
    }
}

/// The figure of an output, or of the network.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The value in the metric's unit.
    pub value: f64,
    /// The float network's figure, if the metric compares with labels.
    pub float: Option<f64>,
    /// Figures of groups of channels; empty if the metric has no groups.
    pub groups: Vec<f64>,
    /// Counts of detections of the float and of the quantized network, if the metric counts them.
    pub found: Option<[FoundCounts; 2]>,
}

/// Detections of a network over all samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FoundCounts {
    /// Number of detections.
    pub n_found: usize,
    /// Histogram of scores from 0 to 1 in ten bins, before threshold and suppression.
    pub scores: Vec<usize>,
}

impl Figure {
    /// Returns a figure without float figure, groups and counts.
    pub fn of(value: f64) -> Figure {
        Figure { value, float: None, groups: Vec::new(), found: None }
    }
}

/// One output of two networks for one sample. Both have the same number of values.
#[derive(Debug, Clone, Copy)]
pub struct OutputPair<'a> {
    /// Dimensions.
    pub shape: &'a [usize],
    /// Values of the float network.
    pub float: &'a [f32],
    /// Values of the quantized network.
    pub quantized: &'a [f32],
}

/// All outputs of two networks for one sample.
#[derive(Debug, Clone, Copy)]
pub struct SamplePair<'a> {
    /// The outputs in the graph's order; `None` for an output that is not compared.
    pub outputs: &'a [Option<OutputPair<'a>>],
    /// The class of each entry of the batch, if there are labels.
    pub labels: Option<&'a [usize]>,
    /// The labeled boxes of each image and the fit of the image into the input, if the labels are boxes.
    pub truths: Option<&'a [ImageTruth]>,
}

impl<'a> SamplePair<'a> {
    /// Returns the output at this index; `None` if it is not compared.
    pub fn output(&self, output_idx: usize) -> Option<OutputPair<'a>> {
        self.outputs.get(output_idx).copied().flatten()
    }
}

impl Metric {
    /// Whether figure `a` is better than `b`. False if one is NaN.
    pub fn is_better(&self, a: f64, b: f64) -> bool {
        match self.scale.better {
            Better::Higher => a > b,
            Better::Lower => a < b,
        }
    }

    /// Whether a figure is as good as `bound` or better. False if it is NaN.
    pub fn reaches(&self, figure: f64, bound: f64) -> bool {
        !figure.is_nan() && !self.is_better(bound, figure)
    }

    /// Returns a bound that is stricter by `margin`, up to the best figure.
    pub fn stricter(&self, bound: f64, margin: f64) -> f64 {
        match self.scale.better {
            Better::Higher => (bound + margin).min(self.scale.best.max(bound)),
            Better::Lower => (bound - margin).max(self.scale.best.min(bound)),
        }
    }

    /// Refuses a bound that no figure can have.
    ///
    /// # Errors
    /// If `bound` is not between the worst and the best figure. The message says both.
    pub fn ensure_possible(&self, bound: f64) -> Result<()> {
        let (low, high) = (self.scale.best.min(self.scale.worst), self.scale.best.max(self.scale.worst));
        let unit = self.unit_suffix();
        let expected = match (low.is_finite(), high.is_finite()) {
            (true, true) => format!("{low} to {high}{unit}"),
            (true, false) => format!("{low}{unit} or more"),
            (false, _) => format!("{high}{unit} or less"),
        };
        let found = || format!("found `{bound}`, expected {expected} for metric `{}`", self.name);
        ensure!((low..=high).contains(&bound), found());
        Ok(())
    }

    /// Returns the worse of two figures. NaN is the worst.
    pub fn worse(&self, a: f64, b: f64) -> f64 {
        if a.is_nan() || self.is_better(b, a) { a } else { b }
    }

    /// Returns the text of a figure with its unit.
    pub fn with_unit(&self, value: f64) -> String {
        format!("{value:.*}{}", self.scale.decimals, self.unit_suffix())
    }

    /// Returns the unit after a space; empty for a plain number.
    pub(super) fn unit_suffix(&self) -> String {
        if self.scale.unit.is_empty() { String::new() } else { format!(" {}", self.scale.unit) }
    }
}

impl PartialEq for Metric {
    fn eq(&self, other: &Metric) -> bool {
        self.name == other.name
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}
