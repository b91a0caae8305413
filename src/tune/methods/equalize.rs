//! Cross-layer equalization, where it gains on calibration samples.
//!
//! A short pass over the float model collects channel statistics and proposes channel scales. The calibration pass then
//! observes the scaled tensors as well, and the better of the two plans is kept.

use super::channel_scales::ChannelScales;
use crate::diag::count;
use crate::equalize::{ScaleOptions, Skipped, find};
use crate::onnx::proto::ModelProto;
use crate::tune::method::{Action, FloatProposal, Method, ModelContext};
use crate::tune::setup::Setup;
use anyhow::{Context, Result, ensure};

/// The method of channel scales between consecutive layers: [`crate::equalize`].
pub const EQUALIZE: Method = Method {
    name: "equalize",
    title: "equalization",
    about: "channel scales between consecutive layers (cross-layer equalization); the float outputs stay the same",
    is_tried: |case| case.effort.level() > 0 && !case.transformer,
    waits: false,
    action: Action::FloatModel(propose),
};

/// Maximum samples for the choice of channel scales.
const MAX_SAMPLES: usize = 32;
/// Least promised gain of a group that gets scales.
const SCALES: ScaleOptions = ScaleOptions { least_gain_db: 0.05, least_share: 0.25 };
/// Minimum samples. Channel scales depend on the largest value of each channel, which a few samples do not show.
const LEAST_SAMPLES: usize = 16;

/// Proposes channel scales from some of the samples. Fails if there are too few samples, or they cannot be run.
fn propose(context: &ModelContext) -> Result<FloatProposal> {
    let ModelContext { setup, model, placement } = *context;
    let graph = model.graph()?;
    let (mut groups, skipped) = find(graph, setup.value_info);
    // `smooth` handles the inputs of a transformer's linear layers.
    let is_linear = |tensor: &String| placement.activations.iter().any(|q| q.linear && q.tensor == *tensor);
    groups.retain(|group| !group.consumers.iter().any(|end| is_linear(&end.tensor)));
    ensure!(!setup.has_given_ranges, "ranges from a file are only valid without channel scales");
    if groups.is_empty() {
        return Ok(FloatProposal { notes: skipped.iter().map(note).collect(), ..FloatProposal::default() });
    }
    let samples = scale_samples(setup, model)?;
    let n_samples = samples.len();
    let groups = (groups, skipped);
    let scales = ChannelScales::choose(setup, model, placement, groups, samples, SCALES)?;
    let (n_groups, n_skipped) = (scales.n_groups(), scales.skipped.len());
    let (groups, chosen) = (count(n_groups + n_skipped, "tensor group"), count(n_samples, "sample"));
    let details = format!("channel scales of {n_groups} of {groups}, chosen on {chosen}");
    Ok(FloatProposal {
        edits: scales.edits()?,
        scalings: scales.scalings(),
        details: vec![details],
        notes: scales.groups(graph).into_iter().chain(scales.skipped.iter().map(note)).collect(),
    })
}

/// Returns the samples for the choice of channel scales, as positions in the data. Fails if there are too few samples.
pub(super) fn scale_samples<'a>(setup: Setup<'a>, model: &ModelProto) -> Result<&'a [usize]> {
    let samples = setup.samples.context("there is no data")?.put_in_order(setup.progress)?;
    let n = samples.len();
    ensure!(n >= LEAST_SAMPLES, "found {}, expected {LEAST_SAMPLES} or more", count(n, "sample"));
    let n_scale_samples = setup.options.effort.n_samples(setup.value_info.largest_activation(model)).min(n);
    Ok(&samples[..(n_scale_samples - n_scale_samples / 4).clamp(LEAST_SAMPLES, MAX_SAMPLES).min(n)])
}

fn note(Skipped { tensor, reason }: &Skipped) -> String {
    format!("`{tensor}` skipped: {reason}")
}
