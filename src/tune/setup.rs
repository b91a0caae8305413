//! What all methods go by besides the model and its plan, and which samples they look at.

use super::effort::Effort;
use super::methods::{Case, EQUALIZE, Methods, RANGES, Stage};
use super::{Tuned, Tuning, WeightScheme, tune};
use crate::calibrate::SampleSet;
use crate::observers;
use crate::onnx::inputs::Shapes;
use crate::onnx::proto::ModelProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::{Placement, Selection};
use crate::plan::{Observers, QuantPlan};
use crate::scheme::Scheme;
use crate::simulate::{FloatReference, Samples};
use anyhow::{Result, ensure};
use std::ops::Range;

/// Fewest samples to learn from and to evaluate by. Bias correction and learned rounding see many positions of each.
pub const MIN_SAMPLES: usize = 4;
/// Samples that evaluate more than a few held-out ones, where these are few.
const MAX_EVALUATION: usize = 32;

/// What is tried for better parameters.
#[derive(Debug, Clone, Copy)]
pub struct TuningOptions {
    /// How much work goes into it.
    pub effort: Effort,
    /// What it goes into, where that is not the effort's own choice.
    pub methods: Option<Methods>,
}

impl TuningOptions {
    /// Whether samples are looked at more than once.
    pub fn looks_again(&self) -> bool {
        self.effort.looks_again() || self.methods.is_some()
    }
}

/// A float model, where it is quantized, and with which parameters.
pub struct PlannedModel {
    /// The prepared model.
    pub model: ModelProto,
    /// Where it is quantized.
    pub placement: Placement,
    /// With which parameters.
    pub plan: QuantPlan,
}

/// What methods go by.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The backend's.
    pub scheme: &'a Scheme,
    /// Types and shapes of the model's tensors.
    pub value_info: &'a ValueInfos,
    /// Shapes of inputs that the model leaves open.
    pub shapes: &'a Shapes,
    /// What ranges are by.
    pub observers: &'a observers::ObserverOptions,
    /// Whether some ranges of activations are given.
    pub has_given_ranges: bool,
    /// What is tried.
    pub options: TuningOptions,
    /// Which nodes stay float because the user says so.
    pub selection: &'a Selection,
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
fn n_copies(methods: Methods) -> usize {
    2 + 3 * methods.of_stage(Stage::Plan).count().max(1)
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

    /// Whether the float model is equalized, before there is a plan.
    pub fn equalizes(&self) -> bool {
        let TuningOptions { effort, methods } = self.options;
        let tried = || Methods::tried(Case { effort, few_bits: false, coarse: false });
        methods.unwrap_or_else(tried).contains(EQUALIZE)
    }

    /// What to try for a plan. Ranges are refined where range observers are to be chosen from.
    pub fn methods(&self, plan: &QuantPlan) -> Methods {
        let few_bits = plan.weights.iter().any(|weight| weight.qtype.bits < 7);
        let methods = self.options.methods.unwrap_or_else(|| {
            let coarse = plan.weights.iter().filter(|weight| weight.is_coarse()).count();
            let coarse = 2 * coarse > plan.weights.len();
            Methods::tried(Case { effort: self.options.effort, few_bits, coarse })
        });
        let chooses = plan.activations.iter().any(|planned| !planned.candidates.is_empty());
        if chooses { methods.with(RANGES) } else { methods }
    }

    /// How many of the samples are looked at, held-out ones included; they are the first by content.
    pub fn n_samples(&self, samples: &SampleSet, model: &ModelProto, methods: Methods) -> usize {
        let largest = self.value_info.largest_activation(model);
        let effort = self.options.effort;
        let limit = effort.max_bytes() / (4 * n_copies(methods) * largest.max(1));
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
        plan: &QuantPlan,
    ) -> Result<Range<usize>> {
        let n = self.n_samples(samples, model, self.methods(plan));
        ensure!(n >= MIN_SAMPLES, "memory for {n} samples to evaluate by, expected {MIN_SAMPLES} or more");
        let n_held_out = n - self.options.effort.n_tune(n);
        Ok(n - n_held_out.max(n.min(MAX_EVALUATION))..n)
    }
}

/// Tunes the plan as far as the options ask for. A graph that cannot be run node by node keeps its plan,
/// with a warning. Without data nothing is tuned. `known` is an earlier evaluation of the plan.
///
/// # Errors
/// If a sample cannot be loaded.
pub fn tune_planned(setup: Setup, planned: &mut PlannedModel, known: Option<&Evaluation>) -> Result<Option<Tuned>> {
    let Some(samples) = setup.samples else { return Ok(None) };
    let methods = setup.methods(&planned.plan);
    let n = setup.n_samples(samples, &planned.model, methods);
    if n == 0 || methods.is_empty() {
        return Ok(None);
    }
    let (names, values) = (samples.names(), samples.values(0..n)?);
    let known = known.filter(|known| known.samples == (0..n));
    let tuning = Tuning {
        table: setup.weight_scheme(),
        samples: Samples { names: &names, values: &values },
        n_tune: setup.options.effort.n_tune(n),
        methods,
        known: known.map(|known| &known.reference),
    };
    let PlannedModel { model, placement, plan } = planned;
    Ok(tune(model, plan, placement, tuning).unwrap_or_else(|error| {
        plan.warnings.push(format!("tuning skipped: {error:#}"));
        None
    }))
}
