//! What a metric is.

use super::groups::OutputGroups;
use super::layout::FloatOutput;
use serde::{Serialize, Serializer};
use std::fmt::Debug;

/// A figure of how near two networks' outputs are.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name on the command line and in JSON.
    pub name: &'static str,
    /// Its name where people read.
    pub title: &'static str,
    /// The unit of its figures; empty for a plain number.
    pub unit: &'static str,
    /// Decimals that are printed.
    pub decimals: usize,
    /// Which of two figures is better.
    pub better: Better,
    /// The best figure, that of equal outputs.
    pub best: f64,
    /// Its definition in one line.
    pub about: &'static str,
    /// Takes what it needs of the float outputs of some samples, once: medians, groups of channels, which outputs it is
    /// about.
    pub prepare: fn(&[FloatOutput]) -> Box<dyn Measure>,
}

/// Which of two figures is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The higher one.
    Higher,
    /// The lower one.
    Lower,
}

/// A metric that is ready for the outputs of one float network.
pub trait Measure: Send + Sync + Debug {
    /// Sums over one sample.
    fn sums(&self, sample: &SamplePair) -> Vec<f64>;

    /// Adds the sums of a sample to those of the samples before it.
    fn merge(&self, total: &mut [f64], sample: &[f64]) {
        total.iter_mut().zip(sample).for_each(|(total, sample)| *total += sample);
    }

    /// The figure of each output; `None` where the metric is not about the output.
    fn figures(&self, sums: &[f64]) -> Vec<Option<Figure>>;

    /// One figure for all outputs.
    fn mean(&self, figures: &[Option<Figure>]) -> Option<f64> {
        let values: Vec<f64> = figures.iter().flatten().map(|figure| figure.value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The channels that [`Figure::groups`] are of, output by output.
    fn groups(&self) -> &[OutputGroups] {
        &[]
    }
}

/// The figure of an output.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// In the metric's unit.
    pub value: f64,
    /// The same of the float network, where the metric is about single networks.
    pub float: Option<f64>,
    /// The figures of groups of channels, where the metric has them.
    pub groups: Vec<f64>,
}

impl Figure {
    /// A value alone.
    pub fn of(value: f64) -> Figure {
        Figure { value, float: None, groups: Vec::new() }
    }
}

/// One output of two networks for one sample; as many values of both.
#[derive(Debug, Clone, Copy)]
pub struct OutputPair<'a> {
    /// Dimensions.
    pub shape: &'a [usize],
    /// Values of the float network.
    pub float: &'a [f32],
    /// Values of the quantized one.
    pub quantized: &'a [f32],
}

/// All outputs of two networks for one sample.
#[derive(Debug, Clone, Copy)]
pub struct SamplePair<'a> {
    /// The outputs in the graph's order; `None` for one that is not compared.
    pub outputs: &'a [Option<OutputPair<'a>>],
    /// The class of each part of the batch, where labels are given.
    pub labels: Option<&'a [usize]>,
}

impl<'a> SamplePair<'a> {
    /// The output at this position.
    pub fn output(&self, output_idx: usize) -> Option<OutputPair<'a>> {
        self.outputs.get(output_idx).copied().flatten()
    }
}

impl Metric {
    /// Whether `a` is better than `b`; never where one of them is NaN.
    pub fn is_better(&self, a: f64, b: f64) -> bool {
        match self.better {
            Better::Higher => a > b,
            Better::Lower => a < b,
        }
    }

    /// Whether a figure is `bound` or better; never where it is NaN.
    pub fn reaches(&self, figure: f64, bound: f64) -> bool {
        !figure.is_nan() && !self.is_better(bound, figure)
    }

    /// A bound that is better by `margin`, but not than the best there is.
    pub fn stricter(&self, bound: f64, margin: f64) -> f64 {
        match self.better {
            Better::Higher => (bound + margin).min(self.best.max(bound)),
            Better::Lower => (bound - margin).max(self.best.min(bound)),
        }
    }

    /// The worse of two figures; one that is NaN is worse.
    pub fn worse(&self, a: f64, b: f64) -> f64 {
        if a.is_nan() || self.is_better(b, a) { a } else { b }
    }

    /// A figure with its unit.
    pub fn spelled(&self, value: f64) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        format!("{value:.*}{unit}", self.decimals)
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
