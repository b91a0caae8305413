//! Compares variants of a plan on the same samples and keeps the best of the accepted ones.

use super::accept::Acceptance;
use super::compare::{Biases, Compared, compare_plans};
use super::method::Method;
use super::outcome::MethodOutcome;
use super::setup::{PlannedModel, Setup};
use crate::onnx::edit::ModelEdit;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::{Decided, QuantPlan};
use crate::quant::ChannelScaling;
use crate::simulate::{FloatReference, Samples};
use crate::statistics::TensorStatistics;
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::Instant;

/// A network with the same float outputs as another one, and its plan.
#[derive(Clone)]
pub struct Variant {
    /// Edits that turn the other network's model into `model`.
    pub edits: Vec<ModelEdit>,
    /// The edited model.
    pub model: ModelProto,
    /// Where the model is quantized.
    pub placement: Placement,
    /// The plan and its warnings.
    pub decided: Decided,
    /// As [`Compared::scalings`].
    pub scalings: Option<BTreeMap<String, ChannelScaling>>,
    /// New statistics of tensors that changed.
    pub statistics: BTreeMap<String, TensorStatistics>,
}

impl Variant {
    /// Makes a variant with another plan of the same model.
    pub fn of_plan(model: &ModelProto, placement: &Placement, decided: Decided) -> Variant {
        Variant {
            edits: Vec::new(),
            model: model.clone(),
            placement: placement.clone(),
            decided,
            scalings: Some(BTreeMap::new()),
            statistics: BTreeMap::new(),
        }
    }
}

/// The accepted variant with the largest gain.
pub struct Best {
    /// The variant.
    pub variant: Variant,
    /// Index of its outcome.
    pub outcome: usize,
    /// Reference values, with the variant's figures.
    pub reference: FloatReference,
    gain: f64,
}

/// Variants of one plan, tried one after the other.
pub struct Trial<'a> {
    /// The method that tries the variants.
    pub method: Method,
    /// The method's inputs.
    pub setup: Setup<'a>,
    /// The float model of the plan.
    pub model: &'a ModelProto,
    /// The plan.
    pub plan: &'a QuantPlan,
    /// The plan's placement.
    pub placement: &'a Placement,
    /// Samples by which neither the plan nor its variants were chosen.
    pub samples: Samples<'a>,
    /// The biases with which variants are compared.
    pub biases: Biases,
    /// Reference values, with the plan's figures.
    pub known: Option<FloatReference>,
    /// One outcome per variant.
    pub outcomes: Vec<MethodOutcome>,
    /// The best variant so far.
    pub best: Option<Best>,
    /// Whether more samples may turn the last rejection into an acceptance.
    pub is_open: bool,
}

impl<'a> Trial<'a> {
    /// Starts a trial for the plan of `planned`.
    pub fn new(
        method: Method,
        setup: Setup<'a>,
        planned: &'a PlannedModel,
        samples: Samples<'a>,
        biases: Biases,
        known: Option<FloatReference>,
    ) -> Trial<'a> {
        let PlannedModel { model, plan, placement, .. } = planned;
        Trial {
            method,
            setup,
            model,
            plan,
            placement,
            samples,
            biases,
            known,
            outcomes: Vec::new(),
            best: None,
            is_open: false,
        }
    }

    /// Returns the plan's own figure in the metric that decides; `None` before the first variant was measured.
    pub fn figure_of_plan(&self) -> Option<f64> {
        Some(self.outcomes.first()?.judged.as_ref()?.figures[0])
    }

    /// Measures the variant that `make` returns. Returns its gain.
    ///
    /// # Errors
    /// As [`compare_plans`], and if `make` fails.
    pub fn enter(
        &mut self,
        name: Option<String>,
        acceptance: Acceptance,
        make: impl FnOnce() -> Result<Variant>,
    ) -> Result<f64> {
        let start = Instant::now();
        let variant = make()?;
        let compared = Compared {
            models: [self.model, &variant.model],
            plans: [self.plan, &variant.decided.0],
            placements: [self.placement, &variant.placement],
            scalings: variant.scalings.as_ref(),
            table: self.setup.weight_scheme(),
            outputs: self.setup.outputs,
            prepared: self.setup.prepared,
            stage: (self.setup.progress, self.method.title),
            biases: self.biases,
        };
        let (change, [of_plan, reference]) = compare_plans(compared, self.samples, self.known.as_ref())?;
        self.known = Some(of_plan);
        let gain = change.gain();
        self.is_open = acceptance.leaves_open(&change);
        let outcome = MethodOutcome::judged(self.method.name, &change, acceptance, self.samples.len());
        if outcome.accepted && self.best.as_ref().is_none_or(|best| gain > best.gain) {
            self.best = Some(Best { variant, outcome: self.outcomes.len(), reference, gain });
        }
        let seconds = start.elapsed().as_secs_f64();
        self.outcomes.push(MethodOutcome { variant: name, seconds, ..outcome });
        Ok(gain)
    }

    /// Returns the best variant, all outcomes, and the plan's reference values.
    pub fn finish(mut self) -> (Option<Best>, Vec<MethodOutcome>, Option<FloatReference>) {
        if let Some(best) = &self.best {
            let name = self.outcomes[best.outcome].variant.clone().unwrap_or_default();
            let others = self.outcomes.iter_mut().enumerate().filter(|(i, _)| *i != best.outcome);
            others.for_each(|(_, other)| other.reject_for(&name));
        }
        (self.best, self.outcomes, self.known)
    }
}
