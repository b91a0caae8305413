//! Inputs that all methods share, besides the model and its plan, and the samples that methods use.

use super::effort::Effort;
use crate::calibrate::SampleSet;
use crate::observers::{self, Observer};
use crate::onnx::edit::{InsertedMul, ModelEdit, edited};
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::{Placement, Selection};
use crate::plan::{Decided, Observers, QuantPlan};
use crate::progress::Progress;
use crate::scheme::Scheme;
use crate::simulate::{FloatReference, OutputOptions, PreparedNodes};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::ops::Range;

/// Minimum samples to learn from and to evaluate on. Bias correction and learned rounding read many positions of each
/// sample.
pub const MIN_SAMPLES: usize = 4;
/// Maximum samples of an evaluation that uses other samples besides the held-out ones, because few are held out.
const MAX_EVALUATION: usize = 32;

/// Maximum samples of an evaluation that is repeated because fewer samples left the decision open.
const MAX_OPEN: usize = 96;
/// Maximum values of the largest tensor over all samples of a repeated evaluation.
const MAX_OPEN_VALUES: usize = 1 << 25;

/// A scheme, and the range observer of weights.
#[derive(Clone, Copy)]
pub struct WeightScheme<'a> {
    /// The backend's scheme.
    pub scheme: &'a Scheme,
    /// The range observer of weights.
    pub observer: &'a Observer,
}

/// Options of tuning.
#[derive(Debug, Clone)]
pub struct TuningOptions {
    /// The level of `--effort`.
    pub effort: Effort,
    /// Names of the methods; `None` for the default methods of the effort level.
    pub methods: Option<Vec<&'static str>>,
    /// Share of the multiply-adds that may stay float where the network is far from the float one.
    pub rescue: f64,
}

impl TuningOptions {
    /// Whether methods read the samples again after calibration.
    pub fn looks_again(&self) -> bool {
        self.effort.looks_again() || self.methods.is_some()
    }
}

/// A float model with its placement and plan.
#[derive(Clone)]
pub struct PlannedModel {
    /// The prepared model.
    pub model: ModelProto,
    /// Where the model is quantized.
    pub placement: Placement,
    /// Parameters of all quantizers.
    pub plan: QuantPlan,
    /// Changes that were made to the prepared model, in order.
    pub edits: Vec<ModelEdit>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl PlannedModel {
    /// Makes a planned model without changes of the prepared model.
    pub fn new(model: ModelProto, placement: Placement, plan: QuantPlan) -> PlannedModel {
        PlannedModel { model, placement, plan, edits: Vec::new(), warnings: Vec::new() }
    }

    /// Replaces the plan and adds its warnings, each once.
    pub fn replan(&mut self, (plan, warnings): Decided) {
        self.plan = plan;
        self.warnings.retain(|warning| !warnings.contains(warning));
        self.warnings.extend(warnings);
    }

    /// Applies edits to the model.
    ///
    /// # Errors
    /// If the model lacks an edited tensor or node.
    pub fn edit(&mut self, edits: Vec<ModelEdit>) -> Result<()> {
        self.model = edited(&self.model, &edits)?;
        self.edits.extend(edits);
        Ok(())
    }
}

/// Inputs that all methods share.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The backend's scheme.
    pub scheme: &'a Scheme,
    /// Types and shapes of the model's tensors.
    pub value_info: &'a ValueInfos,
    /// Nodes that the user excludes or selects, and Muls that scale channels.
    pub selection: &'a Selection,
    /// Candidate Muls for channel scales. They multiply by 1 at first; `value_info` and `selection` know their names.
    pub insertable: &'a [InsertedMul],
    /// Names for copies of tensors at the borders of a region of wider types, by tensor; `value_info` knows them. Empty
    /// where the table has no region.
    pub copies: &'a BTreeMap<String, String>,
    /// Shapes for inputs with open dimensions.
    pub shapes: &'a Shapes,
    /// Range observers.
    pub observers: &'a observers::ObserverOptions,
    /// Whether ranges of some activations are given.
    pub has_given_ranges: bool,
    /// Whether mixed precision has a goal. If so, no method leaves layers float.
    pub has_goal: bool,
    /// Options of tuning.
    pub options: &'a TuningOptions,
    /// The user's options for the evaluation of outputs.
    pub outputs: OutputOptions<'a>,
    /// Prepared nodes that forward passes share.
    pub prepared: &'a PreparedNodes,
    /// The calibration data; `None` where nothing is run.
    pub samples: Option<&'a SampleSet>,
    /// Reports progress.
    pub progress: &'a Progress<'a>,
}

/// Results of an evaluation that later ones over the same samples can use.
pub struct Evaluation {
    /// The samples of the evaluation, as positions in [`SampleSet::by_content`].
    pub samples: Range<usize>,
    /// The float network's reference values, and the figures of the plan that was kept.
    pub reference: FloatReference,
}

/// Returns the approximate number of copies of the largest tensor that are alive at a time: input and output of a layer
/// in the float network, and three per quantized network. Each method has one quantized network.
fn n_copies(n_methods: usize) -> usize {
    2 + 3 * n_methods.max(1)
}

impl<'a> Setup<'a> {
    /// Returns the inputs of methods: without samples where no method can measure a network, because the table's codes
    /// cannot be simulated.
    #[must_use]
    pub fn for_methods(self) -> Setup<'a> {
        Setup { samples: self.samples.filter(|_| self.scheme.has_affine_codes()), ..self }
    }

    /// Returns the scheme, and the range observer of weights.
    pub fn weight_scheme(&self) -> WeightScheme<'a> {
        WeightScheme { scheme: self.scheme, observer: &self.observers.weight.observer }
    }

    /// Returns the range observers.
    pub fn range_observers(&self) -> Observers<'a> {
        Observers::of(self.observers)
    }

    /// Returns the number of samples to use, held-out ones included, where `n_methods` methods change layers. The
    /// samples are the first in the order by content.
    pub fn n_samples(&self, samples: &SampleSet, model: &ModelProto, n_methods: usize) -> usize {
        let n = self.options.effort.n_samples(self.value_info.largest_activation(model));
        n.min(self.max_samples(model, n_methods)).min(samples.by_content().len())
    }

    /// Returns the number of samples whose tensors fit in memory.
    fn max_samples(&self, model: &ModelProto, n_methods: usize) -> usize {
        let largest = self.value_info.largest_activation(model);
        self.options.effort.max_bytes() / (4 * n_copies(n_methods) * largest.max(1))
    }

    /// Returns more samples for a decision that the samples at the positions `few` left open: at least twice as many.
    /// `None` where data, memory or time do not suffice.
    pub fn more_samples(
        &self,
        samples: &SampleSet,
        model: &ModelProto,
        n_methods: usize,
        few: &Range<usize>,
    ) -> Option<Range<usize>> {
        let cheap = MAX_OPEN_VALUES / self.value_info.largest_activation(model).max(1);
        let n = MAX_OPEN.min(cheap).min(self.max_samples(model, n_methods));
        let end = samples.by_content().len().min(few.start + n);
        (end.saturating_sub(few.start) >= 2 * few.len()).then_some(few.start..end)
    }

    /// Returns the samples that evaluate a change before tuning, as positions in [`SampleSet::by_content`].
    ///
    /// # Errors
    /// If memory is too small for `MIN_SAMPLES` samples.
    pub fn evaluation_samples(
        &self,
        samples: &SampleSet,
        model: &ModelProto,
        n_methods: usize,
    ) -> Result<Range<usize>> {
        let n = self.n_samples(samples, model, n_methods);
        ensure!(
            n >= MIN_SAMPLES,
            "too few samples fit in memory to evaluate changes: found {n}, expected {MIN_SAMPLES} or more"
        );
        let n_held_out = n - self.options.effort.n_tune(n);
        Ok(n - n_held_out.max(n.min(MAX_EVALUATION))..n)
    }
}
