//! Parameters of activations: one type, range and scale per group of tensors.

use super::mask::Mask;
use super::{PlannedActivation, RangeCandidate, params_for};
use crate::observers::{Observer, covering};
use crate::place::Placement;
use crate::quant::{GivenRange, Grid, QuantParams, Range, params_for_range};
use crate::scheme::{FixedGrid, QType, Scheme};
use crate::statistics::{Extremes, TensorStatistics};
use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;

/// Parameters that the tensors of a group share.
struct Shared {
    qtype: QType,
    range: Range,
    params: QuantParams,
    observer: &'static str,
    candidates: Vec<RangeCandidate>,
    /// Whether the range was widened to hold all values of the tensors that need it.
    widened: bool,
    /// The mask that the range need not cover.
    mask: Option<Mask>,
}

pub(super) fn decide(
    placement: &Placement,
    statistics: &[impl Borrow<TensorStatistics> + Sync],
    given: Option<&BTreeMap<String, GivenRange>>,
    scheme: &Scheme,
    observer: &Observer,
) -> Result<(Vec<PlannedActivation>, Vec<String>)> {
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (quantizer_idx, quantizer) in placement.activations.iter().enumerate() {
        members.entry(quantizer.group).or_default().push(quantizer_idx);
    }
    let find = |(&group, quantizers_of_group): (&usize, &Vec<usize>)| -> Result<(usize, Shared)> {
        Ok((group, decide_group(quantizers_of_group, placement, statistics, given, scheme, observer)?))
    };
    // The first error in the order of the groups is reported, whichever thread meets one first.
    let found: Vec<Result<(usize, Shared)>> = members.par_iter().map(find).collect();
    let groups: BTreeMap<usize, Shared> = found.into_iter().collect::<Result<_>>()?;
    let (mut activations, mut warnings) = (Vec::new(), Vec::new());
    for quantizers_of_group in members.values() {
        prescribed(placement, quantizers_of_group, &mut warnings);
    }
    for (quantizer, statistic) in placement.activations.iter().zip(statistics) {
        let (shared, statistic) = (&groups[&quantizer.group], statistic.borrow());
        let n_masked = shared.mask.map_or(0, |mask| mask.n_masked(statistic));
        // A mask's infinite values are intended.
        let n_infinite = statistic.histogram.n_minus_infinity().min(n_masked);
        let n_non_finite = statistic.n_non_finite() - n_infinite;
        if n_non_finite > 0 {
            warnings.push(format!(
                "tensor `{}`: {n_non_finite} of {} values are NaN or infinite; they were ignored",
                quantizer.tensor,
                n_non_finite + statistic.n_finite()
            ));
        }
        let mut quantizer = quantizer.clone();
        if quantizer.keeps_ends() && shared.widened {
            quantizer.reason.push_str("; its range includes all observed values");
        }
        activations.push(PlannedActivation {
            quantizer,
            qtype: shared.qtype.clone(),
            params: shared.params,
            range: shared.range,
            observed: statistic.min_max(),
            n_non_finite,
            n_masked,
            observer: shared.observer,
            candidates: shared.candidates.clone(),
        });
    }
    Ok((activations, warnings))
}

/// Decides the parameters of a group of quantizers, given by their positions in the placement.
fn decide_group(
    quantizers_of_group: &[usize],
    placement: &Placement,
    statistics: &[impl Borrow<TensorStatistics>],
    given: Option<&BTreeMap<String, GivenRange>>,
    scheme: &Scheme,
    observer: &Observer,
) -> Result<Shared> {
    let prescribed = prescribed(placement, quantizers_of_group, &mut Vec::new());
    // A prescribed grid brings its own type.
    let first = &placement.activations[prescribed.map_or(quantizers_of_group[0], |(quantizer, _)| quantizer)];
    let given_of = |&quantizer: &usize| given?.get(&placement.activations[quantizer].tensor).copied();
    let imported: Vec<GivenRange> = quantizers_of_group.iter().filter_map(given_of).collect();
    let mut observed = quantizers_of_group.iter().filter(|&quantizer| given_of(quantizer).is_none());
    let mut joint = observed.next().map(|&first| {
        let mut joint = Cow::Borrowed(statistics[first].borrow());
        observed.for_each(|&member| joint.to_mut().merge(statistics[member].borrow()));
        joint
    });
    let role_of = |quantizer: usize| placement.activations[quantizer].softmax;
    let role = quantizers_of_group.iter().filter_map(|&quantizer| role_of(quantizer)).max();
    let mask = joint.as_deref().and_then(|joint| Mask::in_values(joint, role?));
    // A tensor that is not for a Softmax alone keeps its low values.
    let mask = mask.filter(|mask| {
        let is_unmasked = |quantizer: usize| mask.n_masked(statistics[quantizer].borrow()) == 0;
        quantizers_of_group.iter().all(|&quantizer| role_of(quantizer).is_some() || is_unmasked(quantizer))
    });
    if let (Some(mask), Some(joint)) = (mask, &mut joint) {
        mask.raise_all(joint.to_mut());
    }
    let keeps_ends = |quantizer: usize| placement.activations[quantizer].keeps_ends();
    let holds_all = |quantizer: &&usize| keeps_ends(**quantizer) && given_of(quantizer).is_none();
    let mut must_hold = Extremes::NONE;
    for &quantizer in quantizers_of_group.iter().filter(holds_all) {
        must_hold.widen(statistics[quantizer].borrow().extremes);
    }
    let raised = |value: f32| mask.map_or(value, |mask| mask.raise(value));
    let must_hold = must_hold.get().map(|(min, max)| (raised(min), raised(max)));
    let qtype = &scheme.types[&first.qtype];
    let shared = match prescribed {
        Some((_, fixed)) => prescribe(fixed, qtype),
        None => find_shared(joint.as_deref(), must_hold, &imported, qtype, observer),
    };
    let shared = shared.with_context(|| format!("tensor `{}`", first.tensor))?;
    Ok(Shared { mask, ..shared })
}

/// Returns the first prescribed grid of the group and the index of its quantizer. Adds a warning if the group has
/// another one.
fn prescribed(
    placement: &Placement,
    quantizers_of_group: &[usize],
    warnings: &mut Vec<String>,
) -> Option<(usize, FixedGrid)> {
    let all = quantizers_of_group.iter().filter_map(|&i| Some((i, placement.activations[i].fixed?)));
    let all: Vec<(usize, FixedGrid)> = all.collect();
    let &(first, fixed) = all.first()?;
    if let Some((other, _)) = all.iter().find(|(_, another)| *another != fixed) {
        warnings.push(format!(
            "tensors `{}` and `{}` share scale and zero point, but the table prescribes different ones; those of \
             the first are used",
            placement.activations[first].tensor, placement.activations[*other].tensor
        ));
    }
    Some((first, fixed))
}

fn prescribe(fixed: FixedGrid, qtype: &QType) -> Result<Shared> {
    let grid = qtype.grid();
    let (q_min, q_max) = (grid.q_min(), grid.q_max());
    ensure!(
        (q_min..=q_max).contains(&fixed.zero_point),
        "the prescribed zero point is {}, expected {q_min} to {q_max}",
        fixed.zero_point
    );
    let FixedGrid { scale, zero_point } = fixed;
    let params = QuantParams { scale, zero_point, q_min, q_max, codes: grid.codes };
    let end = |q: i32| f64::from(params.dequantize(q));
    let range = Range { min: end(q_min), max: end(q_max) };
    let (qtype, candidates) = (qtype.clone(), Vec::new());
    Ok(Shared { qtype, range, params, observer: "fixed", candidates, widened: false, mask: None })
}

/// Finds the shared parameters of a group. `joint` is the statistic of the tensors without a given range, `imported`
/// has the given ranges of the other tensors. `must_hold` has the lowest and the highest value of the group's tensors
/// whose range must hold all values, such as the network's outputs. The range is widened to include both. Otherwise the
/// largest outputs would be clipped to ties, and users of the network look for the largest.
fn find_shared(
    joint: Option<&TensorStatistics>,
    must_hold: Option<(f32, f32)>,
    imported: &[GivenRange],
    qtype: &QType,
    observer: &Observer,
) -> Result<Shared> {
    let whole = |range: Range, grid: &Grid| must_hold.map_or(range, |(min, max)| covering(range, min, max, grid));
    if let (Some(joint), []) = (joint, imported) {
        let qtype = qtype.adapted(joint.min_max().map(|(min, _)| min));
        let grid = qtype.grid();
        let found = |observer: &Observer| -> Result<(RangeCandidate, bool)> {
            let found = observer.find(joint, &grid)?;
            let (mut range, mut params) = params_for(joint, found, &qtype)?;
            let mut widened = false;
            if must_hold.is_some() {
                // The search for a power of two, or rounding to one, must not clip values either.
                let (whole, before) = (whole(found, &grid), range);
                (range, params) = (whole, params_for_range(whole, &grid.with_scales_rounded_up())?);
                widened = range != before;
            }
            Ok((RangeCandidate { observer: observer.name, range, params }, widened))
        };
        let mut choices = observer.choices.iter();
        let first = choices.next().unwrap_or(observer);
        let (RangeCandidate { observer, range, params }, widened) = found(first)?;
        let candidates = choices.map(|observer| Ok(found(observer)?.0)).collect::<Result<_>>()?;
        return Ok(Shared { qtype, range, params, observer, candidates, widened, mask: None });
    }
    let observed = joint.and_then(TensorStatistics::min_max).map(|(min, _)| min);
    let lowest = imported.iter().map(|given| given.range.min as f32).chain(observed);
    let qtype = qtype.adapted(lowest.reduce(f32::min));
    let grid = qtype.grid();
    let found = joint.map(|joint| observer.find(joint, &grid)).transpose()?;
    let all = imported.iter().map(|given| given.for_grid(&grid)).chain(found);
    let union = |a: Range, b: Range| Range { min: a.min.min(b.min), max: a.max.max(b.max) };
    let before = all.reduce(union).context("has no range, expected a given or an observed one")?;
    let range = whole(before, &grid);
    let params = params_for_range(range, &grid)?;
    let (candidates, widened) = (Vec::new(), range != before);
    let observer = "imported";
    Ok(Shared { params, qtype, range, observer, candidates, widened, mask: None })
}
