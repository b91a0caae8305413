//! Methods tried on a plan, one on top of the other.

use super::accept::CHANGE;
use super::bias_grid::BiasGrids;
use super::hook::TuningHook;
use super::methods::{BIAS, Method, Methods, Stage, ahead};
use super::{MethodOutcome, Tuning};
use crate::metrics::{Gain, Measurement};
use crate::onnx::proto::ModelProto;
use crate::plan::{QuantPlan, RangeCandidate};
use crate::simulate::{Candidate, FloatReference, ForwardPass, NoHook};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// With fewer samples, what was accepted learns again from all of them, the held-out ones too.
const FEW_SAMPLES: usize = 8;

/// What methods are tried on.
pub struct Trials<'a> {
    model: &'a ModelProto,
    plan: &'a QuantPlan,
    grids: &'a BiasGrids<'a>,
    tuning: Tuning<'a>,
    /// Ranges of groups of activations that are decided before.
    decided: BTreeMap<usize, RangeCandidate>,
}

/// What trials lead to.
pub struct Tried {
    /// The plan as it was, on the held-out samples.
    pub plain: Measurement,
    /// The network of all methods that were accepted.
    pub best: Option<Candidate>,
    /// The methods, in the order in which they were tried.
    pub methods: Vec<MethodOutcome>,
    /// What is known of the float network.
    pub reference: FloatReference,
}

impl<'a> Trials<'a> {
    /// On `plan`, where it is quantized in `model`.
    ///
    /// # Errors
    /// If a node cannot be run by itself; the message names it.
    pub fn new(
        model: &'a ModelProto,
        plan: &'a QuantPlan,
        grids: &'a BiasGrids<'a>,
        tuning: Tuning<'a>,
    ) -> Result<Trials<'a>> {
        let Tuning { samples, n_tune, methods, known, .. } = tuning;
        let touches = methods.touches();
        let decided = match touches.ranges {
            true => ahead(model, plan, samples.first(n_tune), touches.corrects_biases())?,
            false => BTreeMap::new(),
        };
        let known = known.filter(|_| methods.of_stage(Stage::Plan).eq([BIAS]));
        Ok(Trials { model, plan, grids, tuning: Tuning { known, ..tuning }, decided })
    }

    /// Tries each method on top of all before it, in one pass; where one is rejected, the rest pass again without it.
    ///
    /// # Errors
    /// If a node cannot be run by itself; the message names it.
    pub fn run(&self) -> Result<Tried> {
        let Tuning { samples, n_tune, methods, .. } = self.tuning;
        let mut pending: Vec<Method> = methods.of_stage(Stage::Plan).collect();
        let mut reference = self.tuning.known.cloned();
        let (mut plain, mut best) = (None::<Measurement>, None::<Candidate>);
        let (mut accepted, mut outcomes) = (Methods::default(), Vec::new());
        while plain.is_none() || !pending.is_empty() {
            let mut pass = self.pass(n_tune)?.knowing(self.tuning.known);
            if plain.is_none() {
                pass = pass.with(Candidate::new(self.plan.clone(), n_tune)?, NoHook);
            }
            let mut tried = Vec::new();
            for &method in &pending {
                let methods = tried.last().unwrap_or(&accepted).with(method);
                let (candidate, hook) = self.candidate(methods)?;
                pass = pass.with(candidate, hook);
                tried.push(methods);
            }
            let (candidates, kept) = pass.run_and_keep(samples)?;
            reference.get_or_insert(kept);
            let mut candidates = candidates.into_iter();
            if plain.is_none() {
                plain = candidates.next().and_then(|candidate| candidate.measured);
            }
            let plain = plain.as_ref().context("internal error: a pass that measured nothing")?;
            for (candidate, methods) in candidates.zip(tried) {
                if methods != accepted.with(pending[0]) {
                    // It has a method in it that was rejected.
                    break;
                }
                let method = pending.remove(0);
                let before = best.as_ref().and_then(|best| best.measured.as_ref()).unwrap_or(plain);
                let after = candidate.measured.as_ref().context("internal error: a candidate that was not measured")?;
                let outcome = MethodOutcome::judged(method.name, &Gain::of(before, after), CHANGE, after.n_samples());
                outcomes.push(MethodOutcome { seconds: candidate.seconds, ..outcome });
                if outcomes.last().is_some_and(|outcome| outcome.accepted) {
                    (accepted, best) = (methods, Some(candidate));
                }
            }
        }
        if let Some(best) = &mut best {
            self.learn_from_all(accepted, best)?;
        }
        let plain = plain.context("internal error: a plan that was not measured")?;
        Ok(Tried { plain, best, methods: outcomes, reference: reference.unwrap_or_default() })
    }

    /// A pass over the model.
    fn pass(&self, n_tune: usize) -> Result<ForwardPass<'a>> {
        Ok(ForwardPass::new(self.model, n_tune)?.with_axes(self.tuning.axes))
    }

    /// The network with these methods at work on it.
    fn candidate(&self, methods: Methods) -> Result<(Candidate, TuningHook<'a>)> {
        let (mut candidate, mut hook) = (Candidate::new(self.plan.clone(), 0)?, TuningHook::new(methods, self.grids));
        hook.decide(&mut candidate, &self.decided);
        Ok((candidate, hook))
    }

    /// Gives what was accepted the plan and biases that all samples lead to, where these are known or samples are few.
    fn learn_from_all(&self, accepted: Methods, best: &mut Candidate) -> Result<()> {
        let Tuning { samples, known, .. } = self.tuning;
        let measured = known.and_then(|known| known.measured.as_ref());
        if let Some(corrected) = measured.and_then(|measured| measured.corrected.as_ref()) {
            (best.plan, best.biases) = (corrected.plan.clone(), corrected.biases.clone());
        } else if samples.len() < FEW_SAMPLES {
            let (again, hook) = self.candidate(accepted)?;
            let pass = self.pass(samples.len())?.with(again, hook);
            if let Some(again) = pass.run(samples)?.pop() {
                (best.plan, best.biases) = (again.plan, again.biases);
            }
        }
        Ok(())
    }
}
