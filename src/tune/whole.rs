//! Compares the network with all changes to the network without changes.

use super::accept::{FINE, LEAST_OVERLAP, LOW_OVERLAP, WHOLE};
use super::outcome::MethodOutcome;
use super::setup::{PlannedModel, Setup};
use super::tuning::Tuned;
use crate::heads::{Decoding, DetectHead};
use crate::metrics::{F1, Gain, Measurement, Metric, OVERLAP, SQNR};
use crate::scheme::{FLOAT, Scheme};
use crate::simulate::{Candidate, ForwardPass, NoHook, Samples};
use anyhow::{Context, Result};

/// The name of this step in the list of outcomes.
const ALL: &str = "all";

/// Minimum number of held-out samples without a box that give a warning. Few images may show nothing.
const MIN_EMPTY: usize = 8;

/// SQNR, in dB, above which a low overlap means that the float outputs hardly differ between samples: the error is 3 %
/// of the values, yet as large as their differences.
const HARDLY_VARY_DB: f64 = 30.0;

/// The comparison of the network with all changes to the network without changes.
#[derive(Default)]
pub struct Whole {
    /// The outcome, where all changes together made the network worse.
    pub undone: Option<MethodOutcome>,
    /// The lowest figure of the network that is written; `None` where none was measured.
    pub lowest: Option<Lowest>,
}

/// The overlap of a network on held-out samples; or the figure of the task's metric, if the task is known and this
/// figure is lower whichever sample is left out.
#[derive(Debug, Clone, Copy)]
pub struct Lowest {
    metric: Metric,
    /// The figure, 0 to 1.
    pub figure: f64,
}

impl Lowest {
    /// Returns the lower figure; `None` where no output has an overlap.
    fn of(measured: &Measurement) -> Option<Lowest> {
        let overlap = Lowest { metric: measured.deciding(), figure: measured.overlap()? };
        let of_task = measured.of_task().filter(|metric| metric.scale.best == overlap.metric.scale.best);
        // A single lost box is no evidence.
        let highest = |metric: Metric| Some(Lowest { metric, figure: measured.highest_without_one(metric)? });
        Some(of_task.and_then(highest).filter(|of_task| of_task.figure < overlap.figure).unwrap_or(overlap))
    }

    /// Returns a text such as `overlap 0.123`.
    pub fn spelled(&self) -> String {
        format!("{} {}", self.metric.title, self.metric.with_unit(self.figure))
    }
}

/// Replaces `planned` by `plain`, the plan without changes, where `planned` is worse on the held-out samples of
/// `tuned`. That can happen because each change was measured on top of others, and on few samples. Warns where the
/// network keeps little of the float outputs.
///
/// # Errors
/// If a sample cannot be loaded, or a node cannot be run by itself.
pub fn ensure_gain(
    setup: Setup,
    mut plain: PlannedModel,
    planned: &mut PlannedModel,
    tuned: Option<&Tuned>,
    methods: &[MethodOutcome],
) -> Result<Whole> {
    let (Some(samples), Some(tuned)) = (setup.samples, tuned) else { return Ok(Whole::default()) };
    let is_before_tuning =
        |outcome: &MethodOutcome| outcome.accepted && !tuned.methods.iter().any(|tuned| tuned.method == outcome.method);
    let mut after = tuned.measured.clone();
    let mut undone = None;
    if methods.iter().any(is_before_tuning) {
        let n = tuned.n_samples + tuned.measured.n_samples();
        let (names, values) = (samples.names(), samples.values(0..n)?);
        let samples = Samples { names: &names, values: &values };
        let before = measure(setup, &plain, samples, tuned)?;
        let outcome = MethodOutcome::judged(ALL, &Gain::of(&before, &after), WHOLE, before.n_samples());
        if !outcome.accepted {
            planned.warnings.push(format!(
                "all methods together make the network worse ({}): the model is written without them",
                outcome.reason.as_deref().unwrap_or_default()
            ));
            plain.warnings = std::mem::take(&mut planned.warnings);
            *planned = plain;
            (after, undone) = (before, Some(outcome));
        }
    }
    planned.warnings.extend(warning(&after, setup.scheme));
    let n = after.n_samples();
    if n >= MIN_EMPTY && !after.prepared().is_constant() {
        planned.warnings.extend(warning_of_no_box(&after, &format!("{n} held-out samples")));
    }
    Ok(Whole { undone, lowest: Lowest::of(&after) })
}

/// Returns the number of boxes that the float network finds; `None` where the network is no known detector, or where an
/// output is not finite or cannot be decoded.
pub fn n_float_boxes(measured: &Measurement) -> Option<usize> {
    let Decoding::Detect(_) = &measured.prepared().head()?.head.decoding else { return None };
    if measured.has_non_finite(F1) || !measured.non_finite_outputs().is_empty() {
        return None;
    }
    // Without a box of either network, F1 has no figure.
    let found = measured.figures(F1).into_iter().flatten().find_map(|figure| figure.found);
    Some(found.map_or(0, |[float, _]| float.n_found))
}

/// Returns a warning where the float network of a detector finds no box in `samples`.
pub fn warning_of_no_box(measured: &Measurement, samples: &str) -> Option<String> {
    let Decoding::Detect(DetectHead { threshold, .. }) = &measured.prepared().head()?.head.decoding else {
        return None;
    };
    (n_float_boxes(measured)? == 0).then(|| {
        format!(
            "the float network finds no box with a score of {threshold} or more in {samples}: check --preprocess; \
             `mqq doctor -v` tries other pixel values"
        )
    })
}

/// Measures an unchanged plan on the held-out samples.
fn measure(setup: Setup, planned: &PlannedModel, samples: Samples, tuned: &Tuned) -> Result<Measurement> {
    let candidate = Candidate::new(planned.plan.clone(), tuned.n_samples)?;
    let pass = ForwardPass::new(&planned.model, tuned.n_samples)?
        .evaluated_with(setup.outputs)
        .sharing(setup.prepared)
        .reporting(setup.progress, "comparison with the model without changes");
    let mut candidates = pass.with_reference(Some(&tuned.reference)).with(candidate, NoHook).run(samples)?;
    candidates.pop().and_then(|candidate| candidate.measured).context("internal error: a pass that measured nothing")
}

/// Returns a warning where the network keeps little of the float outputs, or where all float outputs are equal, so that
/// accuracy cannot be measured.
fn warning(measured: &Measurement, scheme: &Scheme) -> Option<String> {
    let n = measured.n_samples();
    if measured.prepared().is_constant() {
        return Some(format!(
            "the float network has the same outputs for all {n} held-out samples, so accuracy cannot be measured: check the data and --preprocess"
        ));
    }
    let lowest = Lowest::of(measured)?;
    if let (None, true) = (measured.prepared().head(), lowest.figure < FINE)
        && let Some(output_idx) = measured.prepared().are_selected().iter().position(|is_selected| *is_selected)
    {
        let (name, lowest) = (&measured.prepared().outputs()[output_idx], lowest.spelled());
        return Some(format!(
            "output `{name}`: a TopK or NonMaxSuppression chooses its rows, and no single built-in head fits, so {lowest} counts rows in another \
             order as errors: name the head with --head (docs/tasks.md)"
        ));
    }
    let lost = lost_output(measured);
    if lowest.figure >= LOW_OVERLAP && lost.is_none() {
        return None;
    }
    let is_far = lowest.figure < LEAST_OVERLAP || lost.is_some();
    let (lowest, db) = (lost.unwrap_or_else(|| lowest.spelled()), measured.mean(SQNR).unwrap_or_default());
    if !is_far {
        // Other tables have their own warning by the rescue.
        return scheme.mixed.contains_key(FLOAT).then(|| {
            format!(
                "the quantized outputs differ from the float ones: {lowest} (SQNR {db:.2} dB) on {n} held-out samples, expected {LOW_OVERLAP} or more; \
                 try --keep-float 8, or --rescue 20 for more layers in float; mqq compare measures the task"
            )
        });
    }
    let way_out = match &scheme.wider {
        _ if db > HARDLY_VARY_DB => {
            "the float outputs hardly differ from sample to sample: check the data and --preprocess".to_string()
        }
        _ if scheme.mixed.contains_key(FLOAT) => "try --keep-float 8, or check --preprocess".to_string(),
        Some(wider) => format!("try --backend {wider}, which has 16 bits, or check --preprocess"),
        None if scheme.allows_float_nodes() => {
            "check --preprocess, or keep layers float with --exclude that the target runs in float".to_string()
        }
        None => "check --preprocess, or try --effort 2".to_string(),
    };
    Some(format!(
        "the quantized outputs are far from the float ones: {lowest} (SQNR {db:.2} dB) on {n} held-out samples, expected {LEAST_OVERLAP} or more; {way_out}"
    ))
}

/// Returns the output with the lowest overlap of several, with its overlap, where it keeps little of the float output.
fn lost_output(measured: &Measurement) -> Option<String> {
    let (lowest, output) = measured.lowest_output(OVERLAP)?;
    (measured.prepared().outputs().len() > 1 && lowest < LEAST_OVERLAP)
        .then(|| format!("output `{output}` has overlap {}", OVERLAP.with_unit(lowest)))
}
