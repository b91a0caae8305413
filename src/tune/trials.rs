//! Tries methods on a plan, each on top of those accepted before.

use super::accept::CHANGE;
use super::method::{Hooks, LayerContext, Memo, Method, Methods};
use super::methods::bias::BIAS;
use super::methods::local_bias::LOCAL_BIAS;
use super::outcome::MethodOutcome;
use super::setup::PlannedModel;
use super::tuning::Tuning;
use crate::diag::count;
use crate::metrics::{Gain, Measurement};
use crate::simulate::{Candidate, FloatReference, ForwardPass, NoHook};
use anyhow::{Context, Result};

/// Number of samples below which accepted methods learn again from all samples, held-out ones included.
const FEW_SAMPLES: usize = 8;

/// A plan and the methods to try on it.
pub struct Trials<'a> {
    planned: &'a PlannedModel,
    tuning: Tuning<'a>,
    /// The methods of `tuning` that change layers.
    methods: Methods,
    kept: Memo,
}

/// The result of the trials.
pub struct Tried {
    /// Figures of the plan before tuning, on the held-out samples.
    pub plain: Measurement,
    /// The network with all accepted methods.
    pub best: Option<Candidate>,
    /// Outcomes of the methods, in the order in which they were tried.
    pub methods: Vec<MethodOutcome>,
    /// Reference values of the float network.
    pub reference: FloatReference,
    /// Whether more samples may turn a rejection into an acceptance.
    pub is_open: bool,
}

impl<'a> Trials<'a> {
    /// Prepares trials of the methods in `tuning` on a plan.
    pub fn new(planned: &'a PlannedModel, tuning: Tuning<'a>) -> Trials<'a> {
        let methods = tuning.methods.of_layers();
        Trials { planned, tuning, methods, kept: Memo::default() }
    }

    /// Tries each method on top of all accepted methods before it. Methods share a pass unless one of them waits. After
    /// a rejection, the methods behind the rejected one run again without it. Fails if a node cannot be run by itself;
    /// the message names it.
    pub fn run(&self) -> Result<Tried> {
        let Tuning { samples, n_tune, .. } = self.tuning;
        // So few held-out samples do not tell two bias corrections apart.
        let is_tried = |method: &Method| samples.len() >= FEW_SAMPLES || *method != LOCAL_BIAS;
        let (mut pending, untried): (Vec<Method>, Vec<Method>) = self.methods.iter().partition(is_tried);
        // Other methods need more of the float network than the reference holds.
        let known = self.tuning.known.filter(|_| pending == [BIAS]);
        let mut reference = known.cloned();
        let (mut plain, mut best) = (None::<Measurement>, None::<Candidate>);
        let reason = format!("found {}, expected {FEW_SAMPLES} or more", count(samples.len(), "sample"));
        let mut outcomes: Vec<MethodOutcome> =
            untried.iter().map(|method| MethodOutcome::skipped(method.name, reason.clone())).collect();
        let (mut accepted, mut is_open) = (Methods::default(), false);
        while plain.is_none() || !pending.is_empty() {
            let mut tried: Vec<LayerContext> = Vec::new();
            let joins = |method: &&Method| !method.waits && !pending[0].waits;
            let n_together = 1 + pending.iter().skip(1).take_while(joins).count();
            for &method in pending.iter().take(n_together) {
                let methods = tried.last().map_or(&accepted, |last| &last.methods).with(method, &self.methods);
                tried.push(self.context(methods));
            }
            let titles: Vec<&str> = pending.iter().take(n_together).map(|method| method.title).collect();
            let stage = if titles.is_empty() { "comparison".to_string() } else { titles.join(", ") };
            let of_earlier = reference.as_ref().filter(|_| pending == [BIAS] && accepted.is_empty());
            let known = known.or(of_earlier);
            let mut pass = self.pass(n_tune)?.with_reference(known).reporting(self.tuning.progress, &stage);
            if plain.is_none() {
                pass = pass.with(Candidate::new(self.planned.plan.clone(), n_tune)?, NoHook);
            }
            for context in &tried {
                pass = pass.with(Candidate::new(self.planned.plan.clone(), 0)?, Hooks::of(context)?);
            }
            let (candidates, float) = pass.run_and_keep(samples)?;
            reference.get_or_insert(float);
            let mut candidates = candidates.into_iter();
            if plain.is_none() {
                plain = candidates.next().and_then(|candidate| candidate.measured);
            }
            let plain = plain.as_ref().context("internal error: a pass that measured nothing")?;
            for (candidate, LayerContext { methods, .. }) in candidates.zip(tried) {
                if methods != accepted.with(pending[0], &self.methods) {
                    // This candidate includes a rejected method.
                    break;
                }
                let method = pending.remove(0);
                let before = best.as_ref().and_then(|best| best.measured.as_ref()).unwrap_or(plain);
                let after = candidate.measured.as_ref().context("internal error: a candidate that was not measured")?;
                let gain = Gain::of(before, after);
                let outcome = MethodOutcome::judged(method.name, &gain, CHANGE, after.n_samples());
                is_open |= !outcome.accepted && CHANGE.leaves_open(&gain);
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
        Ok(Tried { plain, best, methods: outcomes, reference: reference.unwrap_or_default(), is_open })
    }

    /// Starts a forward pass over the model that learns from the first `n_tune` samples.
    fn pass(&self, n_tune: usize) -> Result<ForwardPass<'_>> {
        let Tuning { outputs, prepared, .. } = self.tuning;
        Ok(ForwardPass::new(&self.planned.model, n_tune)?.evaluated_with(outputs).sharing(prepared))
    }

    /// Returns the inputs of `methods`.
    fn context(&self, methods: Methods) -> LayerContext<'_> {
        let PlannedModel { model, placement, plan, .. } = self.planned;
        let Tuning { table, samples, n_tune, .. } = self.tuning;
        LayerContext { model, placement, plan, table, samples: samples.first(n_tune), methods, kept: &self.kept }
    }

    /// Replaces the plan and biases of `best` by a plan and biases learned from all samples, where an earlier
    /// evaluation has them or samples are few.
    fn learn_from_all(&self, accepted: Methods, best: &mut Candidate) -> Result<()> {
        let Tuning { samples, known, .. } = self.tuning;
        let is_corrected = accepted.contains(BIAS.name) && accepted.iter().all(|it| [LOCAL_BIAS, BIAS].contains(&it));
        let measured = known.filter(|_| is_corrected).and_then(|known| known.measured.as_ref());
        if let Some(corrected) = measured.and_then(|measured| measured.corrected.as_ref()) {
            (best.plan, best.biases) = (corrected.plan.clone(), corrected.biases.clone());
        } else if samples.len() < FEW_SAMPLES {
            let context = self.context(accepted);
            let again = Candidate::new(self.planned.plan.clone(), 0)?;
            let pass = self.pass(samples.len())?.with(again, Hooks::of(&context)?);
            if let Some(again) = pass.run(samples)?.pop() {
                (best.plan, best.biases) = (again.plan, again.biases);
            }
        }
        Ok(())
    }
}
