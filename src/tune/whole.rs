//! Compares the network with all changes with the one without any.

use super::accept::{LEAST_OVERLAP, WHOLE};
use super::outcome::MethodOutcome;
use super::setup::{PlannedModel, Setup};
use super::tuning::Tuned;
use crate::metrics::{Gain, Measurement, SQNR};
use crate::simulate::{Candidate, ForwardPass, NoHook, Samples};
use anyhow::{Context, Result};

/// The name of this step among the methods.
const ALL: &str = "all";

/// Replaces `planned` by `plain` where it is worse on the held-out samples of `tuned`: each change was measured on top
/// of others, and on few samples. Returns the outcome of that comparison where `planned` was worse. Warns where the
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
) -> Result<Option<MethodOutcome>> {
    let (Some(samples), Some(tuned)) = (setup.samples, tuned) else { return Ok(None) };
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
                "all methods together make the network worse ({}): it is written without them",
                outcome.reason.as_deref().unwrap_or_default()
            ));
            plain.warnings = std::mem::take(&mut planned.warnings);
            *planned = plain;
            (after, undone) = (before, Some(outcome));
        }
    }
    warn(&mut planned.warnings, &after);
    Ok(undone)
}

/// Measures an unchanged plan on the held-out samples.
fn measure(setup: Setup, planned: &PlannedModel, samples: Samples, tuned: &Tuned) -> Result<Measurement> {
    let candidate = Candidate::new(planned.plan.clone(), tuned.n_samples)?;
    let pass = ForwardPass::new(&planned.model, tuned.n_samples)?
        .evaluated_with(setup.outputs)
        .reporting(setup.progress, "comparison with the model without changes");
    let mut candidates = pass.knowing(Some(&tuned.reference)).with(candidate, NoHook).run(samples)?;
    candidates.pop().and_then(|candidate| candidate.measured).context("internal error: a pass that measured nothing")
}

/// Warns where little of the float outputs is left, and where nothing can be judged.
fn warn(warnings: &mut Vec<String>, measured: &Measurement) {
    let n = measured.n_samples();
    if measured.prepared().is_constant() {
        warnings.push(format!(
            "the float network has the same outputs for all {n} held-out samples, so accuracy cannot be measured: check the data and --preprocess"
        ));
        return;
    }
    let overlap = measured.overlap().filter(|overlap| *overlap < LEAST_OVERLAP);
    if let Some(overlap) = overlap {
        let db = measured.mean(SQNR).unwrap_or_default();
        warnings.push(format!(
            "the quantized outputs are far from the float ones: overlap {overlap:.3} (SQNR {db:.2} dB) on {n} held-out samples, expected {LEAST_OVERLAP} or more; try --keep-float 8, or check --preprocess"
        ));
    }
}
