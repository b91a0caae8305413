//! Other range observers for all activations, where the outputs are nearer to float with one of them.
//!
//! The squared error of a tensor counts a value that is clipped like one that is rounded. Behind it they differ: roundings
//! average out, and what a range cuts off is of one sign. How much that matters is the network's affair, and is
//! measured at its outputs.

use super::{Method, Stage, Touches};
use crate::calibrate::CalibrationStatistics;
use crate::metrics::{Gain, QuantizationError};
use crate::observers::{Observer, by_spelling};
use crate::plan::{Observers, QuantPlan, decide};
use crate::simulate::{FloatReference, Samples};
use crate::tune::accept::{Acceptance, NARROW_OBSERVER, TUNING, WIDE_OBSERVER};
use crate::tune::{Compared, Comparison, Evaluation, PlannedModel, Setup, compare_plans};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// Another range observer for all activations, where the outputs are nearer to float with it.
pub const OBSERVER: Method = Method {
    name: "observer",
    title: "observer search",
    about: "another range observer for all activations",
    stage: Stage::Observer,
    is_tried: |case| case.effort.level() > 0,
    needs: &[],
    touches: Touches::NONE,
    hook: None,
};

/// The range observer of a table that others are tried against.
const DEFAULT: &str = "mse";
/// The others, and when each is accepted.
const RIVALS: [(&str, Acceptance); 2] = [("percentile:99.999", WIDE_OBSERVER), ("percentile:99.99", NARROW_OBSERVER)];

/// How the range observer of activations was chosen.
#[derive(Debug, Clone, Serialize)]
pub struct ObserverChoice {
    /// What ranges are by in the end.
    pub observer: String,
    /// What they were by, as the table says.
    pub table: String,
    /// Samples that evaluated, with biases that were corrected on them where biases will be.
    pub n_judges: usize,
    /// What was tried besides the table's.
    pub tried: Vec<TriedObserver>,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

/// A range observer that was tried in place of the table's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TriedObserver {
    /// The range observer, with its options.
    pub observer: String,
    /// How much less quantization error the outputs have with it than with the table's, in dB.
    pub gain_db: f64,
    /// How far that is a matter of the samples, in dB: one standard deviation.
    pub chance_db: f64,
}

impl ObserverChoice {
    /// What became of one that was tried.
    pub fn outcome(&self, tried: &TriedObserver) -> &'static str {
        let TriedObserver { observer, gain_db, chance_db } = tried;
        let rival = RIVALS.iter().find(|(name, _)| name == observer);
        let doubt = rival.map_or(0.0, |(_, acceptance)| acceptance.deviations * chance_db);
        match *observer == self.observer {
            true => "accepted",
            false if *gain_db > 0.0 && *gain_db <= doubt => "rejected as below two standard deviations",
            false => "rejected",
        }
    }

    /// The range observer.
    ///
    /// # Errors
    /// None for those that are tried.
    pub fn chosen(&self) -> Result<Observer> {
        by_spelling(&self.observer)
    }
}

/// Tries other range observers of activations than the table's, unless one was asked for, and replaces the plan and what
/// is `known` by those of the best. Where a network cannot be run node by node the plan gets a warning.
pub fn choose_observer(
    setup: Setup,
    planned: &mut PlannedModel,
    calibration: &CalibrationStatistics,
    known: &mut Option<Evaluation>,
) -> Option<ObserverChoice> {
    let plan = &planned.plan;
    let wanted = setup.methods(plan).contains(OBSERVER)
        && !setup.observers.is_given
        && setup.observers.activation.spelling == DEFAULT
        && !setup.has_given_ranges
        && setup.samples.is_some();
    if !wanted || plan.activations.is_empty() || plan.weights.is_empty() {
        return None;
    }
    attempt(setup, planned, calibration, known).unwrap_or_else(|error| {
        planned.plan.warnings.push(format!("observer search skipped: {error:#}"));
        None
    })
}

fn attempt(
    setup: Setup,
    planned: &mut PlannedModel,
    calibration: &CalibrationStatistics,
    known: &mut Option<Evaluation>,
) -> Result<Option<ObserverChoice>> {
    let PlannedModel { model, placement, plan } = planned;
    let (model, placement) = (&*model, &*placement);
    let start = Instant::now();
    let graph = model.graph.as_ref().context("model has no graph")?;
    let data = setup.samples.context("nothing was observed")?;
    let samples = known.as_ref().map(|known| Ok(known.samples.clone()));
    let samples = samples.unwrap_or_else(|| setup.evaluation_samples(data, model, plan));
    // Else there are too few, as for all that is tuned.
    let Ok(samples) = samples else { return Ok(None) };
    let (names, values) = (data.names(), data.values(samples.clone())?);
    let statistics = calibration.of(placement);
    let corrected = setup.methods(plan).touches().corrects_biases();
    let mut of_default: Option<FloatReference> = None;
    let mut best: Option<Rival> = None;
    let mut tried = Vec::new();
    for (observer, acceptance) in RIVALS {
        let activation = by_spelling(observer)?;
        let observers = Observers { activation: &activation, ..setup.range_observers() };
        let rival = decide(graph, placement, &statistics, None, setup.scheme, observers)?;
        let compared = Compared {
            models: [model; 2],
            plans: [plan, &rival],
            placement,
            scalings: Some(&BTreeMap::new()),
            table: setup.weight_scheme(),
            corrected,
        };
        let before = of_default.as_ref().or(known.as_ref().map(|known| &known.reference));
        let samples = Samples { names: &names, values: &values };
        let comparison = compare_plans(compared, samples, before)?;
        let Comparison { gain, errors: [_, errors], references: [reference, of_rival] } = comparison;
        of_default = reference;
        let over_best = best.as_ref().map(|best| Gain::of(&best.errors, &errors));
        let Gain { gain_db, standard_deviation_db: chance_db, .. } = gain;
        tried.push(TriedObserver { observer: observer.to_string(), gain_db, chance_db });
        if acceptance.accepts(&gain) && over_best.is_none_or(|gain| TUNING.accepts(&gain)) {
            best = Some(Rival { observer, plan: rival, errors, reference: of_rival });
        }
    }
    let n_judges = samples.len();
    let (mut observer, mut reference) = (DEFAULT, of_default);
    if let Some(mut best) = best {
        best.plan.replace(std::mem::take(plan));
        (observer, reference, *plan) = (best.observer, best.reference, best.plan);
    }
    *known = reference.map(|reference| Evaluation { samples, reference });
    Ok(Some(ObserverChoice {
        observer: observer.to_string(),
        table: DEFAULT.to_string(),
        n_judges,
        tried,
        seconds: start.elapsed().as_secs_f64(),
    }))
}

/// Another range observer that is better than the table's.
struct Rival {
    observer: &'static str,
    plan: QuantPlan,
    /// Its errors on the samples that evaluate.
    errors: Vec<QuantizationError>,
    /// What is known of it by judging.
    reference: Option<FloatReference>,
}
