//! Changes that come before the tuning of layers: of the float model, then of the whole plan.

use super::accept::{CHANGE, INSERTION};
use super::compare::Biases;
use super::method::{Action, ChoiceContext, Chosen, FloatProposal, Method, ModelContext};
use super::methods::{before_plan, of_plan};
use super::outcome::MethodOutcome;
use super::setup::{Evaluation, PlannedModel, Setup};
use super::variants::{Best, Trial, Variant};
use crate::calibrate::{CalibrationStatistics, ScaledTensor};
use crate::onnx::edit::edited;
use crate::onnx::proto::ModelProto;
use crate::place::{Placement, place};
use crate::plan::decide;
use crate::quant::ChannelScaling;
use crate::simulate::Samples;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Changes of the float model that methods propose before calibration.
#[derive(Default)]
pub struct Proposals(Vec<Proposed>);

struct Proposed {
    method: Method,
    /// The placement on the changed model, and the changes.
    proposal: Result<(Placement, FloatProposal)>,
    seconds: f64,
}

/// Asks each method that changes the float model for a proposal. Without data there are none.
pub fn propose(setup: Setup, model: &ModelProto, placement: &Placement) -> Proposals {
    let mut proposals = Proposals::default();
    for method in before_plan(&setup, placement).iter() {
        let (Action::FloatModel(propose), Some(_)) = (method.action, setup.samples) else { continue };
        let start = Instant::now();
        let context = ModelContext { setup, model, placement };
        let proposal = propose(&context).and_then(|proposal| proposals.apart_from(proposal));
        let proposal = proposal.and_then(|proposal| {
            // Other values of constants move no quantizer.
            let placement = match proposal.inserts() {
                false => placement.clone(),
                true => {
                    let changed = edited(model, &proposal.edits)?;
                    place(changed.graph()?, setup.value_info, setup.scheme, setup.selection)
                }
            };
            Ok((placement, proposal))
        });
        proposals.0.push(Proposed { method, proposal, seconds: start.elapsed().as_secs_f64() });
    }
    proposals
}

impl Proposals {
    /// Returns the proposal; fails if an earlier proposal scales one of its tensors.
    fn apart_from(&self, proposal: FloatProposal) -> Result<FloatProposal> {
        match proposal.scalings.keys().find(|tensor| self.scales(tensor)) {
            Some(tensor) => bail!("tensor `{tensor}` is scaled by another method"),
            None => Ok(proposal),
        }
    }

    fn proposals(&self) -> impl Iterator<Item = &(Placement, FloatProposal)> {
        self.0.iter().filter_map(|proposed| proposed.proposal.as_ref().ok())
    }

    /// Whether any proposal scales the tensor.
    fn scales(&self, tensor: &str) -> bool {
        self.proposals().any(|(_, proposal)| proposal.scalings.contains_key(tensor))
    }

    /// Returns the tensors that calibration observes with scaled channels as well.
    pub fn scaled(&self) -> Vec<ScaledTensor> {
        let of_proposal = |(_, proposal): &(Placement, FloatProposal)| {
            let scaled = |(name, scaling): (&String, &ChannelScaling)| ScaledTensor {
                name: name.clone(),
                source: proposal.source_of(name).to_string(),
                scaling: scaling.clone(),
            };
            proposal.scalings.iter().map(scaled).collect::<Vec<_>>()
        };
        self.proposals().flat_map(of_proposal).collect()
    }

    /// Returns the tensors of the unchanged model that calibration must observe for these proposals.
    pub fn observed(&self) -> Vec<String> {
        let tensors = self.proposals().flat_map(|(placement, proposal)| {
            placement.activations.iter().map(|quantizer| proposal.source_of(&quantizer.tensor).to_string())
        });
        tensors.collect()
    }

    /// Applies each proposal that is accepted to the model and its plan, and updates `calibration` to match. Returns
    /// the outcomes, and the last evaluation.
    pub fn evaluate(
        self,
        setup: Setup,
        planned: &mut PlannedModel,
        calibration: &mut CalibrationStatistics,
    ) -> (Vec<MethodOutcome>, Option<Evaluation>) {
        let (mut outcomes, mut known) = (Vec::new(), None);
        let is_of_use =
            |proposed: &Proposed| proposed.proposal.as_ref().map_or(true, |(_, proposal)| !proposal.is_empty());
        for Proposed { method, proposal, seconds } in self.0.into_iter().filter(is_of_use) {
            let start = Instant::now();
            let attempt =
                proposal.and_then(|proposal| attempt(setup, method, planned, calibration, proposal, &mut known));
            let outcome = attempt.unwrap_or_else(|error| {
                planned.warnings.push(format!("{} skipped: {error:#}", method.title));
                MethodOutcome::skipped(method.name, format!("{error:#}"))
            });
            outcomes.push(MethodOutcome { seconds: seconds + start.elapsed().as_secs_f64(), ..outcome });
        }
        (outcomes, known)
    }
}

/// Evaluates a proposal. If it is accepted, `planned` and `calibration` become those of the changed model.
fn attempt(
    setup: Setup,
    method: Method,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
    (changed_placement, proposal): (Placement, FloatProposal),
    known: &mut Option<Evaluation>,
) -> Result<MethodOutcome> {
    let acceptance = if proposal.inserts() { INSERTION } else { CHANGE };
    let FloatProposal { edits, scalings, details, notes } = proposal;
    if edits.is_empty() {
        return Ok(MethodOutcome { notes, ..MethodOutcome::skipped(method.name, "nothing to change".to_string()) });
    }
    let PlannedModel { model, placement, plan, .. } = &*planned;
    let data = setup.samples.context("there are no calibration samples")?;
    let methods = of_plan(&setup, placement, plan);
    let evaluated_by = setup.evaluation_samples(data, model, methods.n_of_layers())?;
    let changed = edited(model, &edits)?;
    let statistics = calibration.of_scaled(&changed_placement, &scalings);
    let observers = setup.range_observers();
    let decided = decide(changed.graph()?, &changed_placement, &statistics, None, setup.scheme, observers)?;
    let names = data.names();
    let variant = Variant {
        edits,
        model: changed,
        placement: changed_placement,
        decided,
        scalings: Some(scalings),
        statistics: BTreeMap::new(),
    };
    let try_on = |positions: &Range<usize>, reference| {
        let values = data.values(positions.clone())?;
        let samples = Samples { names: &names, values: &values };
        let mut trial = Trial::new(method, setup, planned, samples, Biases::of(&methods), reference);
        trial.enter(None, acceptance, || Ok(variant.clone()))?;
        anyhow::Ok((trial.is_open, trial.finish()))
    };
    let reference = known.take().map(|known| known.reference);
    let (is_open, (mut best, mut outcomes, mut reference)) = try_on(&evaluated_by, reference)?;
    let more = setup.more_samples(data, model, methods.n_of_layers(), &evaluated_by).filter(|_| is_open);
    if let Some(more) = &more {
        (_, (best, outcomes, _)) = try_on(more, None)?;
    }
    if let Some(Best { variant, reference: of_changed, .. }) = best {
        planned.replan(variant.decided);
        planned.edit(variant.edits)?;
        planned.placement = variant.placement;
        calibration.take_scaled(&variant.scalings.unwrap_or_default());
        // Later evaluations use the usual samples, so a reference over more samples is dropped.
        reference = Some(of_changed).filter(|_| more.is_none());
    }
    *known = reference.map(|reference| Evaluation { samples: evaluated_by, reference });
    let outcome = outcomes.pop().context("internal error: a change that was not judged")?;
    Ok(MethodOutcome { details, notes, ..outcome })
}

/// Runs the methods that choose among plans, one after the other. `known` is the evaluation of the current plan. Warns
/// where a network cannot be run node by node.
pub fn choose(
    setup: Setup,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
    known: &mut Option<Evaluation>,
) -> Chosen {
    let mut all = Chosen::default();
    if setup.samples.is_none() || planned.plan.activations.is_empty() || planned.plan.weights.is_empty() {
        return all;
    }
    let methods = of_plan(&setup, &planned.placement, &planned.plan);
    for method in methods.iter() {
        let Action::Choice(choose) = method.action else { continue };
        let context = ChoiceContext { setup, methods: &methods, calibration };
        let Chosen { outcomes, observer, statistics } = choose(&context, planned, known).unwrap_or_else(|error| {
            planned.warnings.push(format!("{} skipped: {error:#}", method.title));
            let outcomes = vec![MethodOutcome::skipped(method.name, format!("{error:#}"))];
            Chosen { outcomes, ..Chosen::default() }
        });
        calibration.set_statistics(statistics);
        all.outcomes.extend(outcomes);
        all.observer = observer.or(all.observer);
    }
    all
}
