//! Figures of one model by itself.

use super::compare::{Comparison, SampleData, engines, non_finite, other_preprocessing, outputs, over_samples};
use super::sample_sums::{SampleOutputs, f32s};
use crate::matching::as_qdq;
use crate::metrics::{
    COCO_MAP, ChannelAxes, FigureScale, Metric, MetricBound, MissedGate, TOP1, TOP5, argmax, is_among_best, n_classes,
};
use crate::onnx;
use crate::prepare::default_opset;
use crate::progress::Progress;
use anyhow::{Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

/// Figures of a model on data.
pub struct ModelEvaluation {
    /// The model compared with itself: figures by labels, the head, and counts of NaN and infinite values.
    pub comparison: Comparison,
    /// Summary of the values of each output.
    pub outputs: Vec<OutputValues>,
}

/// A summary of the values of an output over all samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OutputValues {
    /// Number of values.
    pub n_values: usize,
    /// Number of values that are NaN or infinite.
    pub n_non_finite: usize,
    /// Lowest and highest finite value.
    pub range: Option<[f32; 2]>,
    /// Number of rows by class of the largest value, where the output may be class scores.
    pub classes: BTreeMap<usize, usize>,
    /// Number of classes.
    pub n_classes: Option<usize>,
    /// Number of labeled rows, and of those rows whose label is among the five largest values.
    pub top5: [usize; 2],
}

impl OutputValues {
    /// Returns the share of the rows whose label is among the five largest values, in percent; `None` without labels or
    /// with five classes or fewer.
    pub fn top5_percent(&self) -> Option<f64> {
        let [n, n_right] = self.top5;
        (n > 0 && self.n_classes.is_some_and(|n| n > 5)).then(|| 100.0 * n_right as f64 / n as f64)
    }

    fn add(&mut self, shape: &[usize], values: &[f32], labels: Option<&[usize]>, batch: usize) {
        self.n_values += values.len();
        for &value in values {
            match value.is_finite() {
                true => self.range = self.range.map_or(Some([value; 2]), |[a, b]| Some([a.min(value), b.max(value)])),
                false => self.n_non_finite += 1,
            }
        }
        let Some(n) = n_classes(shape, batch) else { return };
        self.n_classes = Some(n);
        for (row_idx, row) in values.chunks_exact(n).enumerate() {
            if let Some(class) = argmax(row) {
                *self.classes.entry(class).or_default() += 1;
            }
            // Scores of the whole batch are not scores of its entries.
            let label = labels.filter(|labels| labels.len() * n == values.len()).map(|labels| labels[row_idx]);
            if let Some(label) = label {
                self.top5[0] += 1;
                self.top5[1] += usize::from(is_among_best(row, label));
            }
        }
    }
}

/// The metrics of one model with labels. All other metrics compare two models.
pub const OF_ONE_MODEL: &[Metric] = &[TOP1, LABELLED_TOP5, COCO_MAP];

/// Share of rows of class scores whose label is among the five largest values, in percent.
pub const LABELLED_TOP5: Metric = Metric {
    title: "top-5",
    scale: FigureScale { decimals: 2, ..TOP5.scale },
    about: "rows of class scores whose label is among the five largest values",
    task: None,
    ..TOP5
};

impl ModelEvaluation {
    /// Returns the missed gates. A model with NaN or infinite values misses all of them.
    pub fn missed(&self, gates: &[MetricBound]) -> Vec<MissedGate> {
        let is_known = self.comparison.has_finite_constants;
        let names = self.comparison.measured.prepared().outputs();
        let of_top5 = |gate: &MetricBound| -> Vec<MissedGate> {
            let figures = names.iter().zip(&self.outputs);
            let figures = figures.filter_map(|(name, output)| Some((name, output, output.top5_percent()?)));
            let missed = |(name, output, value): (&String, &OutputValues, f64)| {
                let value = Some(value).filter(|_| is_known && output.n_non_finite == 0);
                let passes = value.is_some_and(|value| gate.metric.reaches(value, gate.bound));
                (!passes).then(|| missed_gate(gate, Some(name.clone()), value))
            };
            match self.outputs.iter().any(|output| output.top5_percent().is_some()) {
                true => figures.filter_map(missed).collect(),
                false => vec![missed_gate(gate, None, None)],
            }
        };
        let missed = |gate: &MetricBound| match gate.metric == TOP5 {
            true => of_top5(gate),
            false => self.comparison.missed(&[*gate]),
        };
        gates.iter().flat_map(missed).collect()
    }
}

fn missed_gate(gate: &MetricBound, tensor: Option<String>, value: Option<f64>) -> MissedGate {
    MissedGate { metric: LABELLED_TOP5, tensor, value, bound: gate.bound }
}

/// Runs a model on the data.
///
/// # Errors
/// If the model or a sample cannot be run, a sample has no label or no output for it, or no head fits the outputs.
pub fn evaluate(path: &Path, data: &SampleData, progress: &Progress) -> Result<ModelEvaluation> {
    let shapes = data.shapes_for(path)?;
    let model = as_qdq(onnx::load_valid(path)?).model;
    let about = outputs(&model, &ChannelAxes::new(), None)?;
    let mut warnings = non_finite((&path, &model));
    let has_finite_constants = warnings.is_empty();
    let engines = [engines(path, &model, default_opset(&model).unwrap_or_default(), &shapes)?];
    drop(model);
    let dataset = data.open(engines[0].inputs())?;
    warnings.extend(other_preprocessing(path, &dataset));
    let sums = Mutex::new(vec![OutputValues::default(); about.len()]);
    let visit = |sample: &SampleOutputs| {
        let mut sums = sums.lock().map_err(|error| anyhow!("{error}"))?;
        ensure!(sums.len() == sample.outputs[0].len(), "internal error: the number of outputs has changed");
        for (sums, output) in sums.iter_mut().zip(&sample.outputs[0]) {
            sums.add(&output.shape, f32s(output), sample.labels, dataset.batch());
        }
        Ok(())
    };
    let comparison = over_samples(data, &about, &engines, &dataset, (&visit, "evaluation", progress))?;
    warnings.extend(comparison.warnings.iter().cloned());
    let outputs = sums.into_inner().map_err(|error| anyhow!("{error}"))?;
    Ok(ModelEvaluation { comparison: Comparison { warnings, has_finite_constants, ..comparison }, outputs })
}
