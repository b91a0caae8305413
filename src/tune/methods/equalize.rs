//! Equalized channels, where they pay on calibration samples.
//!
//! A short pass over the float model looks at the channels and proposes channel scales. The pass that observes the
//! model then observes what the tensors would be with these as well, and the better of the two plans is accepted.

use super::channel_scales::{ChannelScales, ScaledGroup};
use super::{Method, Stage, Touches};
use crate::calibrate::CalibrationStatistics;
use crate::equalize::{EqualizationGroup, Skipped, find};
use crate::onnx::edit::edited;
use crate::onnx::proto::ModelProto;
use crate::place::Placement;
use crate::plan::{QuantPlan, decide};
use crate::progress::Progress;
use crate::quant::ChannelScaling;
use crate::simulate::Samples;
use crate::tune::accept::CHANGE;
use crate::tune::{Compared, Evaluation, MethodOutcome, PlannedModel, Setup, compare_plans};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::time::Instant;

/// Channel scales from each layer to the next: [`crate::equalize`].
pub const EQUALIZE: Method = Method {
    name: "equalize",
    title: "equalization",
    about: "scales of channels from each layer to the next, which leave the float outputs as they are",
    stage: Stage::FloatModel,
    is_tried: |case| case.effort.level() > 0,
    needs: &[],
    touches: Touches::NONE,
    hook: None,
};

/// Samples by which channel scales are chosen, at most.
const MAX_SAMPLES: usize = 32;
/// Fewest. Channel scales follow from the largest value of each channel, which a few samples do not show.
const LEAST_SAMPLES: usize = 16;

/// What equalization did.
#[derive(Debug, Clone, Default)]
pub struct Equalized {
    /// What became of it.
    pub outcome: MethodOutcome,
    /// The groups of tensors that got channel scales, accepted or not.
    pub groups: Vec<ScaledGroup>,
    /// What got no channel scales.
    pub skipped: Vec<Skipped>,
}

/// What equalization would change, before the model is observed.
pub struct Proposal {
    /// The channel scales and the number of samples that they were chosen by, or why there are none.
    scales: Result<(ChannelScales, usize)>,
    seconds: f64,
}

/// Looks at the data and proposes channel scales, where the options ask for it and there is data to run.
///
/// # Errors
/// If a sample cannot be read, unless such samples are left out.
pub fn propose(
    setup: Setup,
    model: &ModelProto,
    placement: &Placement,
    progress: &Progress,
) -> Result<Option<Proposal>> {
    let (Some(samples), true) = (setup.samples, setup.equalizes()) else { return Ok(None) };
    let start = Instant::now();
    let graph = model.graph.as_ref().context("model has no graph")?;
    let (groups, skipped) = find(graph, setup.value_info);
    let by_content = match groups.is_empty() || setup.has_given_ranges {
        true => &[][..],
        false => samples.put_in_order(progress)?,
    };
    let scales = chosen(setup, model, placement, groups, skipped, by_content);
    Ok(Some(Proposal { scales, seconds: start.elapsed().as_secs_f64() }))
}

/// The channel scales that some of the samples suggest, and the number of these.
///
/// # Errors
/// If there are too few, or they cannot be run.
fn chosen(
    setup: Setup,
    model: &ModelProto,
    placement: &Placement,
    groups: Vec<EqualizationGroup>,
    skipped: Vec<Skipped>,
    samples: &[usize],
) -> Result<(ChannelScales, usize)> {
    ensure!(!setup.has_given_ranges, "ranges from a file are for the tensors as they are");
    let n = samples.len();
    ensure!(groups.is_empty() || n >= LEAST_SAMPLES, "{n} samples, expected {LEAST_SAMPLES} or more");
    let effort = setup.options.effort;
    let largest = setup.value_info.largest_activation(model);
    let n_looked_at = effort.n_samples(largest).min(n);
    let n_samples = (n_looked_at - n_looked_at / 4).clamp(LEAST_SAMPLES, MAX_SAMPLES).min(n);
    let scales = ChannelScales::choose(setup, model, placement, groups, skipped, &samples[..n_samples])?;
    Ok((scales, n_samples))
}

impl Proposal {
    /// What tensors are to be observed with as well.
    pub fn scalings(&self) -> BTreeMap<String, ChannelScaling> {
        let scales = self.scales.as_ref().ok();
        scales.map(|(scales, _)| scales.scalings()).unwrap_or_default()
    }

    /// Changes the model and its plan where that is accepted; `calibration` is of the model that stays. The plan gets a
    /// warning where equalization cannot run. Gives what it did, and what is known by evaluating it.
    pub fn evaluate(
        self,
        setup: Setup,
        planned: &mut PlannedModel,
        calibration: &mut CalibrationStatistics,
    ) -> (Equalized, Option<Evaluation>) {
        let start = Instant::now();
        let outcome =
            self.scales.and_then(|(scales, n_samples)| attempt(setup, planned, calibration, scales, n_samples));
        let (mut equalized, known) = outcome.unwrap_or_else(|error| {
            planned.plan.warnings.push(format!("equalization skipped: {error:#}"));
            let outcome = MethodOutcome::skipped(EQUALIZE.name, format!("{error:#}"));
            (Equalized { outcome, ..Equalized::default() }, None)
        });
        equalized.outcome.seconds = self.seconds + start.elapsed().as_secs_f64();
        (equalized, known)
    }
}

/// Evaluates the channel scales. `calibration` is of the model without them, and where they are accepted of the one with
/// them.
fn attempt(
    setup: Setup,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
    scales: ChannelScales,
    n_samples: usize,
) -> Result<(Equalized, Option<Evaluation>)> {
    let PlannedModel { model, placement, plan } = &*planned;
    let groups = scales.groups(model.graph.as_ref().context("model has no graph")?);
    let skipped = scales.skipped.clone();
    if scales.is_empty() {
        let outcome = MethodOutcome::skipped(EQUALIZE.name, "no layers to equalize".to_string());
        return Ok((Equalized { outcome, groups, skipped }, None));
    }
    let data = setup.samples.context("nothing was observed")?;
    let evaluated_by = setup.evaluation_samples(data, model, plan)?;
    let edits = scales.edits()?;
    let scaled = edited(model, &edits)?;
    let scalings = scales.scalings();
    let scaled_graph = scaled.graph.as_ref().context("model has no graph")?;
    let statistics = calibration.of_scaled(placement);
    let observers = setup.range_observers();
    let scaled_plan = decide(scaled_graph, placement, &statistics, None, setup.scheme, observers)?;
    let (names, values) = (data.names(), data.values(evaluated_by.clone())?);
    let samples = Samples { names: &names, values: &values };
    let compared = Compared {
        models: [model, &scaled],
        plans: [plan, &scaled_plan],
        placement,
        scalings: Some(&scalings),
        table: setup.weight_scheme(),
        axes: setup.axes,
        corrected: setup.methods(plan).touches().corrects_biases(),
    };
    let (gain, [of_model, of_scaled]) = compare_plans(compared, samples, None)?;
    let mut outcome = MethodOutcome::judged(EQUALIZE.name, &gain, CHANGE, evaluated_by.len());
    outcome.details.push(format!(
        "channel scales of {} groups of tensors, chosen on {n_samples} samples; {} skipped",
        groups.len(),
        skipped.len()
    ));
    calibration.settle_scaled(outcome.accepted);
    let reference = if outcome.accepted { of_scaled } else { of_model };
    if outcome.accepted {
        (planned.model, planned.plan) = (scaled, QuantPlan { edits, ..scaled_plan });
    }
    let known = reference.map(|reference| Evaluation { samples: evaluated_by, reference });
    Ok((Equalized { outcome, groups, skipped }, known))
}
