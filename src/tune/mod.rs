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
mod setup;
mod trials;
mod weights;

pub use compare::{Compared, Comparison, compare_plans};
pub use effort::Effort;
pub use methods::{
    Case, Equalized, METHODS, Method, Methods, ObserverChoice, Proposal, ScaledGroup, Stage, TriedObserver,
    choose_observer, propose,
};
pub use setup::{Evaluation, PlannedModel, Setup, TuningOptions, tune_planned};

use crate::metrics::{QuantizationError, gain_db, mean_sqnr_db};
use crate::observers::Observer;
use crate::onnx::edit::{ModelEdit, NewBias, edited};
use crate::onnx::graph::{Edge, GraphIndex};
use crate::onnx::names::Names;
use crate::onnx::node::node_name;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::place::{BiasQuantizer, Placement};
use crate::plan::{QuantPlan, decide_biases};
use crate::scheme::Scheme;
use crate::simulate::{Candidate, EvaluatedTensor, FloatReference, Samples};
use anyhow::{Context, Result, ensure};
use bias_grid::BiasGrids;
use serde::Serialize;
use setup::MIN_SAMPLES;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use trials::{Trials, Tried};

/// One method that was tried on top of those that were accepted.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// What was tried.
    pub method: Method,
    /// How much smaller the error on the held-out samples is with it, in dB: what decides.
    pub gain_db: f64,
    /// Whether it was rejected since something that an output is made of loses more than the choice of samples does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub does_harm: bool,
    /// Whether it was accepted.
    pub kept: bool,
    /// Wall time.
    #[serde(skip)]
    pub seconds: f64,
}

/// What tuning did.
#[derive(Debug, Clone, Default, Serialize)]
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
    pub known: Option<&'a FloatReference>,
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
    let Tuning { table, samples, n_tune, methods, .. } = tuning;
    if methods.is_empty() || plan.weights.is_empty() || n_tune >= samples.len() {
        return Ok(None);
    }
    ensure!(samples.len() >= MIN_SAMPLES, "{} samples, expected {MIN_SAMPLES} or more", samples.len());
    let start = Instant::now();
    let graph = model.graph.as_ref().context("model has no graph")?;
    let grids = BiasGrids::of(graph, placement, plan, table);
    let Tried { plain, best, steps } = Trials::new(model, plan, &grids, tuning)?.run()?;
    if best.is_none() {
        warn_of_unknown(graph, plan, &plain);
    }
    let sqnr_db = mean_sqnr_db(&plain);
    let (n_samples, n_held_back) = (n_tune, samples.len() - n_tune);
    let mut report = Tuned { n_samples, n_held_back, sqnr_db: [sqnr_db; 2], steps, ..Tuned::default() };
    if let Some(Candidate { plan: tuned, biases, errors, .. }) = best {
        report.sqnr_db[1] = mean_sqnr_db(&errors);
        report.gain_db = gain_db(&plain, &errors);
        report.n_biases = biases.len();
        report.n_weights = n_changed_weights(plan, &tuned);
        report.n_ranges = n_changed_ranges(plan, &tuned);
        report.n_rounded = tuned.weights.iter().filter(|weight| weight.learned).count();
        *plan = tuned;
        replace_biases(model, plan, placement, table, biases)?;
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(Some(report))
}

/// Says which outputs of the plain plan hindered tuning.
fn warn_of_unknown(graph: &GraphProto, plan: &mut QuantPlan, plain: &[QuantizationError]) {
    let evaluated = EvaluatedTensor::all(graph, &GraphIndex::new(graph));
    let evaluated = evaluated.into_iter().flat_map(|evaluated| [evaluated.clone(), evaluated]);
    let unknown = evaluated.zip(plain).filter(|(_, error)| error.is_unknown());
    for output in unknown.map(|(evaluated, _)| evaluated.output).collect::<BTreeSet<_>>() {
        plan.warnings.push(format!(
            "output `{output}` has values that are NaN or infinite when the quantized network is simulated: no tuning was kept"
        ));
    }
}

/// Weights with other scales or integers.
fn n_changed_weights(before: &QuantPlan, after: &QuantPlan) -> usize {
    before.weights.iter().zip(&after.weights).filter(|(a, b)| a.params != b.params || a.integers != b.integers).count()
}

/// Groups of activations with other ranges.
fn n_changed_ranges(before: &QuantPlan, after: &QuantPlan) -> usize {
    let pairs = before.activations.iter().zip(&after.activations);
    let changed = pairs.filter(|(a, b)| a.params != b.params).map(|(a, _)| a.quantizer.group);
    changed.collect::<BTreeSet<usize>>().len()
}

/// Gives the model new biases, and the plan what follows from them.
fn replace_biases(
    model: &mut ModelProto,
    plan: &mut QuantPlan,
    placement: &mut Placement,
    WeightScheme { scheme, observer }: WeightScheme,
    biases: BTreeMap<Edge, Vec<f32>>,
) -> Result<()> {
    let biases = named(model.graph.as_ref().context("model has no graph")?, biases);
    let edits: Vec<ModelEdit> = biases.iter().cloned().map(ModelEdit::ReplaceBias).collect();
    *model = edited(model, &edits)?;
    plan.edits.extend(edits);
    let graph = model.graph.as_ref().context("model has no graph")?;
    add_quantizers(graph, placement, plan, scheme, &biases);
    decide_biases(graph, placement, scheme, observer, plan, false)
}

/// Names for the new biases.
fn named(graph: &GraphProto, biases: BTreeMap<Edge, Vec<f32>>) -> Vec<NewBias> {
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
    named.collect()
}

/// The new biases as placement, where the table stores biases as integers.
fn add_quantizers(
    graph: &GraphProto,
    placement: &mut Placement,
    plan: &QuantPlan,
    scheme: &Scheme,
    biases: &[NewBias],
) {
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
}
