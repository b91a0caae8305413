//! Equalized channels, where they pay on calibration samples.
//!
//! A short pass over the float model looks at the channels and proposes channel scales. The pass that observes the
//! model then observes what the tensors would be with these as well, and the better of the two plans is accepted.

use super::channel_scales::ChannelScales;
use crate::equalize::{Skipped, find};
use crate::tune::method::{Action, FloatProposal, Method, ModelContext};
use anyhow::{Context, Result, ensure};

/// Channel scales from each layer to the next: [`crate::equalize`].
pub const EQUALIZE: Method = Method {
    name: "equalize",
    title: "equalization",
    about: "scales of channels from each layer to the next, which leave the float outputs as they are",
    is_tried: |case| case.effort.level() > 0,
    needs: &[],
    action: Action::FloatModel(propose),
};

/// Samples by which channel scales are chosen, at most.
const MAX_SAMPLES: usize = 32;
/// Fewest. Channel scales follow from the largest value of each channel, which a few samples do not show.
const LEAST_SAMPLES: usize = 16;

/// The channel scales that some of the samples suggest.
///
/// # Errors
/// If there are too few samples, or they cannot be run.
fn propose(context: &ModelContext) -> Result<FloatProposal> {
    let ModelContext { setup, model, placement, progress } = *context;
    let graph = model.graph.as_ref().context("model has no graph")?;
    let (groups, skipped) = find(graph, setup.value_info);
    ensure!(!setup.has_given_ranges, "ranges from a file are for the tensors as they are");
    if groups.is_empty() {
        return Ok(FloatProposal { notes: skipped.iter().map(note).collect(), ..FloatProposal::default() });
    }
    let samples = setup.samples.context("there is no data")?.put_in_order(progress)?;
    let n = samples.len();
    ensure!(n >= LEAST_SAMPLES, "{n} samples, expected {LEAST_SAMPLES} or more");
    let n_looked_at = setup.options.effort.n_samples(setup.value_info.largest_activation(model)).min(n);
    let n_samples = (n_looked_at - n_looked_at / 4).clamp(LEAST_SAMPLES, MAX_SAMPLES).min(n);
    let scales = ChannelScales::choose(setup, model, placement, groups, skipped, &samples[..n_samples])?;
    let (n_groups, n_skipped) = (scales.n_groups(), scales.skipped.len());
    let details =
        format!("channel scales of {n_groups} groups of tensors, chosen on {n_samples} samples; {n_skipped} skipped");
    Ok(FloatProposal {
        edits: scales.edits()?,
        scalings: scales.scalings(),
        details: vec![details],
        notes: scales.groups(graph).into_iter().chain(scales.skipped.iter().map(note)).collect(),
    })
}

fn note(Skipped { tensor, reason }: &Skipped) -> String {
    format!("`{tensor}` skipped: {reason}")
}
