//! Another range finder for all activations, where the outputs are nearer to float with it.
//!
//! The squared error of a tensor counts a value that is clipped like one that is rounded. Behind it they differ: roundings
//! average out, and what a range cuts off is of one sign. How much that matters is the network's affair, and is
//! measured at its outputs.

use super::equalize::{Stage, judges};
use super::statistics::Gathered;
use super::tune::{self, Known};
use crate::decide::{Finders, QuantPlan, decide};
use crate::emit::TriedObserver;
use crate::range::{RangeFinder, by_spelling};
use crate::tune::{Compared, Comparison, Method, compare_plans};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// The range finder of a table that another is tried against.
const DEFAULT: &str = "mse";
/// The other. (`max` is the best of the three on none of fourteen networks, and lower percentiles cost some as much as
/// they bring others.)
const RIVAL: &str = "percentile:99.999";

/// How the range finder of activations was chosen.
#[derive(Debug, Clone, Serialize)]
pub struct ObserverChoice {
    /// What ranges are by in the end.
    pub observer: String,
    /// What they were by, as the table says.
    pub table: String,
    /// Samples that judged, with biases that were corrected on them where biases will be.
    pub n_judges: usize,
    /// What was tried besides the table's.
    pub tried: Vec<TriedObserver>,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

impl ObserverChoice {
    /// The range finder.
    pub(super) fn finder(&self) -> Result<Box<dyn RangeFinder + Send>> {
        by_spelling(&self.observer)
    }
}

/// Tries another range finder of activations than the table's, unless one was asked for, and replaces `plan` and what is
/// `known` by those of the better one. Where a network cannot be walked node by node `plan` gets a warning.
pub(super) fn choose(
    stage: Stage,
    plan: &mut QuantPlan,
    gathered: &Gathered,
    known: &mut Option<Known>,
) -> Option<ObserverChoice> {
    let Stage { request, .. } = stage;
    let wanted = tune::methods(request, plan).contains(Method::Observer)
        && !request.observer_is_given
        && request.activation_finder.1 == DEFAULT
        && request.ranges.is_none()
        && gathered.run.is_some();
    if !wanted || plan.activations.is_empty() || plan.weights.is_empty() {
        return None;
    }
    let chosen = attempt(stage, plan, gathered, known);
    chosen.unwrap_or_else(|error| {
        plan.warnings.push(format!("no other observer was tried: {error:#}"));
        None
    })
}

fn attempt(
    stage: Stage,
    plan: &mut QuantPlan,
    gathered: &Gathered,
    known: &mut Option<Known>,
) -> Result<Option<ObserverChoice>> {
    let Stage { model, sites, request, .. } = stage;
    let start = Instant::now();
    let graph = model.graph.as_ref().context("model has no graph")?;
    let run = gathered.run.as_ref().context("nothing was observed")?;
    let samples = known.as_ref().map(|known| Ok(known.samples.clone()));
    // Else there are too few, as for all that is tuned.
    let Ok(samples) = samples.unwrap_or_else(|| judges(stage, run, plan)) else { return Ok(None) };
    let activation = by_spelling(RIVAL)?;
    let finders = Finders { activation: &*activation, ..request.finders() };
    let mut rival = decide(graph, sites, &gathered.statistics, None, &request.scheme, finders)?;
    let compared = Compared {
        models: [model; 2],
        plans: [plan, &rival],
        sites,
        units: Some(&BTreeMap::new()),
        table: (&request.scheme, &*request.weight_finder.0 as &dyn RangeFinder),
        corrected: tune::methods(request, plan).contains(Method::Bias),
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(request.threads).build()?;
    let (Comparison { gain_db, chance_db, .. }, references) = pool.install(|| {
        let (inputs, values) = tune::load(run, samples.clone())?;
        compare_plans(compared, (&inputs, &values), known.as_ref().map(|known| &known.reference))
    })?;
    let is_better = gain_db > 0.0;
    let [of_default, of_rival] = references;
    let reference = if is_better { of_rival } else { of_default };
    let n_judges = samples.len();
    *known = reference.map(|reference| Known { samples, reference });
    if is_better {
        rival.keep_warnings(std::mem::take(&mut plan.warnings));
        *plan = rival;
    }
    Ok(Some(ObserverChoice {
        observer: if is_better { RIVAL } else { DEFAULT }.to_string(),
        table: DEFAULT.to_string(),
        n_judges,
        tried: vec![TriedObserver { observer: RIVAL.to_string(), gain_db, chance_db }],
        seconds: start.elapsed().as_secs_f64(),
    }))
}
