//! SmoothQuant: channel scales for the linear layers of transformers, with one exponent for the network.
//!
//! With scales s a layer's input x becomes x / s and its weight W becomes W s, where channel j has
//! `s_j = max |x_j|^a / max |W_j|^(1 - a)`. The producer of x absorbs 1 / s where it feeds nothing else, as the gain of
//! a normalization does; elsewhere a Mul is inserted. The exponent a is chosen by the outputs of the network: the error
//! of single layers misleads. Source: Xiao et al. 2022, arXiv 2211.10438, section 4. Then channels are shifted as well,
//! with this exponent or the next lower one: `x / s` becomes `(x - c) / s` with c in the middle of a channel's range,
//! where the biases of all readers can absorb c.
//!
//! The larger the exponent, the more channels fill the range, and the more often an unseen sample exceeds it. Where a
//! transformer was observed on few samples, one half of the evaluation samples gives the channels' ranges, and the
//! other half chooses the exponent. The scales that are written follow from all samples.

use super::local_bias::LOCAL_BIAS;
use crate::calibrate::{CalibrationStatistics, channel_extremes};
use crate::diag::count;
use crate::equalize::{EqualizationGroup, describe_inserted, groups_of_inserted, own_bias, shift};
use crate::onnx::edit::{InsertedMul, ModelEdit, edited};
use crate::onnx::graph::GraphIndex;
use crate::onnx::proto::GraphProto;
use crate::place::place;
use crate::plan::decide;
use crate::simulate::Samples;
use crate::statistics::{ChannelExtremes, Extremes, TensorStatistics};
use crate::tune::accept::{INSERTION, NARROW};
use crate::tune::compare::Biases;
use crate::tune::method::{Action, ChoiceContext, Chosen, Method};
use crate::tune::outcome::MethodOutcome;
use crate::tune::setup::{Evaluation, PlannedModel, Setup};
use crate::tune::variants::{Best, Trial, Variant};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The method of channel scales for the linear layers of transformers.
pub const SMOOTH: Method = Method {
    name: "smooth",
    title: "smoothing",
    about: "scales (SmoothQuant) and offsets (Outlier Suppression+) of channels before the linear layers of \
     transformers; a Mul and an Add are inserted where no node can absorb them",
    is_tried: |case| case.effort.level() > 0,
    waits: false,
    action: Action::Choice(choose),
};

/// Candidate exponents `a`.
const EXPONENTS: &[f64] = &[0.5, 0.7, 0.85, 0.95];
/// Candidate exponents where an inserted Mul reads integers. Activations then gain nothing, but rows of weights become
/// alike.
const EXPONENTS_OF_WEIGHTS: &[f64] = &[0.0, 0.25, 0.5];
/// Minimum samples for the choice of an exponent.
const LEAST_SAMPLES: usize = 16;
/// Lower limit of a channel's and a weight's largest value.
const LEAST: f64 = 1e-5;

/// Applies the channel scales of the best exponent, where they gain. Then shifts channels, where that gains more.
fn choose(context: &ChoiceContext, planned: &mut PlannedModel, known: &mut Option<Evaluation>) -> Result<Chosen> {
    let ChoiceContext { setup, calibration, .. } = *context;
    let Some(data) = setup.samples.filter(|_| !setup.has_given_ranges) else { return Ok(Chosen::default()) };
    let all = calibration.channels();
    let plain = LinearInputs::of(setup, planned, all, false)?;
    if plain.groups.is_empty() {
        return Ok(Chosen::default());
    }
    let samples = context.samples(data, &planned.model, known.as_ref())?;
    if samples.len() < LEAST_SAMPLES {
        let reason = format!("found {}, expected {LEAST_SAMPLES} or more", count(samples.len(), "sample"));
        return Ok(Chosen { outcomes: vec![MethodOutcome::skipped(SMOOTH.name, reason)], ..Chosen::default() });
    }
    let (names, values) = (data.names(), data.values(samples.clone())?);
    let data = Samples { names: &names, values: &values };
    let exponents = if setup.scheme.scales_in_float() { EXPONENTS } else { EXPONENTS_OF_WEIGHTS };
    // In other networks few layers are smoothed, and half of the samples would not tell one exponent from another.
    let has_few = planned.placement.is_transformer && 2 * samples.len() > calibration.n_samples;
    // Biases stay uncorrected here: correction on the quantized network hides the effect of an exponent.
    let reference = known.take().map(|known| known.reference.without_corrected());
    let mut trial = Trial::new(SMOOTH, setup, planned, data, Biases::Kept, reference);
    let smoothed = |exponent| plain.smoothed(setup, planned, calibration, exponent);
    let (tried, of_half) = if has_few {
        let (which, of_half) = choose_by_half(context, planned, samples.start, data, exponents)?;
        enter(&mut trial, exponents[which], smoothed)?;
        (vec![which], of_half)
    } else {
        (climb(&mut trial, exponents, smoothed)?.1, Vec::new())
    };
    let (best, mut outcomes, of_plan) = trial.finish();
    let Some(Best { variant: mut chosen, outcome: mut at, reference, .. }) = best else {
        *known = of_plan.map(|reference| Evaluation { samples, reference });
        return Ok(Chosen { outcomes: [of_half, outcomes].concat(), ..Chosen::default() });
    };
    let (mut reference, mut detail) = (Some(reference), plain.describe(setup));
    let shifts = setup.scheme.scales_in_float() && context.methods.contains(LOCAL_BIAS.name);
    let shifted = if shifts { Some(LinearInputs::of(setup, planned, all, true)?) } else { None };
    if let Some(shifted) = shifted.filter(|shifted| shifted.n_shifted() > 0) {
        // With corrected biases: a weight's mean error is multiplied by the mean of its input, which a shift by the
        // middle moves away from 0.
        let mut trial = Trial {
            model: &chosen.model,
            plan: &chosen.decided.0,
            placement: &chosen.placement,
            ..Trial::new(SMOOTH, setup, planned, data, Biases::Corrected(LOCAL_BIAS), None)
        };
        // Shifted channels have smaller ranges, for which a lower exponent may be better.
        let which = tried[at];
        for &exponent in exponents[which.saturating_sub(1)..=which].iter().rev() {
            let make = || shifted.smoothed(setup, planned, calibration, exponent);
            let make = || Ok(Variant { scalings: None, ..make()? });
            if trial.enter(Some(format!("{} with shift", alpha(exponent))), NARROW, make)? <= 0.0 {
                break;
            }
        }
        let (best, more, _) = trial.finish();
        let n_plain = outcomes.len();
        outcomes.extend(more);
        if let Some(best) = best {
            let name = outcomes[n_plain + best.outcome].variant.clone().unwrap_or_default();
            outcomes[at].reject_for(&name);
            (chosen, at, reference, detail) = (best.variant, n_plain + best.outcome, None, shifted.describe(setup));
        }
    }
    outcomes[at].details.push(detail);
    planned.replan(chosen.decided);
    planned.edit(chosen.edits)?;
    planned.placement = chosen.placement;
    *known = reference.map(|reference| Evaluation { samples, reference });
    Ok(Chosen { outcomes: [of_half, outcomes].concat(), statistics: chosen.statistics, ..Chosen::default() })
}

/// Measures an exponent. Returns its gain.
fn enter(trial: &mut Trial, exponent: f64, smoothed: impl Fn(f64) -> Result<Variant>) -> Result<f64> {
    trial.enter(Some(alpha(exponent)), INSERTION, || smoothed(exponent))
}

/// Returns the name of an exponent, after the paper's: `alpha 0.85`.
fn alpha(exponent: f64) -> String {
    format!("alpha {exponent}")
}

/// Climbs to the exponent with the largest gain. Returns its position, and the positions that were tried.
fn climb(
    trial: &mut Trial,
    exponents: &[f64],
    smoothed: impl Fn(f64) -> Result<Variant>,
) -> Result<(usize, Vec<usize>)> {
    let mut climb = Climb::new(exponents.len());
    let mut tried = Vec::new();
    while let Some(which) = climb.untried() {
        climb.gained(which, enter(trial, exponents[which], &smoothed)?);
        tried.push(which);
    }
    Ok((climb.best(), tried))
}

/// Finds the best exponent on the second half of the samples, with the channels' ranges of the first half. The samples
/// begin at position `start` in the order by content. Returns the position of the exponent, and the outcomes of the
/// others.
fn choose_by_half(
    context: &ChoiceContext,
    planned: &PlannedModel,
    start: usize,
    samples: Samples,
    exponents: &[f64],
) -> Result<(usize, Vec<MethodOutcome>)> {
    let ChoiceContext { setup, calibration, .. } = *context;
    let data = setup.samples.context("there are no calibration samples")?;
    let half = samples.len() / 2;
    let tensors = calibration.channels().keys().cloned().collect();
    let channels = channel_extremes(&planned.model, setup.shapes, tensors, data, start..start + half, setup.progress)?;
    let inputs = LinearInputs::of(setup, planned, &channels, false)?;
    let others = Samples { values: &samples.values[half..], ..samples };
    let mut trial = Trial::new(SMOOTH, setup, planned, others, Biases::Kept, None);
    let smoothed = |exponent| inputs.smoothed(setup, planned, calibration, exponent);
    let (best, tried) = climb(&mut trial, exponents, smoothed)?;
    let (_, mut outcomes, _) = trial.finish();
    outcomes.iter_mut().for_each(|outcome| outcome.reject_for(&alpha(exponents[best])));
    let of_others = tried.into_iter().zip(outcomes).filter(|(which, _)| *which != best);
    Ok((best, of_others.map(|(_, outcome)| outcome).collect()))
}

/// A hill climb over neighboring positions: two in the middle, then on from the better one while that gains.
struct Climb {
    gains: Vec<Option<f64>>,
}

impl Climb {
    fn new(n: usize) -> Climb {
        Climb { gains: vec![None; n] }
    }

    fn gained(&mut self, which: usize, gain: f64) {
        self.gains[which] = Some(gain);
    }

    /// Returns the position with the largest gain; the middle before anything was tried.
    fn best(&self) -> usize {
        let tried = self.gains.iter().enumerate().filter_map(|(which, gain)| Some((which, (*gain)?)));
        let best = tried.reduce(|best, other| if other.1 > best.1 { other } else { best });
        best.map_or((self.gains.len() - 1) / 2, |(which, _)| which)
    }

    /// Returns the next position to try: the best position or a neighbor of it.
    fn untried(&self) -> Option<usize> {
        let best = self.best();
        let around = [Some(best), best.checked_add(1), best.checked_sub(1)];
        around.into_iter().flatten().find(|&which| self.gains.get(which).is_some_and(Option::is_none))
    }
}

/// The inputs of the linear layers of a transformer, in groups that share channel scales.
struct LinearInputs {
    /// Muls for the scales that no node can absorb.
    muls: Vec<InsertedMul>,
    /// The groups, on the model with these Muls.
    groups: Vec<LinearGroup>,
}

/// Inputs of layers that share channel scales.
struct LinearGroup {
    group: EqualizationGroup,
    ranges: ChannelRanges,
    /// Edits that shift the channels; empty where they stay.
    shift: Vec<ModelEdit>,
}

/// Ranges of a group's channels.
struct ChannelRanges {
    /// Extremes of the inputs, per channel.
    inputs: Vec<Extremes>,
    /// Largest absolute weight of the readers, per channel.
    weights: Vec<f64>,
}

impl LinearInputs {
    /// Finds the groups of a model. `channels` holds the extremes of channels by tensor. With `shifted`, channels are
    /// shifted where biases allow it.
    fn of(
        setup: Setup,
        planned: &PlannedModel,
        channels: &BTreeMap<String, ChannelExtremes>,
        shifted: bool,
    ) -> Result<LinearInputs> {
        let linear = planned.placement.activations.iter().filter(|quantizer| quantizer.linear);
        let linear: BTreeSet<&String> = linear.map(|quantizer| &quantizer.tensor).collect();
        let quantized: BTreeSet<&String> = planned.placement.activations.iter().map(|it| &it.tensor).collect();
        let is_linear = |mul: &&InsertedMul| linear.contains(&mul.tensor);
        let plain = planned.model.graph()?;
        let index = GraphIndex::new(plain);
        let is_shifted = |mul: &InsertedMul| {
            let reader =
                |output: &String| index.producer_idx(output).and_then(|reader| own_bias(plain, &index, reader));
            shifted && mul.readers.iter().all(|output| reader(output).is_some())
        };
        let with_add = |mul: &InsertedMul| if is_shifted(mul) { mul.clone() } else { mul.without_add() };
        let mut muls: Vec<InsertedMul> = setup.insertable.iter().filter(is_linear).map(with_add).collect();
        let sources: BTreeMap<&String, &String> = muls.iter().map(|mul| (&mul.output, &mul.tensor)).collect();
        let source = |tensor: &String| sources.get(tensor).map_or(tensor.clone(), |source| (*source).clone());
        let (model, all) = groups_of_inserted(&planned.model, setup.value_info, &muls)?;
        let graph = model.graph()?;
        let index = GraphIndex::new(graph);
        let mut groups = Vec::new();
        let mut shifted_constants = BTreeSet::new();
        let replaced = |edit: &ModelEdit| match edit {
            ModelEdit::ReplaceValues(new) => Some(new.tensor.clone()),
            _ => None,
        };
        for group in all {
            let is_of_layers = group.consumers.iter().all(|end| linear.contains(&source(&end.tensor)));
            let ranges = || ChannelRanges::of(&group, &index, graph, |tensor| channels.get(&source(tensor)));
            // A group with other quantized tensors is left out, because their scaled ranges were not observed.
            let others =
                group.tensors.keys().filter(|tensor| !group.consumers.iter().any(|end| end.tensor == **tensor));
            if !group.consumers.is_empty()
                && is_of_layers
                && others.clone().all(|other| !quantized.contains(other))
                && let Some(mut ranges) = ranges()
            {
                let middles = ranges.middles();
                let mut shift = if shifted { shift(&group, graph, &index, &middles) } else { None }.unwrap_or_default();
                // A bias can absorb one offset, not two. Two groups share a bias where a linear layer reads the output
                // of another.
                let constants: BTreeSet<String> = shift.iter().filter_map(replaced).collect();
                if constants.is_disjoint(&shifted_constants) {
                    shifted_constants.extend(constants);
                } else {
                    shift.clear();
                }
                if !shift.is_empty() {
                    ranges.shift(&middles);
                }
                groups.push(LinearGroup { group, ranges, shift });
            }
        }
        muls.retain(|mul| groups.iter().any(|one| one.group.tensors.contains_key(&mul.output)));
        Ok(LinearInputs { muls, groups })
    }

    /// Makes the variant with the channel scales of an exponent.
    fn smoothed(
        &self,
        setup: Setup,
        planned: &PlannedModel,
        calibration: &CalibrationStatistics,
        exponent: f64,
    ) -> Result<Variant> {
        let mut edits: Vec<ModelEdit> = self.muls.iter().cloned().map(ModelEdit::InsertMul).collect();
        // Shifts come before scales: the shifted bias may belong to a layer that absorbs scales.
        edits.extend(self.groups.iter().flat_map(|group| group.shift.iter().cloned()));
        let (mut scalings, mut statistics) = (BTreeMap::new(), BTreeMap::new());
        for LinearGroup { group, ranges, .. } in &self.groups {
            let scales = ranges.scales(exponent);
            edits.extend(group.edits(&scales)?);
            for (tensor, channels) in &group.tensors {
                scalings.insert(tensor.clone(), channels.scaling(&scales));
            }
            for end in &group.consumers {
                let mut of_input = TensorStatistics::default();
                for (extremes, scale) in ranges.inputs.iter().zip(&scales) {
                    let ends = extremes.get();
                    ends.into_iter().for_each(|(min, max)| of_input.observe_extremes(&[min / scale, max / scale]));
                }
                statistics.insert(end.tensor.clone(), of_input);
            }
        }
        let model = edited(&planned.model, &edits)?;
        let graph = model.graph()?;
        let placement = place(graph, setup.value_info, setup.scheme, setup.selection);
        let of_placement = calibration.for_quantizers_with(&placement, &statistics);
        let decided = decide(graph, &placement, &of_placement, None, setup.scheme, setup.range_observers())?;
        Ok(Variant { edits, placement, decided, scalings: Some(scalings), statistics, model })
    }

    fn n_shifted(&self) -> usize {
        self.groups.iter().filter(|group| !group.shift.is_empty()).count()
    }

    fn describe(&self, setup: Setup) -> String {
        let shifted = match self.n_shifted() {
            0 => String::new(),
            n => format!(" ({n} shifted)"),
        };
        let inserted = describe_inserted(&self.muls, setup.value_info);
        format!("{}{shifted}, {inserted}", count(self.groups.len(), "layer input"))
    }
}

impl ChannelRanges {
    /// Returns the ranges of a group's channels; `None` where the channels of an input were not observed, or a reader's
    /// weight is not constant.
    fn of<'a>(
        group: &EqualizationGroup,
        index: &GraphIndex,
        graph: &GraphProto,
        channels_of: impl Fn(&String) -> Option<&'a ChannelExtremes>,
    ) -> Option<ChannelRanges> {
        let mut ranges = ChannelRanges { inputs: vec![Extremes::NONE; group.n], weights: vec![0.0; group.n] };
        for end in &group.consumers {
            let observed = &channels_of(&end.tensor)?.by_channel;
            if observed.len() != end.channels.n_entries() {
                return None;
            }
            for (i, extremes) in observed.iter().enumerate() {
                ranges.inputs[end.channels.of(i)].widen(*extremes);
            }
            let weight_channels = end.weight_channels?;
            for (i, value) in index.floats(graph.node[end.node].input.get(end.slot)?)?.iter().enumerate() {
                let largest = &mut ranges.weights[end.channels.of(weight_channels.ends(i).1)];
                *largest = largest.max(f64::from(value.abs()));
            }
        }
        Some(ranges)
    }

    /// Returns the middle of each channel's range.
    fn middles(&self) -> Vec<f32> {
        self.inputs.iter().map(|extremes| extremes.get().map_or(0.0, |(min, max)| min / 2.0 + max / 2.0)).collect()
    }

    /// Subtracts an offset from each channel.
    fn shift(&mut self, offsets: &[f32]) {
        for (Extremes { min, max }, offset) in self.inputs.iter_mut().zip(offsets) {
            (*min, *max) = (*min - offset, *max - offset);
        }
    }

    /// Returns one scale per channel, with geometric mean 1.
    fn scales(&self, exponent: f64) -> Vec<f32> {
        let log = |(extremes, weight): (&Extremes, &f64)| {
            let input = extremes.get().map_or(0.0, |(min, max)| f64::from(max.max(-min)));
            exponent * input.max(LEAST).ln() - (1.0 - exponent) * weight.max(LEAST).ln()
        };
        let logs: Vec<f64> = self.inputs.iter().zip(&self.weights).map(log).collect();
        let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
        logs.iter().map(|log| (log - mean).exp() as f32).collect()
    }
}
