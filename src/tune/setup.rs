//! What all methods go by besides the model and its plan, and which samples they look at.

use super::effort::Effort;
use crate::calibrate::SampleSet;
use crate::metrics::ChannelAxes;
use crate::observers::{self, Observer};
use crate::onnx::edit::{InsertedMul, ModelEdit, edited};
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::{Placement, Selection};
use crate::plan::{Decided, Observers, QuantPlan};
use crate::scheme::Scheme;
use crate::simulate::FloatReference;
use anyhow::{Result, ensure};
use std::ops::Range;

/// Fewest samples to learn from and to evaluate by. Bias correction and learned rounding see many positions of each.
pub const MIN_SAMPLES: usize = 4;
/// Samples that evaluate more than a few held-out ones, where these are few.
const MAX_EVALUATION: usize = 32;

/// A scheme, and the observer of weights.
#[derive(Clone, Copy)]
pub struct WeightScheme<'a> {
    /// The backend's.
    pub scheme: &'a Scheme,
    /// The observer that gives weights their ranges.
    pub observer: &'a Observer,
}

/// What is tried for better parameters.
#[derive(Debug, Clone)]
pub struct TuningOptions {
    /// How much work goes into it.
    pub effort: Effort,
    /// The names of the methods, where they are not the effort's own choice.
    pub methods: Option<Vec<&'static str>>,
    /// Share of the multiply-adds that may stay float where the network is far from the float one.
    pub rescue: f64,
}

impl TuningOptions {
    /// Whether samples are looked at more than once.
    pub fn looks_again(&self) -> bool {
        self.effort.looks_again() || self.methods.is_some()
    }
}

/// A float model, where it is quantized, and with which parameters.
#[derive(Clone)]
pub struct PlannedModel {
    /// The prepared model.
    pub model: ModelProto,
    /// Where it is quantized.
    pub placement: Placement,
    /// With which parameters.
    pub plan: QuantPlan,
    /// The changes of the prepared model that this is a plan of, in their order.
    pub edits: Vec<ModelEdit>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl PlannedModel {
    /// A plan of a prepared model as it is.
    pub fn new(model: ModelProto, placement: Placement, plan: QuantPlan) -> PlannedModel {
        PlannedModel { model, placement, plan, edits: Vec::new(), warnings: Vec::new() }
    }

    /// Takes another plan with its warnings; earlier ones stay, each once.
    pub fn replan(&mut self, (plan, warnings): Decided) {
        self.plan = plan;
        self.warnings.retain(|warning| !warnings.contains(warning));
        self.warnings.extend(warnings);
    }

    /// Changes the model.
    ///
    /// # Errors
    /// If the model lacks what is changed.
    pub fn edit(&mut self, edits: Vec<ModelEdit>) -> Result<()> {
        self.model = edited(&self.model, &edits)?;
        self.edits.extend(edits);
        Ok(())
    }
}

/// What methods go by.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The backend's.
    pub scheme: &'a Scheme,
    /// Types and shapes of the model's tensors.
    pub value_info: &'a ValueInfos,
    /// Which nodes the user takes out or asks for, and which Muls scale channels.
    pub selection: &'a Selection,
    /// Where Muls for channel scales may be inserted: by ones, and with names that are known to `value_info` and `selection`.
    pub insertable: &'a [InsertedMul],
    /// Shapes of inputs that the model leaves open.
    pub shapes: &'a Shapes,
    /// What ranges are by.
    pub observers: &'a observers::ObserverOptions,
    /// Whether some ranges of activations are given.
    pub has_given_ranges: bool,
    /// Whether precisions of layers are chosen by a goal: then no method leaves layers float.
    pub has_goal: bool,
    /// What is tried.
    pub options: &'a TuningOptions,
    /// Axes of channels that the user gives, by output.
    pub axes: &'a ChannelAxes,
    /// The calibration data; none where nothing is run.
    pub samples: Option<&'a SampleSet>,
}

/// What an evaluation keeps for those behind it.
pub struct Evaluation {
    /// The samples that it was by: positions in those by content.
    pub samples: Range<usize>,
    /// What is known of the float network, and of the plan that was accepted.
    pub reference: FloatReference,
}

/// Copies of the largest tensor that are alive at a time, about: input and output of a layer in the float
/// network, and one more fake-quantized in each quantized one, of which there is one per method.
fn n_copies(n_methods: usize) -> usize {
    2 + 3 * n_methods.max(1)
}

impl<'a> Setup<'a> {
    /// The scheme, and the observer of weights.
    pub fn weight_scheme(&self) -> WeightScheme<'a> {
        WeightScheme { scheme: self.scheme, observer: &self.observers.weight.observer }
    }

    /// The range observers.
    pub fn range_observers(&self) -> Observers<'a> {
        Observers::of(self.observers)
    }

    /// How many of the samples are looked at, held-out ones included, where so many methods change layers; they are the
    /// first by content.
    pub fn n_samples(&self, samples: &SampleSet, model: &ModelProto, n_methods: usize) -> usize {
        let largest = self.value_info.largest_activation(model);
        let effort = self.options.effort;
        let limit = effort.max_bytes() / (4 * n_copies(n_methods) * largest.max(1));
        effort.n_samples(largest).min(limit).min(samples.by_content().len())
    }

    /// The samples that evaluate a change before anything is tuned, by their positions in those by content.
    ///
    /// # Errors
    /// If there is no memory for enough of them.
    pub fn evaluation_samples(
        &self,
        samples: &SampleSet,
        model: &ModelProto,
        n_methods: usize,
    ) -> Result<Range<usize>> {
        let n = self.n_samples(samples, model, n_methods);
        ensure!(n >= MIN_SAMPLES, "memory for {n} samples to evaluate by, expected {MIN_SAMPLES} or more");
        let n_held_out = n - self.options.effort.n_tune(n);
        Ok(n - n_held_out.max(n.min(MAX_EVALUATION))..n)
    }
}
