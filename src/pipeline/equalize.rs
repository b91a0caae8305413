//! Equalized and centred channels, where they pay on calibration samples.
//!
//! A short pass over the float model looks at the channels; the model with the factors and offsets goes through
//! calibration as the first one did, and the better of the two plans is kept.

use super::statistics::{Gathered, Run, gather};
use super::{Request, tune};
use crate::decide::{Finders, QuantPlan, decide};
use crate::emit::{DeclinedFacts, EqualizationFacts, InputFacts, OffsetFacts, SpaceFacts};
use crate::engine::{Parsed, Shapes};
use crate::equalize::{
    ChannelStatistic, Choice, Declined, Movable, Reason, Space, Watched, absorb, choose, find,
    movable, scale, watched,
};
use crate::onnx::facts::Facts;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::place::{Sites, node_name};
use crate::progress::Progress;
use crate::range::RangeFinder;
use crate::scheme::SymmetryName;
use crate::tune::{MIN_SAMPLES, Method, Methods, compare_plans};
use anyhow::{Context, Result, anyhow};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// Samples by which factors are chosen, at most.
const MAX_SAMPLES: usize = 32;
/// Fewest. Factors follow from the largest value of each channel, which a few samples do not show: by eight they cost
/// mobilenetv1_025 `onnxruntime` 6 dB, by twelve mlperf_resnet8 `tensorrt` 2.
const LEAST_SAMPLES: usize = 16;

/// What equalization did.
#[derive(Debug, Clone, Serialize)]
pub struct Equalized {
    /// Samples that the factors were chosen by.
    pub n_samples: usize,
    /// Samples that the result was judged by: those that were held back, and more where those are few. The
    /// factors follow from the largest and the mean of each channel, and hardly fit themselves to samples.
    pub n_judges: usize,
    /// Mean SQNR of the outputs over these samples, before and after, in dB; with biases that were corrected on
    /// them where biases will be.
    pub sqnr_db: [f64; 2],
    /// How much less noise they have, in dB.
    pub gain_db: f64,
    /// How far that is a matter of the samples, in dB: the change is kept unless it is worse by twice that.
    pub chance_db: f64,
    /// Whether the change was kept.
    pub kept: bool,
    /// Spaces that got factors.
    pub n_spaces: usize,
    /// Inputs of layers that got none.
    pub n_declined: usize,
    /// Tensors whose offsets went into biases.
    pub n_absorbed: usize,
    #[serde(skip)]
    spaces: Vec<SpaceFacts>,
    #[serde(skip)]
    declined: Vec<Declined>,
    #[serde(skip)]
    offsets: Vec<OffsetFacts>,
    #[serde(skip)]
    not_absorbed: Vec<Declined>,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

impl Equalized {
    /// What the sidecar says of it.
    pub(super) fn facts(&self) -> EqualizationFacts {
        let reasons = |declined: &[Declined]| {
            let facts = |Declined { tensor, reason }: &Declined| DeclinedFacts {
                tensor: tensor.clone(),
                reason: reason.to_string(),
            };
            declined.iter().map(facts).collect()
        };
        EqualizationFacts {
            n_samples: self.n_samples,
            n_judges: self.n_judges,
            sqnr_db: self.sqnr_db,
            gain_db: self.gain_db,
            chance_db: self.chance_db,
            kept: self.kept,
            spaces: if self.kept { self.spaces.clone() } else { Vec::new() },
            declined: reasons(&self.declined),
            offsets: if self.kept { self.offsets.clone() } else { Vec::new() },
            not_absorbed: reasons(&self.not_absorbed),
        }
    }
}

/// What is equalized.
#[derive(Clone, Copy)]
pub(super) struct Stage<'a> {
    /// The prepared model.
    pub model: &'a ModelProto,
    /// Types and shapes of its tensors.
    pub facts: &'a Facts,
    /// Where it is quantized.
    pub sites: &'a Sites,
    /// What was asked for.
    pub request: &'a Request,
}

/// An equalized model, what was seen of it, and its plan.
pub(super) type Replaced = (ModelProto, Gathered, QuantPlan);

/// Equalizes the model, as far as the request asks for it, and gives what replaces `plan` and its model where
/// that has less noise on calibration samples. `plan` gets a warning where equalization cannot run.
pub(super) fn equalize(
    stage: Stage,
    plan: &mut QuantPlan,
    gathered: &Gathered,
    progress: &Progress,
) -> Result<Option<(Equalized, Option<Replaced>)>> {
    let methods = tune::methods(stage.request, plan);
    let asked = methods.iter().any(Method::is_exact);
    let Some(run) = gathered.run.as_ref().filter(|_| asked) else { return Ok(None) };
    let mut refuse = |reason: String| {
        plan.warnings.push(format!("not equalized: {reason}"));
        Ok(None)
    };
    if stage.request.ranges.is_some() {
        return refuse("ranges from a file are for the tensors as they are".to_string());
    }
    let n = tune::n_samples(run, stage.facts, stage.request, methods);
    let n_available = run.by_content.len();
    if n_available < LEAST_SAMPLES {
        return refuse(format!("{n_available} samples, expected {LEAST_SAMPLES} or more"));
    }
    if n < MIN_SAMPLES {
        return refuse(format!(
            "memory for {n} samples to judge by, expected {MIN_SAMPLES} or more"
        ));
    }
    let start = Instant::now();
    match attempt(stage, plan, (run, n, methods), progress) {
        Ok((mut equalized, replaced)) => {
            equalized.seconds = start.elapsed().as_secs_f64();
            Ok(Some((equalized, replaced)))
        }
        Err(error) => {
            plan.warnings.push(format!("not equalized: {error:#}"));
            Ok(None)
        }
    }
}

fn attempt(
    stage: Stage,
    plan: &QuantPlan,
    (run, n, methods): (&Run, usize, Methods),
    progress: &Progress,
) -> Result<(Equalized, Option<Replaced>)> {
    let Stage { model, sites, request, .. } = stage;
    let graph = model.graph.as_ref().context("model has no graph")?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(request.threads).build()?;
    let n_tune = request.effort.n_tune(n);
    let n_judges = (n - n_tune).max(n.min(MAX_SAMPLES));
    let n_samples = n_tune.clamp(LEAST_SAMPLES, MAX_SAMPLES);
    let candidates = Candidates::find(stage, plan, methods)?;
    let changes = pool.install(|| candidates.choose(stage, plan, run, n_samples))?;
    let mut equalized = changes.report(graph, n_samples, n_judges);
    if changes.factors.is_empty() && changes.offsets.is_empty() {
        return Ok((equalized, None));
    }
    let scaled = changes.made(model)?;
    let parsed = Parsed::new(&scaled, &request.shapes);
    let gathered = gather(&scaled, parsed, sites, request, Some(&run.dataset), progress)?;
    let finders =
        Finders { activation: &*request.activation_finder.0, weight: &*request.weight_finder.0 };
    let graph = scaled.graph.as_ref().context("model has no graph")?;
    let scaled_plan = decide(graph, sites, &gathered.statistics, None, &request.scheme, finders)?;
    let compared = pool.install(|| {
        let (inputs, values) = tune::load(run, n - n_judges..n)?;
        let corrected = methods.contains(Method::Bias);
        let table = (&request.scheme, &*request.weight_finder.0 as &dyn RangeFinder);
        let plans = [(model, plan), (&scaled, &scaled_plan)];
        compare_plans(plans, sites, table, &inputs, &values, corrected)
    })?;
    equalized.sqnr_db = compared.sqnr_db;
    equalized.gain_db = compared.gain_db;
    equalized.chance_db = compared.chance_db;
    // The model of the noise promised a gain, and two standard deviations are what samples do by chance.
    equalized.kept = compared.gain_db > -2.0 * compared.chance_db;
    let replaced = equalized.kept.then_some((scaled, gathered, scaled_plan));
    Ok((equalized, replaced))
}

/// What could get factors or offsets.
struct Candidates {
    spaces: Vec<Space>,
    declined: Vec<Declined>,
    movables: Vec<Movable>,
    not_absorbed: Vec<Declined>,
}

/// What gets which.
struct Changes<'a> {
    factors: Vec<(&'a Space, Choice)>,
    declined: Vec<Declined>,
    offsets: Vec<(&'a Movable, Vec<f32>)>,
    not_absorbed: Vec<Declined>,
}

impl Candidates {
    fn find(stage: Stage, plan: &QuantPlan, methods: Methods) -> Result<Candidates> {
        let graph = stage.model.graph.as_ref().context("model has no graph")?;
        let (spaces, declined) = match methods.contains(Method::Equalize) {
            true => find(graph, stage.facts),
            false => Default::default(),
        };
        let (movables, not_absorbed) = match methods.contains(Method::Absorb) {
            true => {
                let tensors = plan.activations.iter().map(|p| p.site.tensor.as_str());
                movable(graph, stage.facts, &tensors.collect::<Vec<&str>>())
            }
            false => Default::default(),
        };
        Ok(Candidates { spaces, declined, movables, not_absorbed })
    }

    /// Looks at `n_samples` and chooses by what is seen.
    fn choose(
        &self,
        stage: Stage,
        plan: &QuantPlan,
        run: &Run,
        n_samples: usize,
    ) -> Result<Changes<'_>> {
        let mut changes = Changes {
            factors: Vec::new(),
            declined: self.declined.clone(),
            offsets: Vec::new(),
            not_absorbed: self.not_absorbed.clone(),
        };
        if self.spaces.is_empty() && self.movables.is_empty() {
            return Ok(changes);
        }
        let Stage { model, facts, sites, request } = stage;
        let graph = model.graph.as_ref().context("model has no graph")?;
        let mut watched = watched(&self.spaces, graph, facts, sites);
        let (movables, others): (Vec<&Movable>, Vec<&Movable>) =
            self.movables.iter().partition(|movable| watch(&mut watched, movable));
        for Movable { tensor, .. } in others {
            let reason = Reason::Misaligned(tensor.clone());
            changes.not_absorbed.push(Declined { tensor: tensor.clone(), reason });
        }
        let mut statistics = look(model, &watched, run, n_samples, request)?;
        for movable in movables {
            let tensor = &movable.tensor;
            let Some(seen) = statistics.get_mut(tensor) else { continue };
            let mut planned = plan.activations.iter().filter(|p| p.site.tensor == *tensor);
            let symmetric = planned.any(|p| p.qtype.symmetry == SymmetryName::Symmetric);
            match movable.offsets(seen, symmetric) {
                Ok(by) => {
                    seen.subtract(&by);
                    changes.offsets.push((movable, by));
                }
                Err(reason) => {
                    changes.not_absorbed.push(Declined { tensor: tensor.clone(), reason });
                }
            }
        }
        let choices = choose(&self.spaces, &statistics, graph, sites, &request.scheme);
        for (space, choice) in self.spaces.iter().zip(choices) {
            match choice {
                Ok(choice) => changes.factors.push((space, choice)),
                Err(reason) => {
                    changes.declined.push(Declined { tensor: space.tensor.clone(), reason });
                }
            }
        }
        Ok(changes)
    }
}

impl Changes<'_> {
    /// The model with these changes.
    fn made(&self, model: &ModelProto) -> Result<ModelProto> {
        let mut changed = model.clone();
        let graph = changed.graph.as_mut().context("model has no graph")?;
        for (movable, by) in &self.offsets {
            absorb(graph, movable, by)?;
        }
        for (space, choice) in &self.factors {
            scale(graph, space, &choice.factors)?;
        }
        Ok(changed)
    }

    /// What is said of them before they are judged.
    fn report(&self, graph: &GraphProto, n_samples: usize, n_judges: usize) -> Equalized {
        let spaces = self.factors.iter().map(|(space, choice)| space_facts(graph, space, choice));
        let offsets = self.offsets.iter().map(|(movable, by)| OffsetFacts {
            tensor: movable.tensor.clone(),
            offsets: by.clone(),
        });
        Equalized {
            n_samples,
            n_judges,
            sqnr_db: [0.0; 2],
            gain_db: 0.0,
            chance_db: 0.0,
            kept: false,
            n_spaces: self.factors.len(),
            n_declined: self.declined.len(),
            n_absorbed: self.offsets.len(),
            spaces: spaces.collect(),
            declined: self.declined.clone(),
            offsets: offsets.collect(),
            not_absorbed: self.not_absorbed.clone(),
            seconds: 0.0,
        }
    }
}

/// Adds a tensor to those that are looked at; not where its channels are looked at in another way.
fn watch(watched: &mut Vec<Watched>, movable: &Movable) -> bool {
    let wanted = movable.watched();
    match watched.iter_mut().find(|watched| watched.tensor == wanted.tensor) {
        None => watched.push(wanted),
        // As a whole: of its channels the same follows.
        Some(whole) if whole.channels.n == 1 => *whole = wanted,
        Some(known) => return *known == wanted,
    }
    true
}

/// Runs the first `n_samples` of `run.by_content` and looks at the channels of the watched tensors.
fn look(
    model: &ModelProto,
    watched: &[Watched],
    run: &Run,
    n_samples: usize,
    request: &Request,
) -> Result<BTreeMap<String, ChannelStatistic>> {
    let names: Vec<String> = watched.iter().map(|watched| watched.tensor.clone()).collect();
    let engine = Parsed::new(model, &request.shapes)?.build(&names)?;
    let empty = || -> Vec<ChannelStatistic> {
        watched.iter().map(|watched| ChannelStatistic::new(watched.channels)).collect()
    };
    let mut totals = empty();
    // As many samples at a time as there are threads, added in their order.
    for part in run.by_content[..n_samples].chunks(request.threads.max(1)) {
        let one = |session: &mut Result<_>, &sample: &usize| -> Result<Vec<ChannelStatistic>> {
            let session = session.as_mut().map_err(|error| anyhow!("{error:#}"))?;
            let mut seen = empty();
            let mut visit = |at: usize, shape: &[usize], values: &[f32]| {
                seen[at].observe(shape, values);
                Ok(())
            };
            crate::engine::Session::run(session, &run.dataset.load(sample)?, &mut visit)?;
            Ok(seen)
        };
        let parts: Vec<Vec<ChannelStatistic>> =
            part.par_iter().map_init(|| engine.session(), one).collect::<Result<_>>()?;
        for part in parts {
            totals.iter_mut().zip(&part).for_each(|(total, part)| total.absorb(part));
        }
    }
    Ok(names.into_iter().zip(totals).collect())
}

/// Scales the channels of a prepared model as a sidecar says.
///
/// # Errors
/// If the model has no such channels.
pub(super) fn again(
    model: &mut ModelProto,
    equalization: &EqualizationFacts,
    inputs: &[InputFacts],
) -> Result<()> {
    let EqualizationFacts { spaces: scaled, offsets, .. } = equalization;
    if scaled.is_empty() && offsets.is_empty() {
        return Ok(());
    }
    let shapes: Shapes = inputs.iter().map(|i| (i.name.clone(), i.shape.clone())).collect();
    let mut facts = Facts::of_model(model);
    facts.extend(&Parsed::new(model, &shapes)?.facts()?);
    let graph = model.graph.as_mut().context("model has no graph")?;
    let (spaces, _) = find(graph, &facts);
    let tensors: Vec<&str> = offsets.iter().map(|facts| facts.tensor.as_str()).collect();
    let (movables, _) = movable(graph, &facts, &tensors);
    let other = |tensor: &str| {
        format!(
            "this version of mqq does not equalize the tensor `{tensor}`, which the sidecar does\nhint: calibrate again with this version of mqq"
        )
    };
    for OffsetFacts { tensor, offsets } in offsets {
        let movable = movables.iter().find(|movable| movable.tensor == *tensor);
        absorb(graph, movable.with_context(|| other(tensor))?, offsets)?;
    }
    for SpaceFacts { tensor, factors, .. } in scaled {
        let space = spaces.iter().find(|space| space.tensor == *tensor);
        let space = space.with_context(|| other(tensor))?;
        scale(graph, space, factors)?;
    }
    Ok(())
}

fn space_facts(graph: &GraphProto, space: &Space, choice: &Choice) -> SpaceFacts {
    let name = |end: &crate::equalize::End| node_name(&graph.node[end.node]).to_string();
    SpaceFacts {
        tensor: space.tensor.clone(),
        producers: space.producers.iter().map(name).collect(),
        consumers: space.consumers.iter().map(name).collect(),
        factors: choice.factors.clone(),
    }
}
