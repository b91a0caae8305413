//! Ranges of activations with the least error at the outputs of the layers that read them.
//!
//! A tensor's own squared error weighs all channels alike, but a layer may depend little or much on the channel whose
//! outliers widen the range. So the layers run with several scales, and the one with the least error against their
//! float outputs is kept. Where several observers are candidates, the search begins at the best of their ranges.

mod early_ranges;
mod reader;

pub use reader::relative_error;

use super::bias::BIAS;
use crate::engine::Value;
use crate::place::clips::FoldableClip;
use crate::plan::{PlannedActivation, QuantPlan, RangeCandidate};
use crate::quant::{QuantParams, Range};
use crate::scheme::ScaleKind;
use crate::simulate::{Candidate, LayerHook, Network, TensorAt, fake_quantize};
use crate::tune::method::{Action, LayerContext, Method};
use anyhow::Result;
use early_ranges::{EarlyRanges, early_ranges};
use reader::{LayerReader, Quantized, readers};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The method that searches ranges of activations with the least error at the outputs of the layers that read them.
pub const RANGES: Method = Method {
    name: "ranges",
    title: "range search",
    about: "ranges of activations, to minimize the error at the outputs of the next layers",
    is_tried: |case| case.effort.level() == 2 && !case.rounding_matters,
    waits: true,
    action: Action::Layer(hook),
};

fn hook<'a>(context: &'a LayerContext<'a>) -> Result<Box<dyn LayerHook + 'a>> {
    let LayerContext { model, plan, samples, kept, .. } = *context;
    let corrects = context.has(BIAS.name);
    let decided = kept.get(|| early_ranges(model, plan, samples, corrects))?;
    Ok(Box::new(RangeSearch { corrects, settled: BTreeSet::new(), decided }))
}

/// Factors on the scale, downwards and upwards. Each direction stops when the error does not fall.
const SHARES: [&[f32]; 2] = [&[0.9, 0.8, 0.7, 0.6, 0.5], &[1.1, 1.2]];
/// The same for scales that are powers of two.
const POWERS: [&[f32]; 2] = [&[0.5], &[2.0]];
/// Least relative fall of the error; a smaller one may be chance.
const LEAST_GAIN: f64 = 0.05;
/// Samples that are run for each scale.
const N_SAMPLES: usize = 16;

/// Candidate ranges of a group of activations.
struct GroupCandidates {
    /// The planned range, and those of other observers.
    found: Vec<RangeCandidate>,
    scale: ScaleKind,
    min_scale: f32,
    /// Relus and Clips that are removed because the quantization range clips the same values. So must every candidate.
    removed: Vec<FoldableClip>,
}

impl GroupCandidates {
    /// Collects the candidates of a group; `None` where the group's range is given, or must hold all values.
    fn of(plan: &QuantPlan, group: usize) -> Option<GroupCandidates> {
        let members = || plan.activations.iter().filter(|p| p.quantizer.group == group);
        if members().any(|p| p.quantizer.fixed.is_some() || p.quantizer.keeps_ends()) {
            return None;
        }
        let first = members().next()?;
        let PlannedActivation { observer, range, params, .. } = *first;
        let mut candidates = GroupCandidates {
            found: vec![RangeCandidate { observer, range, params }],
            scale: first.qtype.scale,
            min_scale: first.qtype.min_scale() as f32,
            removed: members().filter_map(|p| p.removed_clip().cloned()).collect(),
        };
        let others: Vec<RangeCandidate> =
            first.candidates.iter().filter(|other| candidates.allows(other)).cloned().collect();
        candidates.found.extend(others);
        Some(candidates)
    }

    fn allows(&self, RangeCandidate { params, .. }: &RangeCandidate) -> bool {
        self.removed.iter().all(|clip| clip.has_no_effect_on(params))
    }

    /// Returns candidates around `of` with smaller and with larger scales, nearest first, up to the first that is not
    /// allowed.
    fn rescaled(&self, of: &RangeCandidate) -> [Vec<RangeCandidate>; 2] {
        let shares = if self.scale == ScaleKind::PowerOfTwo { POWERS } else { SHARES };
        let at = |&share: &f32| {
            let params = QuantParams { scale: of.params.scale * share, ..of.params };
            let by = f64::from(share);
            let range = Range { min: of.range.min * by, max: of.range.max * by };
            RangeCandidate { observer: "layer-error", range, params }
        };
        let usable = |other: &RangeCandidate| {
            let scale = other.params.scale;
            scale.is_normal() && scale >= self.min_scale && self.allows(other)
        };
        shares.map(|shares| shares.iter().map(at).take_while(usable).collect())
    }
}

/// Returns the first of the `candidates` with the least error, and that error; `None` without candidates.
pub fn least_error<C>(candidates: &[C], mut error: impl FnMut(&C) -> Result<f64>) -> Result<Option<(&C, f64)>> {
    let mut best: Option<(&C, f64)> = None;
    for candidate in candidates {
        let error = error(candidate)?;
        if best.is_none_or(|(_, least)| error < least) {
            best = Some((candidate, error));
        }
    }
    Ok(best)
}

/// Returns the best candidate in `directions`, if its error is less than `plain` by `LEAST_GAIN`. Each direction starts
/// from the error `start` and is followed while `error` falls.
pub fn follow_descent<C>(
    start: f64,
    plain: f64,
    directions: [Vec<C>; 2],
    mut error: impl FnMut(&C) -> Result<f64>,
) -> Result<Option<C>> {
    let (mut best, mut least) = (None, plain * (1.0 - LEAST_GAIN));
    for direction in directions {
        let mut last = start;
        for candidate in direction {
            let error = error(&candidate)?;
            if error >= last {
                break;
            }
            last = error;
            if error < least {
                (best, least) = (Some(candidate), error);
            }
        }
    }
    Ok(best)
}

/// Returns the error at the outputs of all `readers` relative to their signal, for the fake-quantized values `x`.
fn error(readers: &[LayerReader], x: &[Value], params: &QuantParams) -> Result<f64> {
    let fake_quantized = fake_quantize(x.to_vec(), params)?;
    readers.iter().map(|reader| reader.error(&fake_quantized)).sum()
}

/// A search for the ranges of a candidate's activations.
struct RangeSearch {
    /// Whether biases are corrected by the float network.
    corrects: bool,
    /// Groups of activations that the pass has reached. Their ranges are final.
    settled: BTreeSet<usize>,
    /// Ranges that were chosen before the pass.
    decided: Rc<EarlyRanges>,
}

impl RangeSearch {
    /// Sets a group's range; the pass must not have reached the group yet.
    fn settle(&mut self, candidate: &mut Candidate, group: usize, chosen: &RangeCandidate) {
        self.settled.insert(group);
        candidate.set_range(group, chosen);
    }
}

impl LayerHook for RangeSearch {
    fn begin(&mut self, candidate: &mut Candidate) -> Result<()> {
        let decided = self.decided.clone();
        decided.0.iter().for_each(|(group, chosen)| self.settle(candidate, *group, chosen));
        Ok(())
    }

    /// Searches the range of the tensor's group. The first tensor of a group decides.
    fn tensor(&mut self, net: &Network, at: &TensorAt, candidate: &mut Candidate) -> Result<()> {
        let mut planned = candidate.plan.activations.iter();
        let Some(planned) = planned.find(|p| p.quantizer.tensor == at.name) else { return Ok(()) };
        let group = planned.quantizer.group;
        if !self.settled.insert(group) {
            return Ok(());
        }
        let Some(candidates) = GroupCandidates::of(&candidate.plan, group) else { return Ok(()) };
        let n = at.n_tune.min(at.float.len()).min(N_SAMPLES);
        let Some(edges) = candidate.view().edges(at.name) else { return Ok(()) };
        let quantized = Quantized { plan: &candidate.plan, view: candidate.view(), corrects: self.corrects };
        let readers = readers(net, quantized, at.name, edges, &at.float[..n])?;
        if readers.is_empty() {
            return Ok(());
        }
        let error = |other: &RangeCandidate| error(&readers, &at.quantized[..n], &other.params);
        let Some((start, plain)) = least_error(&candidates.found, error)? else { return Ok(()) };
        let best = follow_descent(plain, plain, candidates.rescaled(start), error)?;
        self.settle(candidate, group, best.as_ref().unwrap_or(start));
        Ok(())
    }
}
