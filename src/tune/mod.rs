//! Better weights and biases for the parameters that were decided.
//!
//! In: a prepared model, its plan, some calibration samples. Out: a plan with other integers and scales of
//! weights, and new biases in the model. It does not place or remove quantization, nor choose the ranges
//! of activations. A change must gain on held-out samples, or it is rejected.

pub mod accept;
mod bias_grid;
mod compare;
pub mod descent;
mod effort;
mod hook;
pub mod layer;
pub mod methods;
mod moments;
mod reference;
mod setup;
mod weights;

pub use compare::{Compared, compare_plans};
pub use effort::Effort;
pub use methods::{
    Case, Equalized, METHODS, Method, Methods, ObserverChoice, Proposal, ScaledGroup, Stage, TriedObserver,
    choose_observer, propose,
};
pub use reference::Reference;
pub use setup::{Evaluation, Options, PlannedModel, Setup, tune_planned};

use crate::metrics::{gain_db, mean_sqnr_db};
use crate::observers::Observer;
use crate::onnx::edit::{ModelEdit, NewBias, edited};
use crate::onnx::graph::Edge;
use crate::onnx::names::Names;
use crate::onnx::node::node_name;
use crate::onnx::proto::ModelProto;
use crate::place::{BiasQuantizer, Placement};
use crate::plan::{QuantPlan, decide_biases};
use crate::scheme::Scheme;
use crate::simulate::{Candidate, ForwardPass, NoHook, Samples, simulate};
use accept::TUNING;
use anyhow::{Context, Result, ensure};
use bias_grid::BiasGrids;
use hook::TuningHook;
use methods::{BIAS, ahead};
use serde::Serialize;
use setup::MIN_SAMPLES;
use std::collections::BTreeMap;
use std::time::Instant;

/// One method that was tried on top of those that were accepted.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// What was tried.
    pub method: Method,
    /// How much smaller the error on the held-out samples is with it, in dB: what decides.
    pub gain_db: f64,
    /// Whether it was accepted.
    pub kept: bool,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

/// What tuning did.
#[derive(Debug, Clone, Serialize)]
pub struct Tuned {
    /// Samples that were learned from before the held-out ones decided. Where both are few, or evaluating equalization or
    /// observers corrected the biases by all, what was accepted learned from all in the end.
    pub n_samples: usize,
    /// Held-out samples.
    pub n_held_back: usize,
    /// Mean SQNR of the outputs over the held-out samples, before and after what was accepted, in dB.
    pub sqnr_db: [f64; 2],
    /// How much smaller their error is with all that was accepted, in dB.
    pub gain_db: f64,
    /// The methods, in the order in which they were tried.
    pub steps: Vec<Step>,
    /// Biases corrected.
    pub n_biases: usize,
    /// Weights with other scales or integers.
    pub n_weights: usize,
    /// Weights whose integers are not the nearest ones.
    pub n_rounded: usize,
    /// Groups of activations with other ranges.
    pub n_ranges: usize,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

/// With fewer samples, what was accepted learns again from all of them, the held-out ones too.
const FEW_SAMPLES: usize = 8;

/// A scheme, and the observer of weights.
#[derive(Clone, Copy)]
pub struct WeightScheme<'a> {
    /// The backend's.
    pub scheme: &'a Scheme,
    /// What gives weights their ranges.
    pub observer: &'a Observer,
}

/// What tuning goes by.
#[derive(Clone, Copy)]
pub struct Tuning<'a> {
    /// The scheme that the plan follows.
    pub table: WeightScheme<'a>,
    /// Calibration samples.
    pub samples: Samples<'a>,
    /// The first so many are learned from; the others are held-out: they decide whether a method is accepted.
    pub n_tune: usize,
    /// What is tried.
    pub methods: Methods,
    /// What an earlier evaluation over these samples kept of the float network; biases that it corrected by all of
    /// them are taken, where correcting them is accepted.
    pub known: Option<&'a Reference>,
}

/// Tunes `plan` and the biases of `model`.
///
/// # Errors
/// If there are too few samples, or a node cannot be run by itself; the message names it, and nothing was changed.
pub fn tune(
    model: &mut ModelProto,
    plan: &mut QuantPlan,
    placement: &mut Placement,
    tuning: Tuning,
) -> Result<Option<Tuned>> {
    let Tuning { table, samples, n_tune, methods, known } = tuning;
    let WeightScheme { scheme, observer } = table;
    let mut pending: Vec<Method> = methods.of_stage(Stage::Plan).collect();
    let none = methods.is_empty() || plan.weights.is_empty();
    if none || n_tune >= samples.len() {
        return Ok(None);
    }
    let n = samples.len();
    ensure!(n >= MIN_SAMPLES, "{n} samples, expected {MIN_SAMPLES} or more");
    let start = Instant::now();
    let mut plain = match pending.is_empty() {
        true => Some(simulate(model, plan, samples.from(n_tune))?.errors),
        false => None,
    };
    let graph = model.graph.as_ref().context("model has no graph")?;
    let grids = BiasGrids::of(graph, placement, plan, table);
    let known = known.filter(|_| pending == [BIAS]);
    let touches = methods.touches();
    let decided = match touches.ranges {
        true => ahead(model, plan, samples.first(n_tune), touches.corrects_biases())?,
        false => BTreeMap::new(),
    };
    let with_methods = |methods: Methods| -> Result<(Candidate, TuningHook)> {
        let (mut candidate, mut hook) = (Candidate::new(plan.clone(), 0)?, TuningHook::new(methods, &grids));
        hook.decide(&mut candidate, &decided);
        Ok((candidate, hook))
    };
    let mut best: Option<Accepted> = None;
    let mut steps = Vec::new();
    // Each method on top of all before it, in one pass; where one is rejected, the rest pass again without it.
    while !pending.is_empty() {
        let mut pass = ForwardPass::new(model, n_tune)?.knowing(known.map(|known| &known.float));
        if plain.is_none() {
            pass = pass.with(Candidate::new(plan.clone(), n_tune)?, NoHook);
        }
        let mut tried = Vec::new();
        for &method in &pending {
            let before = tried.last().copied().unwrap_or_else(|| accepted_methods(best.as_ref()));
            tried.push(before.with(method));
            let (candidate, hook) = with_methods(before.with(method))?;
            pass = pass.with(candidate, hook);
        }
        let mut candidates = pass.run(samples)?.into_iter();
        if plain.is_none() {
            plain = candidates.next().map(|candidate| candidate.errors);
        }
        for (candidate, methods) in candidates.zip(tried) {
            if methods != accepted_methods(best.as_ref()).with(pending[0]) {
                // It has a method in it that was rejected.
                break;
            }
            let method = pending.remove(0);
            let before = best.as_ref().map(|best| &best.candidate.errors).or(plain.as_ref());
            let gain_db = before.map_or(0.0, |before| gain_db(before, &candidate.errors));
            let better = TUNING.accepts(gain_db, 0.0);
            steps.push(Step { method, gain_db, kept: better, seconds: candidate.seconds });
            if better {
                best = Some(Accepted { methods, candidate });
            }
        }
    }
    if let Some(Accepted { methods, candidate: best }) = &mut best {
        if let Some(corrected) = known.and_then(|known| known.corrected.as_ref()) {
            (best.plan, best.biases) = (corrected.plan.clone(), corrected.biases.clone());
        } else if n < FEW_SAMPLES {
            let (again, hook) = with_methods(*methods)?;
            let pass = ForwardPass::new(model, n)?.with(again, hook);
            if let Some(again) = pass.run(samples)?.pop() {
                (best.plan, best.biases) = (again.plan, again.biases);
            }
        }
    }
    let plain = plain.unwrap_or_default();
    let sqnr_db = mean_sqnr_db(&plain);
    let mut report = Tuned {
        n_samples: n_tune,
        n_held_back: samples.len() - n_tune,
        sqnr_db: [sqnr_db, sqnr_db],
        gain_db: 0.0,
        steps,
        n_biases: 0,
        n_weights: 0,
        n_rounded: 0,
        n_ranges: 0,
        seconds: 0.0,
    };
    // What was accepted has none.
    let unknown = plain.iter().map(|error| best.is_none() && error.is_unknown());
    for (output, _) in graph.output.iter().zip(unknown).filter(|(_, unknown)| *unknown) {
        plan.warnings.push(format!(
            "output `{}` has values that are NaN or infinite when the quantized network is simulated: no tuning was kept",
            output.name()
        ));
    }
    if let Some(Accepted { candidate, .. }) = best {
        let Candidate { plan: tuned, biases, errors, .. } = candidate;
        report.sqnr_db[1] = mean_sqnr_db(&errors);
        report.gain_db = gain_db(&plain, &errors);
        report.n_biases = biases.len();
        report.n_weights = n_changed_weights(plan, &tuned);
        report.n_ranges = n_changed_ranges(plan, &tuned);
        report.n_rounded = tuned.weights.iter().filter(|weight| weight.learned).count();
        *plan = tuned;
        let biases = new_biases(model, biases)?;
        let edits: Vec<ModelEdit> = biases.iter().cloned().map(ModelEdit::ReplaceBias).collect();
        *model = edited(model, &edits)?;
        plan.edits.extend(edits);
        add_quantizers(model, placement, plan, scheme, &biases)?;
        let graph = model.graph.as_ref().context("model has no graph")?;
        decide_biases(graph, placement, scheme, observer, plan, false)?;
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(Some(report))
}

/// The network of all methods that were accepted so far.
struct Accepted {
    methods: Methods,
    candidate: Candidate,
}

fn accepted_methods(best: Option<&Accepted>) -> Methods {
    best.map_or(Methods::default(), |best| best.methods)
}

/// Weights with other scales or integers.
fn n_changed_weights(before: &QuantPlan, after: &QuantPlan) -> usize {
    let pairs = before.weights.iter().zip(&after.weights);
    pairs.filter(|(a, b)| a.params != b.params || a.integers != b.integers).count()
}

/// Groups of activations with other ranges.
fn n_changed_ranges(before: &QuantPlan, after: &QuantPlan) -> usize {
    let pairs = before.activations.iter().zip(&after.activations);
    let changed = pairs.filter(|(a, b)| a.params != b.params).map(|(a, _)| a.quantizer.group);
    changed.collect::<std::collections::BTreeSet<usize>>().len()
}

/// Names for the new biases.
fn new_biases(model: &ModelProto, biases: BTreeMap<Edge, Vec<f32>>) -> Result<Vec<NewBias>> {
    let graph = model.graph.as_ref().context("model has no graph")?;
    let mut names = Names::of(graph);
    let named = biases.into_iter().map(|((node_idx, input_idx), values)| {
        let node = &graph.node[node_idx];
        let base = match node.input.get(input_idx).filter(|name| !name.is_empty()) {
            Some(name) => name.clone(),
            None => format!("{}_bias", node_name(node)),
        };
        let name = names.fresh(&format!("{base}_corrected"));
        NewBias { node_idx, input_idx, name, values }
    });
    Ok(named.collect())
}

/// The new biases as placement, where the table stores biases as integers.
fn add_quantizers(
    model: &ModelProto,
    placement: &mut Placement,
    plan: &QuantPlan,
    scheme: &Scheme,
    biases: &[NewBias],
) -> Result<()> {
    let graph = model.graph.as_ref().context("model has no graph")?;
    for NewBias { node_idx, input_idx, name, .. } in biases {
        let (tensor, edge) = (name.clone(), (*node_idx, *input_idx));
        if let Some(quantizer) = placement.biases.iter_mut().find(|quantizer| quantizer.edge == edge) {
            quantizer.tensor = tensor;
            continue;
        }
        let node = &graph.node[*node_idx];
        let quantizer = bias_grid::new_quantizer(node, edge, placement, plan, scheme);
        placement.biases.extend(quantizer.map(|quantizer| BiasQuantizer { tensor, ..quantizer }));
    }
    Ok(())
}
