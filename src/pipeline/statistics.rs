//! What is known of the activations before their parameters are chosen: from the data, or from a file.

use super::{Request, observe};
use crate::data::{Dataset, InputSpec};
use crate::emit::InputFacts;
use crate::engine::{Parsed, resolve_inputs};
use crate::observe::Statistic;
use crate::onnx::proto::ModelProto;
use crate::place::Sites;
use crate::progress::Progress;
use anyhow::Result;
use std::sync::Arc;

/// Statistics and where they are from.
pub(super) struct Gathered {
    /// One per activation site; empty for those whose range was given.
    pub statistics: Vec<Statistic>,
    /// Samples observed.
    pub n_samples: usize,
    /// Samples left out, with the reason.
    pub skipped: Vec<String>,
    /// How images became inputs.
    pub preprocessing: Option<String>,
    /// Inputs with their shapes.
    pub inputs: Vec<InputFacts>,
    /// What was run; `None` where nothing was.
    pub run: Option<Run>,
}

/// The data that was run.
pub(super) struct Run {
    /// The samples.
    pub dataset: Arc<Dataset>,
    /// The inputs that they are for.
    pub inputs: Vec<InputSpec>,
    /// The samples that were run, in an order that follows from their contents alone.
    pub by_content: Vec<usize>,
}

/// Runs the data for the sites that `request.ranges` says nothing of; runs nothing where there are none. `known` is
/// that data where it was opened before, for the same inputs.
///
/// # Errors
/// If a site has neither data nor a range, or the data cannot be read or run.
pub(super) fn gather(
    model: &ModelProto,
    parsed: Result<Parsed>,
    sites: &Sites,
    request: &Request,
    known: Option<&Arc<Dataset>>,
    progress: &Progress,
) -> Result<Gathered> {
    let is_given = |tensor: &str| {
        request.ranges.as_ref().is_some_and(|ranges| ranges.ranges.contains_key(tensor))
    };
    if let (Some(ranges), true) = (&request.ranges, request.data.is_empty()) {
        ranges.ensure_all(sites.activations.iter().map(|site| site.tensor.as_str()))?;
    }
    let unknown: Vec<usize> =
        (0..sites.activations.len()).filter(|&i| !is_given(&sites.activations[i].tensor)).collect();
    let mut statistics = vec![Statistic::default(); sites.activations.len()];
    if request.ranges.is_some() && unknown.is_empty() {
        let inputs = resolve_inputs(model, &request.shapes)?;
        let inputs = inputs.into_iter().map(|i| InputFacts { name: i.name, shape: i.shape });
        return Ok(Gathered {
            statistics,
            n_samples: 0,
            skipped: Vec::new(),
            preprocessing: None,
            inputs: inputs.collect(),
            run: None,
        });
    }
    let parsed = parsed.map_err(|error| anyhow::anyhow!("{}", error.root_cause()))?;
    let open = || -> Result<Arc<Dataset>> {
        let Request { data, preprocessing, limit, effort, .. } = request;
        let dataset = Dataset::open(data, parsed.inputs(), preprocessing, *limit)?;
        Ok(Arc::new(if effort.looks_again() { dataset.keeping_images() } else { dataset }))
    };
    let dataset = known.map_or_else(open, |known| Ok(Arc::clone(known)))?;
    let watched: Vec<String> =
        unknown.iter().map(|&site| sites.activations[site].tensor.clone()).collect();
    let engine = parsed.build(&watched)?;
    let tick = progress(dataset.len());
    let observed = observe::observe(
        &engine,
        watched.len(),
        &dataset,
        request.threads,
        request.skip_bad_data,
        &*tick,
    )?;
    drop(tick);
    for (site, statistic) in unknown.into_iter().zip(observed.statistics) {
        statistics[site] = statistic;
    }
    let inputs = engine.inputs().iter();
    let inputs = inputs.map(|i| InputFacts { name: i.name.clone(), shape: i.shape.clone() });
    Ok(Gathered {
        statistics,
        n_samples: observed.n_samples,
        skipped: observed.skipped,
        preprocessing: dataset.describe(),
        inputs: inputs.collect(),
        run: Some(Run {
            inputs: engine.inputs().to_vec(),
            dataset,
            by_content: observed.by_content,
        }),
    })
}

/// Runs the data again for tensors that were not observed: a statistic for each.
///
/// # Errors
/// If the data cannot be read or run.
pub(super) fn observe_more(
    model: &ModelProto,
    run: &Run,
    tensors: &[String],
    request: &Request,
    progress: &Progress,
) -> Result<Vec<Statistic>> {
    let engine = Parsed::new(model, &request.shapes)?.build(tensors)?;
    let tick = progress(run.dataset.len());
    let threads = request.threads;
    let dataset = &run.dataset;
    let observed =
        observe::observe(&engine, tensors.len(), dataset, threads, request.skip_bad_data, &*tick)?;
    Ok(observed.statistics)
}
