//! Figures of how two models' outputs agree.

use super::classes::{argmax, same_class};
use super::decibels::{MAX_DB, sqnr_db};
use super::value_and_error;
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::collections::BTreeMap;

/// Values of an output that are NaN or infinite.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NonFinite {
    /// How many.
    pub n_values: usize,
    /// The first sample that has one, by its name.
    pub first_sample: String,
}

/// Sums over the samples of one output. Results do not depend on anything but the order of the samples.
#[derive(Debug, Clone, Default)]
pub struct OutputComparison {
    signal: f64,
    error: f64,
    max_difference: f64,
    n_values: usize,
    n_samples: usize,
    n_other_shape: usize,
    non_finite: Option<NonFinite>,
    float_non_finite: Option<NonFinite>,
    n_rows: usize,
    n_agree: usize,
    n_labelled: usize,
    n_right: [usize; 2],
}

/// What is reported of one output.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct OutputFigures {
    /// ONNX name.
    pub output: String,
    /// `10 log10(sum of float^2 / sum of (float - quantized)^2)` over all samples, in dB, within ±[`MAX_DB`];
    /// absent where the outputs are equal, and -[`MAX_DB`] where a value is NaN or infinite or there is none.
    pub sqnr_db: Option<f64>,
    /// Largest absolute difference of finite values, in the output's own unit.
    pub max_difference: f64,
    /// Rows of class scores with the same largest element, in percent; absent where the output has no such rows.
    pub agreement_percent: Option<f64>,
    /// Rows of class scores whose largest element is the label, float and quantized, in percent.
    pub top1_percent: Option<[f64; 2]>,
    /// Samples compared.
    pub n_samples: usize,
    /// Samples whose output has another shape than in the float model, as where it is a list of what was found.
    pub n_other_shape: Option<usize>,
    /// Values that are NaN or infinite where float has numbers.
    pub non_finite: Option<NonFinite>,
    /// Values that are NaN or infinite in the float model, so that there is nothing to compare with; an infinity that
    /// both models have is equal.
    pub float_non_finite: Option<NonFinite>,
}

impl OutputFigures {
    /// Whether the SQNR is `min_db` or more. What could not be measured is not.
    pub fn reaches(&self, min_db: f64) -> bool {
        let measured = self.non_finite.is_none() && self.float_non_finite.is_none();
        measured && self.n_other_shape.is_none() && self.sqnr_db.is_none_or(|db| db >= min_db)
    }
}

fn count(non_finite: &mut Option<NonFinite>, sample: &str) {
    let first = || NonFinite { n_values: 0, first_sample: sample.to_string() };
    non_finite.get_or_insert_with(first).n_values += 1;
}

impl OutputComparison {
    /// Adds the values of the output for `sample`, as many of both models.
    pub fn add(&mut self, sample: &str, float: &[f32], quantized: &[f32]) {
        let (mut signal, mut squares) = (0.0, 0.0);
        for (&a, &b) in float.iter().zip(quantized) {
            let (value, error) = value_and_error(a, b);
            if !value.is_finite() {
                count(&mut self.float_non_finite, sample);
            } else if !error.is_finite() {
                count(&mut self.non_finite, sample);
            } else {
                signal += value * value;
                squares += error * error;
                self.max_difference = self.max_difference.max(error.abs());
            }
        }
        self.signal += signal;
        self.error += squares;
        self.n_values += float.len();
        self.n_samples += 1;
    }

    /// Adds a sample whose output has another shape than in the float model: there is nothing to compare.
    pub fn add_other_shape(&mut self) {
        self.n_samples += 1;
        self.n_other_shape += 1;
    }

    /// Adds rows of `n_classes` class scores each, and the label of each where there are labels.
    pub fn add_scores(&mut self, float: &[f32], quantized: &[f32], n_classes: usize, labels: Option<&[usize]>) {
        let rows = || float.chunks(n_classes).zip(quantized.chunks(n_classes));
        for (a, b) in rows() {
            self.n_rows += 1;
            self.n_agree += usize::from(same_class(a, b));
        }
        for ((a, b), label) in rows().zip(labels.unwrap_or_default()) {
            self.n_labelled += 1;
            self.n_right[0] += usize::from(argmax(a) == Some(*label));
            self.n_right[1] += usize::from(argmax(b) == Some(*label));
        }
    }

    /// The figures of output `output`.
    pub fn figures(&self, output: &str) -> OutputFigures {
        let percent = |n: usize, of: usize| 100.0 * n as f64 / of as f64;
        let measured = self.non_finite.is_none() && self.float_non_finite.is_none() && self.n_other_shape == 0;
        let sqnr_db = match measured && self.n_values > 0 {
            false => Some(-MAX_DB),
            true if self.error > 0.0 => Some(sqnr_db(self.signal, self.error).clamp(-MAX_DB, MAX_DB)),
            true => None,
        };
        OutputFigures {
            output: output.to_string(),
            sqnr_db,
            max_difference: self.max_difference,
            agreement_percent: (self.n_rows > 0).then(|| percent(self.n_agree, self.n_rows)),
            top1_percent: (self.n_labelled > 0).then(|| self.n_right.map(|n| percent(n, self.n_labelled))),
            n_samples: self.n_samples,
            n_other_shape: (self.n_other_shape > 0).then_some(self.n_other_shape),
            non_finite: self.non_finite.clone(),
            float_non_finite: self.float_non_finite.clone(),
        }
    }
}

/// Sums over samples.
pub trait Merge {
    /// Adds the samples of `other` behind those seen so far.
    fn merge(&mut self, other: Self);
}

impl Merge for OutputComparison {
    fn merge(&mut self, other: OutputComparison) {
        self.signal += other.signal;
        self.error += other.error;
        self.max_difference = self.max_difference.max(other.max_difference);
        self.n_values += other.n_values;
        self.n_samples += other.n_samples;
        self.n_other_shape += other.n_other_shape;
        self.n_rows += other.n_rows;
        self.n_agree += other.n_agree;
        self.n_labelled += other.n_labelled;
        for (n_right, other) in self.n_right.iter_mut().zip(other.n_right) {
            *n_right += other;
        }
        for (all, other) in
            [(&mut self.non_finite, other.non_finite), (&mut self.float_non_finite, other.float_non_finite)]
        {
            match (all.as_mut(), other) {
                (Some(all), Some(other)) => all.n_values += other.n_values,
                (None, other) => *all = other,
                (Some(_), None) => {}
            }
        }
    }
}

/// Sums over the samples, added in their order whatever order they come in.
#[derive(Debug)]
pub struct InOrder<T> {
    /// The sample whose turn it is.
    next: usize,
    /// Samples that came before their turn.
    early: BTreeMap<usize, Vec<T>>,
    totals: Vec<T>,
}

impl<T: Merge + Default> InOrder<T> {
    /// For so many outputs.
    pub fn new(n_outputs: usize) -> InOrder<T> {
        let totals = (0..n_outputs).map(|_| T::default()).collect();
        InOrder { next: 0, early: BTreeMap::new(), totals }
    }

    /// Adds what was compared of a sample, output by output.
    pub fn add(&mut self, sample_idx: usize, outputs: Vec<T>) {
        self.early.insert(sample_idx, outputs);
        while let Some(outputs) = self.early.remove(&self.next) {
            self.totals.iter_mut().zip(outputs).for_each(|(total, one)| total.merge(one));
            self.next += 1;
        }
    }

    /// The sums, output by output.
    pub fn into_totals(self) -> Vec<T> {
        self.totals
    }
}
