//! Other range observers for all activations, where they bring the outputs nearer to float.
//!
//! The squared error of a tensor treats clipped and rounded values alike. In later layers they differ: rounding errors
//! average out, clipping errors all have one sign. The effect depends on the network and is measured at its outputs.

use crate::observers::by_spelling;
use crate::plan::{Observers, decide};
use crate::simulate::Samples;
use crate::tune::accept::{Acceptance, CLIPS_LITTLE, ERRATIC, NARROW};
use crate::tune::compare::Biases;
use crate::tune::method::{Action, ChoiceContext, Chosen, Method};
use crate::tune::setup::{Evaluation, PlannedModel};
use crate::tune::variants::{Trial, Variant};
use anyhow::{Context, Result};

/// The method that tries other range observers for all activations.
pub const OBSERVER: Method = Method {
    name: "observer",
    title: "observer search",
    about: "another range observer for all activations",
    is_tried: |case| case.effort.level() > 0,
    waits: false,
    action: Action::Choice(choose),
};

/// The only observer of a table that others are tried against.
const DEFAULT: &str = "mse";
/// The other observers, each with its thresholds and the overlap of the plan below which it is tried.
const RIVALS: [(&str, Acceptance, f64); 3] = [
    ("percentile:99.999", CLIPS_LITTLE, f64::INFINITY),
    ("percentile:99.99", NARROW, f64::INFINITY),
    ("entropy", ERRATIC, POOR),
];
/// Overlap below which `entropy` is tried, which seldom gains in better networks. Figures: docs/design/observers.md.
const POOR: f64 = 0.9;

/// Tries other range observers of activations, unless the user named one. Replaces the plan and `known` by those of the
/// best observer.
fn choose(context: &ChoiceContext, planned: &mut PlannedModel, known: &mut Option<Evaluation>) -> Result<Chosen> {
    let ChoiceContext { setup, methods, calibration } = *context;
    let is_wanted =
        !setup.observers.is_given && setup.observers.activation.spelling == DEFAULT && !setup.has_given_ranges;
    let PlannedModel { model, placement, plan, .. } = &*planned;
    // Most ranges hold every value whatever the observer, as those of linear inputs in transformers do.
    let n_fixed = placement.activations.iter().filter(|quantizer| quantizer.keeps_ends()).count();
    if !is_wanted || 2 * n_fixed > placement.activations.len() {
        return Ok(Chosen::default());
    }
    let graph = model.graph()?;
    let data = setup.samples.context("there are no calibration samples")?;
    // With too few samples nothing is tuned.
    let Ok(samples) = context.samples(data, model, known.as_ref()) else { return Ok(Chosen::default()) };
    let (names, values) = (data.names(), data.values(samples.clone())?);
    let data = Samples { names: &names, values: &values };
    let reference = known.take().map(|known| known.reference);
    let mut trial = Trial::new(OBSERVER, setup, planned, data, Biases::of(methods), reference);
    let statistics = calibration.for_quantizers(placement);
    let mut tried = Vec::new();
    for (observer, acceptance, below) in RIVALS {
        if trial.figure_of_plan().is_some_and(|figure| figure >= below) {
            continue;
        }
        let activation = by_spelling(observer)?;
        let observers = Observers { activation: &activation, ..setup.range_observers() };
        let decided = decide(graph, placement, &statistics, None, setup.scheme, observers)?;
        if decided.0.activations.iter().zip(&plan.activations).all(|(other, planned)| other.params == planned.params) {
            continue;
        }
        trial.enter(Some(observer.to_string()), acceptance, || Ok(Variant::of_plan(model, placement, decided)))?;
        tried.push(observer);
    }
    let (best, outcomes, of_plan) = trial.finish();
    let (mut observer, mut reference) = (None, of_plan);
    if let Some(best) = best {
        planned.replan(best.variant.decided);
        (observer, reference) = (Some(tried[best.outcome]), Some(best.reference));
    }
    *known = reference.map(|reference| Evaluation { samples, reference });
    Ok(Chosen { outcomes, observer, ..Chosen::default() })
}
