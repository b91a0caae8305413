//! Other range observers for all activations, where the outputs are nearer to float with one of them.
//!
//! The squared error of a tensor counts a value that is clipped like one that is rounded. Behind it they differ: roundings
//! average out, and what a range cuts off is of one sign. How much that matters is the network's affair, and is
//! measured at its outputs.

use crate::observers::by_spelling;
use crate::plan::{Decided, Observers, decide};
use crate::simulate::{FloatReference, Samples};
use crate::tune::accept::{Acceptance, CHANGE, NARROW_OBSERVER};
use crate::tune::compare::{Biases, Compared, compare_plans};
use crate::tune::method::{Action, ChoiceContext, Chosen, Method};
use crate::tune::outcome::MethodOutcome;
use crate::tune::setup::{Evaluation, PlannedModel};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::time::Instant;

/// Another range observer for all activations, where the outputs are nearer to float with it.
pub const OBSERVER: Method = Method {
    name: "observer",
    title: "observer search",
    about: "another range observer for all activations",
    is_tried: |case| case.effort.level() > 0,
    waits: false,
    action: Action::Choice(choose),
};

/// The range observer of a table that others are tried against.
const DEFAULT: &str = "mse";
/// The others, and when each is accepted.
const RIVALS: [(&str, Acceptance); 2] = [("percentile:99.999", CHANGE), ("percentile:99.99", NARROW_OBSERVER)];

/// Tries other range observers of activations than the table's, unless one was asked for, and replaces the plan and what
/// is `known` by those of the best.
fn choose(context: &ChoiceContext, planned: &mut PlannedModel, known: &mut Option<Evaluation>) -> Result<Chosen> {
    let ChoiceContext { setup, methods, calibration } = *context;
    let is_wanted =
        !setup.observers.is_given && setup.observers.activation.spelling == DEFAULT && !setup.has_given_ranges;
    if !is_wanted {
        return Ok(Chosen::default());
    }
    let PlannedModel { model, placement, plan, .. } = &*planned;
    let graph = model.graph.as_ref().context("model has no graph")?;
    let data = setup.samples.context("nothing was observed")?;
    // Else there are too few, as for all that is tuned.
    let Ok(samples) = context.samples(data, model, known.as_ref()) else { return Ok(Chosen::default()) };
    let (names, values) = (data.names(), data.values(samples.clone())?);
    let statistics = calibration.of(placement);
    let mut of_default: Option<FloatReference> = None;
    let mut best: Option<Rival> = None;
    let mut tried = Vec::new();
    for (observer, acceptance) in RIVALS {
        let start = Instant::now();
        let activation = by_spelling(observer)?;
        let observers = Observers { activation: &activation, ..setup.range_observers() };
        let decided = decide(graph, placement, &statistics, None, setup.scheme, observers)?;
        if decided.0.activations.iter().zip(&plan.activations).all(|(other, planned)| other.params == planned.params) {
            // No range moves, as those of transformers, which hold every value.
            continue;
        }
        let compared = Compared {
            models: [model; 2],
            plans: [plan, &decided.0],
            placements: [placement; 2],
            scalings: Some(&BTreeMap::new()),
            table: setup.weight_scheme(),
            axes: setup.axes,
            biases: Biases::of(methods),
        };
        let before = of_default.as_ref().or(known.as_ref().map(|known| &known.reference));
        let data = Samples { names: &names, values: &values };
        let (change, [reference, of_rival]) = compare_plans(compared, data, before)?;
        of_default = Some(reference);
        let gain = change.gain();
        let outcome = MethodOutcome::judged(OBSERVER.name, &change, acceptance, samples.len());
        if outcome.accepted && best.as_ref().is_none_or(|best| gain > best.gain) {
            best = Some(Rival { observer, decided, gain, reference: of_rival });
        }
        let seconds = start.elapsed().as_secs_f64();
        tried.push(MethodOutcome { variant: Some(observer.to_string()), seconds, ..outcome });
    }
    let (mut observer, mut reference) = (None, of_default);
    if let Some(best) = best {
        planned.replan(best.decided);
        (observer, reference) = (Some(best.observer), Some(best.reference));
    }
    *known = reference.map(|reference| Evaluation { samples, reference });
    let is_other = |tried: &&mut MethodOutcome| tried.accepted && tried.variant.as_deref() != observer;
    for other in tried.iter_mut().filter(is_other) {
        (other.accepted, other.reason) = (false, Some(format!("{} gains more", observer.unwrap_or(DEFAULT))));
    }
    Ok(Chosen { outcomes: tried, observer, ..Chosen::default() })
}

/// Another range observer that is better than the table's.
struct Rival {
    observer: &'static str,
    decided: Decided,
    /// What the network gains with it.
    gain: f64,
    /// What is known of it by judging.
    reference: FloatReference,
}
