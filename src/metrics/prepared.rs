//! The accumulator of all metrics.

use super::detect::BOX_OVERLAP;
use super::groups::OutputGroups;
use super::jackknife::jackknife;
use super::layout::FloatOutput;
use super::metric::{Figure, Measure, Metric, SamplePair};
use super::of_task;
use super::overlap::OVERLAP;
use super::sqnr::SQNR;
use crate::heads::TaskHead;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Overlaps from 0 to 1. The first one with a figure is the deciding metric.
pub const OVERLAPS: [Metric; 2] = [BOX_OVERLAP, OVERLAP];

/// Number of columns of an output of boxes: corners, perhaps with score, class and image.
const BOX_COLUMNS: RangeInclusive<usize> = 4..=7;

/// Metrics prepared for the outputs of one float network.
#[derive(Debug)]
pub struct PreparedMetrics {
    measures: Vec<(Metric, Box<dyn Measure>)>,
    outputs: Vec<String>,
    head: Option<TaskHead>,
    /// Whether every output of the float network is the same for all samples.
    is_constant: bool,
    /// For each output, whether it holds rows of boxes that a TopK or non-maximum suppression chooses.
    are_selected: Vec<bool>,
}

/// The sums of each prepared metric over one or more samples.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleSums(Vec<Vec<f64>>);

impl PreparedMetrics {
    /// Prepares `metrics` on the outputs of the float network, in the graph's order, and on its head, if that is known.
    pub fn new(metrics: &[Metric], outputs: &[FloatOutput], head: Option<&TaskHead>) -> PreparedMetrics {
        let is_same = |output: &FloatOutput| output.samples.windows(2).all(|pair| pair[0] == pair[1]);
        let n_samples = outputs.iter().map(|output| output.samples.len()).max().unwrap_or(0);
        // A mixture of experts has a TopK too, which chooses no rows.
        let is_boxes =
            |output: &FloatOutput| matches!(output.shape, [.., n, columns] if *n > 1 && BOX_COLUMNS.contains(columns));
        let has_selected_boxes = outputs.iter().any(|output| output.about.is_selected && is_boxes(output));
        PreparedMetrics {
            measures: metrics.iter().map(|metric| (*metric, (metric.prepare)(outputs, head))).collect(),
            outputs: outputs.iter().map(|output| output.about.name.clone()).collect(),
            head: head.cloned(),
            is_constant: n_samples > 1 && outputs.iter().all(is_same),
            are_selected: outputs.iter().map(|output| has_selected_boxes && output.about.is_selected).collect(),
        }
    }

    /// Whether each output holds rows of boxes that a TopK or non-maximum suppression chooses. Their order then depends
    /// on scores, so that equal rows of two networks need not be in the same place.
    pub fn are_selected(&self) -> &[bool] {
        &self.are_selected
    }

    /// Returns the outputs' names.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Returns the network's head, if it is known.
    pub fn head(&self) -> Option<&TaskHead> {
        self.head.as_ref()
    }

    /// Whether every output of the float network is the same for all samples.
    pub fn is_constant(&self) -> bool {
        self.is_constant
    }

    /// Returns the detected channel axes and groups of the outputs; empty if no metric has groups.
    pub fn groups(&self) -> &[OutputGroups] {
        self.measures.iter().map(|(_, measure)| measure.groups()).find(|groups| !groups.is_empty()).unwrap_or_default()
    }

    /// Returns the sums of all metrics over one sample.
    pub fn sums(&self, sample: &SamplePair) -> SampleSums {
        SampleSums(self.measures.iter().map(|(_, measure)| measure.sums(sample)).collect())
    }

    fn position(&self, metric: Metric) -> Option<usize> {
        self.measures.iter().position(|(prepared, _)| *prepared == metric)
    }

    fn merge(&self, total: &mut SampleSums, sample: &SampleSums) {
        let sums = total.0.iter_mut().zip(&sample.0);
        self.measures.iter().zip(sums).for_each(|((_, measure), (total, sample))| measure.merge(total, sample));
    }
}

/// Measured sums of one quantized network, kept per sample.
#[derive(Debug, Clone)]
pub struct Measurement {
    prepared: Arc<PreparedMetrics>,
    samples: Vec<SampleSums>,
}

impl Measurement {
    /// Returns a measurement of these samples, in order.
    pub fn new(prepared: Arc<PreparedMetrics>, samples: Vec<SampleSums>) -> Measurement {
        Measurement { prepared, samples }
    }

    /// Returns the prepared metrics.
    pub fn prepared(&self) -> &Arc<PreparedMetrics> {
        &self.prepared
    }

    /// Returns the number of samples.
    pub fn n_samples(&self) -> usize {
        self.samples.len()
    }

    /// Returns the figure of each output, or only that of the network for a metric of a task; `None` if the metric does
    /// not apply or was not prepared.
    pub fn figures(&self, metric: Metric) -> Vec<Option<Figure>> {
        self.figures_without(metric, None)
    }

    /// Returns the figures as [`Measurement::figures`], without the sample at index `left_out`.
    pub(super) fn figures_without(&self, metric: Metric, left_out: Option<usize>) -> Vec<Option<Figure>> {
        let none = || vec![None; self.prepared.outputs.len()];
        let Some(at) = self.prepared.position(metric) else { return none() };
        let measure = &self.prepared.measures[at].1;
        let mut samples = self.samples.iter().enumerate().filter(|(i, _)| Some(*i) != left_out);
        let Some((_, first)) = samples.next() else { return none() };
        let mut total = first.0[at].clone();
        samples.for_each(|(_, sample)| measure.merge(&mut total, &sample.0[at]));
        measure.figures(&total)
    }

    /// Returns one figure for all outputs, from the figures of the outputs.
    pub(super) fn mean_of(&self, metric: Metric, figures: &[Option<Figure>]) -> Option<f64> {
        let at = self.prepared.position(metric)?;
        self.prepared.measures[at].1.mean(figures)
    }

    /// Returns one figure for all outputs; `None` if the metric applies to none of them.
    pub fn mean(&self, metric: Metric) -> Option<f64> {
        self.mean_of(metric, &self.figures(metric))
    }

    /// Returns the highest of the figures for all outputs that each leave out one sample; `None` if the metric has no
    /// figure without one of the samples.
    pub fn highest_without_one(&self, metric: Metric) -> Option<f64> {
        self.without_one(metric)?.into_iter().max_by(f64::total_cmp)
    }

    /// Returns the standard deviation of the figure for all outputs over the samples (jackknife), in the metric's unit;
    /// `None` with fewer than two samples, or if the metric has no finite figure without one of them.
    pub fn deviation(&self, metric: Metric) -> Option<f64> {
        let figures = self.without_one(metric).filter(|figures| figures.len() > 1)?;
        Some(jackknife(figures.iter().copied())).filter(|deviation| deviation.is_finite())
    }

    fn without_one(&self, metric: Metric) -> Option<Vec<f64>> {
        let without = |left_out: usize| self.mean_of(metric, &self.figures_without(metric, Some(left_out)));
        (0..self.n_samples()).map(without).collect()
    }

    /// Returns the worst figure of an output; `None` if the metric applies to none of them.
    pub fn worst(&self, metric: Metric) -> Option<f64> {
        let values = self.figures(metric).into_iter().flatten().map(|figure| figure.value);
        values.reduce(|a, b| metric.worse(a, b))
    }

    /// Returns the lowest figure of an output, with the output's name; `None` if the metric applies to none of them.
    pub fn lowest_output(&self, metric: Metric) -> Option<(f64, &str)> {
        let figures = self.figures(metric).into_iter().zip(self.prepared.outputs());
        let figures = figures.filter_map(|(figure, output)| Some((figure?.value, output.as_str())));
        figures.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Returns the deciding metric: the overlap of boxes if the network chooses boxes, otherwise the overlap of
    /// channels, or the SQNR if no output has an overlap.
    pub fn deciding(&self) -> Metric {
        let has_figure = |metric: &Metric| self.figures(*metric).iter().any(Option::is_some);
        OVERLAPS.into_iter().find(has_figure).unwrap_or(SQNR)
    }

    /// Returns the figure of the deciding metric; `None` if the deciding metric is the SQNR.
    pub fn overlap(&self) -> Option<f64> {
        Some(self.deciding()).filter(|metric| OVERLAPS.contains(metric)).and_then(|metric| self.mean(metric))
    }

    /// Returns the metric of the network's task, if the task is known and the metric was prepared.
    pub fn of_task(&self) -> Option<Metric> {
        let metric = of_task(self.prepared.head())?;
        self.prepared.position(metric).map(|_| metric)
    }

    /// Whether a value is NaN or infinite in one or both networks. True if the metric was not prepared.
    pub fn has_non_finite(&self, metric: Metric) -> bool {
        let Some(at) = self.prepared.position(metric) else { return true };
        self.samples.iter().any(|sample| sample.0[at].iter().any(|sum| !sum.is_finite()))
    }

    /// Returns the outputs with NaN or infinite values, from the sums of the SQNR.
    pub fn non_finite_outputs(&self) -> Vec<&str> {
        let Some(at) = self.prepared.position(SQNR) else { return Vec::new() };
        let outputs = &self.prepared.outputs;
        let has_non_finite = |output_idx: usize| {
            let sums = self.samples.iter().map(|sample| &sample.0[at]);
            sums.into_iter().any(|sums| {
                let n = sums.len() / outputs.len().max(1);
                sums[output_idx * n..(output_idx + 1) * n].iter().any(|sum| !sum.is_finite())
            })
        };
        (0..outputs.len()).filter(|&i| has_non_finite(i)).map(|i| outputs[i].as_str()).collect()
    }
}

/// Sums over samples that arrive in any order, added in the order of their indices.
#[derive(Debug)]
pub struct InOrder {
    prepared: Arc<PreparedMetrics>,
    /// Index of the next sample to add.
    next: usize,
    /// Samples that arrived early.
    early: BTreeMap<usize, SampleSums>,
    total: Option<SampleSums>,
}

impl InOrder {
    /// Returns empty sums.
    pub fn new(prepared: Arc<PreparedMetrics>) -> InOrder {
        InOrder { prepared, next: 0, early: BTreeMap::new(), total: None }
    }

    /// Returns the prepared metrics.
    pub fn prepared(&self) -> &Arc<PreparedMetrics> {
        &self.prepared
    }

    /// Adds the sums of a sample.
    pub fn add(&mut self, sample_idx: usize, sums: SampleSums) {
        self.early.insert(sample_idx, sums);
        while let Some(sums) = self.early.remove(&self.next) {
            match &mut self.total {
                Some(total) => self.prepared.merge(total, &sums),
                None => self.total = Some(sums),
            }
            self.next += 1;
        }
    }

    /// Returns the sums of all samples as a measurement of one sample.
    pub fn into_total(self) -> Measurement {
        Measurement { prepared: self.prepared, samples: self.total.into_iter().collect() }
    }
}
