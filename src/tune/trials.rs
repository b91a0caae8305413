//! Methods tried on a plan, one on top of the other.

use super::accept::TUNING;
use super::bias_grid::BiasGrids;
use super::hook::TuningHook;
use super::methods::{BIAS, Method, Methods, Stage, ahead};
use super::{Step, Tuning};
use crate::metrics::{Gain, QuantizationError};
use crate::onnx::proto::ModelProto;
use crate::plan::{QuantPlan, RangeCandidate};
use crate::simulate::{Candidate, ForwardPass, NoHook, simulate};
use anyhow::Result;
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
    /// The errors of the plan as it was, on the held-out samples.
    pub plain: Vec<QuantizationError>,
    /// The network of all methods that were accepted.
    pub best: Option<Candidate>,
    /// The methods, in the order in which they were tried.
    pub steps: Vec<Step>,
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
        let Tuning { samples, n_tune, methods, known, .. } = self.tuning;
        let mut pending: Vec<Method> = methods.of_stage(Stage::Plan).collect();
        let mut plain = match pending.is_empty() {
            true => Some(simulate(self.model, self.plan, samples)?.errors),
            false => None,
        };
        let (mut accepted, mut best, mut steps) = (Methods::default(), None::<Candidate>, Vec::new());
        while !pending.is_empty() {
            let mut pass = ForwardPass::new(self.model, n_tune)?.evaluated_by_all().knowing(known);
            if plain.is_none() {
                pass = pass.with(Candidate::new(self.plan.clone(), 0)?, NoHook);
            }
            let mut tried = Vec::new();
            for &method in &pending {
                let methods = tried.last().unwrap_or(&accepted).with(method);
                let (candidate, hook) = self.candidate(methods)?;
                pass = pass.with(candidate, hook);
                tried.push(methods);
            }
            let mut candidates = pass.run(samples)?.into_iter();
            if plain.is_none() {
                plain = candidates.next().map(|candidate| candidate.errors);
            }
            for (candidate, methods) in candidates.zip(tried) {
                if methods != accepted.with(pending[0]) {
                    // It has a method in it that was rejected.
                    break;
                }
                let method = pending.remove(0);
                let before = best.as_ref().map(|best| &best.errors).or(plain.as_ref());
                let gain = Gain::on_held_out(before.map_or(&[], Vec::as_slice), &candidate.errors, n_tune);
                let kept = TUNING.accepts(&gain);
                let Gain { gain_db, does_harm, .. } = gain;
                steps.push(Step { method, gain_db, does_harm, kept, seconds: candidate.seconds });
                if kept {
                    (accepted, best) = (methods, Some(candidate));
                }
            }
        }
        if let Some(best) = &mut best {
            self.learn_from_all(accepted, best)?;
        }
        let mut plain = plain.unwrap_or_default();
        let best_errors = best.iter_mut().flat_map(|best| &mut best.errors);
        plain.iter_mut().chain(best_errors).for_each(|error| *error = error.from(n_tune));
        Ok(Tried { plain, best, steps })
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
        if let Some(corrected) = known.and_then(|known| known.corrected.as_ref()) {
            (best.plan, best.biases) = (corrected.plan.clone(), corrected.biases.clone());
        } else if samples.len() < FEW_SAMPLES {
            let (again, hook) = self.candidate(accepted)?;
            let pass = ForwardPass::new(self.model, samples.len())?.with(again, hook);
            if let Some(again) = pass.run(samples)?.pop() {
                (best.plan, best.biases) = (again.plan, again.biases);
            }
        }
        Ok(())
    }
}
