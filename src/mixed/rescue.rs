//! Rescue: layers that stay float or get wider types unasked, where the network is far from the float one and a few layers
//! cause most of the error.

use super::choose::begin;
use super::goal::{Goal, RESCUE, Wanted, rescue_precision};
use super::search::{Move, Search};
use super::task::Task;
use crate::calibrate::CalibrationStatistics;
use crate::metrics::{Gain, Measurement, OVERLAP};
use crate::plan::Observers;
use crate::scheme::{FLOAT, Scheme};
use crate::tune::accept::INSERTION;
use crate::tune::{Evaluation, MethodOutcome, PlannedModel, Setup};
use anyhow::Result;
use std::ops::Range;
use std::time::Instant;

/// Overlap from which a network needs no rescue. Figures: docs/design/mixed-precision.md.
const FINE: f64 = 0.9;
/// Minimum samples for the choice of layers.
const MIN_SAMPLES: usize = 8;
/// Share of the error of all layers below which a group of layers is not split.
const LEAST_SHARE: f64 = 0.05;
/// Maximum groups of layers that are measured.
const MAX_MEASURED: usize = 24;
/// Share of the error of a group: where one half has less, the other half has the rest and is not measured.
const SMALL_SHARE: f64 = 0.1;
/// Maximum layers that a warning names.
const MAX_NAMED: usize = 5;
/// Least reduction of the overlap's shortfall (1 - overlap) by a float layer, as a share of it.
const LEAST_GAIN: f64 = 0.02;

/// Consecutive layers, and the error of the outputs with only these quantized.
struct LayerGroup {
    layers: Range<usize>,
    error: f64,
}

/// Promotes those layers of `planned` that cause most of the error to float, or to the widest types of a table without
/// float. Together they have at most the option's share of the network's multiply-adds, and held-out samples must accept
/// them. `None` where the network is near the float one (by `known` or as measured). For a table without wider types a
/// warning names these layers. Warns where the network cannot be run node by node.
pub fn rescue(
    setup: Setup,
    observers: Observers,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
    known: Option<&Evaluation>,
) -> Option<MethodOutcome> {
    let has_samples = setup.samples.is_some_and(|samples| samples.by_content().len() >= MIN_SAMPLES);
    let measured = known.and_then(|known| known.reference.measured.as_ref());
    let is_fine = measured.is_some_and(|plan| plan.measured.mean(OVERLAP).is_none_or(|overlap| overlap >= FINE));
    if setup.options.rescue == 0.0
        || planned.plan.weights.is_empty()
        || !has_samples
        || setup.has_given_ranges
        || is_fine
    {
        return None;
    }
    let start = Instant::now();
    let outcome = attempt(setup, observers, planned, calibration).unwrap_or_else(|error| {
        planned.warnings.push(format!("rescue skipped: {error:#}"));
        Some(MethodOutcome::skipped(RESCUE, format!("{error:#}")))
    });
    outcome.map(|outcome| MethodOutcome { seconds: start.elapsed().as_secs_f64(), ..outcome })
}

fn attempt(
    setup: Setup,
    observers: Observers,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
) -> Result<Option<MethodOutcome>> {
    let goal = Goal::rescue(100.0 * setup.options.rescue);
    let wider = rescue_precision(setup.scheme);
    let wanted = Wanted { goal, precisions: vec![wider.clone().unwrap_or_else(|| FLOAT.to_string())] };
    let task = Task { wanted: &wanted, setup, observers, given: None, known: None };
    let mut search = begin(task, planned, calibration)?.0;
    let before = search.on_held_out.clone();
    let Some(mut lacked) = lacks(&before).filter(|lacked| *lacked > 1.0 - FINE) else { return Ok(None) };
    let Some(precision) = wider else {
        let warning = warning(&mut search, setup.scheme, lacked)?;
        planned.warnings.push(warning);
        return Ok(None);
    };
    let costs = search.multiply_adds();
    let total = search.all_multiply_adds().max(1) as f64;
    let (mut left, mut details) = (setup.options.rescue * total, Vec::new());
    for (layer, _) in search.heaviest()? {
        let cost = costs[layer] as f64;
        let is_open = search.layers[layer].is_promoted_by(&precision, setup.scheme);
        if cost > left || lacked <= 1.0 - FINE || !is_open {
            continue;
        }
        let moved = Move { layer, precision: Some(precision.clone()) };
        let plan = search.plan_with(&moved)?;
        let after = lacks(&search.measure_plan(&plan, false)?).unwrap_or(1.0);
        let now = lacks(&search.measured).unwrap_or(1.0);
        if plan.weights.is_empty() || after > (1.0 - LEAST_GAIN) * now {
            continue;
        }
        let was = lacked;
        search.commit(moved)?;
        lacked = lacks(&search.on_held_out).unwrap_or(1.0);
        left -= cost;
        let name = &search.layers[layer].name;
        let percent = 100.0 * cost / total;
        details.push(format!(
            "`{name}` {precision}: overlap {:.3} -> {:.3}, {percent:.2} % of the multiply-adds",
            1.0 - was,
            1.0 - lacked
        ));
    }
    if !search.has_chosen() {
        let reason = "the error is not concentrated in a few layers".to_string();
        return Ok(Some(MethodOutcome::skipped(RESCUE, reason)));
    }
    let gain = Gain::of(&before, &search.on_held_out);
    let outcome = MethodOutcome::judged(RESCUE, &gain, INSERTION, before.n_samples());
    if outcome.accepted {
        let chosen = search.planned()?;
        planned.replan((chosen.plan, chosen.warnings));
        planned.placement = chosen.placement;
    }
    Ok(Some(MethodOutcome { details, ..outcome }))
}

/// The distance of the overlap from 1.
fn lacks(measured: &Measurement) -> Option<f64> {
    measured.mean(OVERLAP).map(|overlap| 1.0 - overlap)
}

/// The warning for a target without float: the layers with most of the error, and possible remedies.
fn warning(search: &mut Search, scheme: &Scheme, lacked: f64) -> Result<String> {
    let layers = search.heaviest()?;
    let layers: Vec<String> = layers
        .iter()
        .take(MAX_NAMED)
        .map(|(layer, share)| format!("`{}` ({:.0} %)", search.layers[*layer].name, 100.0 * share))
        .collect();
    let Scheme { name, transformers, .. } = scheme;
    let wider = transformers.as_ref().map(|wider| format!("--backend {wider} has 16 bits; "));
    let named = match layers.is_empty() {
        true => "the error is spread over many layers".to_string(),
        false => format!("the layers with most of the error are {}", layers.join(", ")),
    };
    Ok(format!(
        "overlap {:.3} on held-out samples, below {FINE}: {named}; `{name}` has no wider type for single layers; {}layers that the target runs in float can be left out with --exclude",
        1.0 - lacked,
        wider.unwrap_or_default()
    ))
}

impl Search<'_> {
    /// The layers that cause most of the error, each with its share, largest first. Errors add up: layers are quantized in groups, and
    /// the group with the largest error is halved.
    fn heaviest(&mut self) -> Result<Vec<(usize, f64)>> {
        let tick = (self.planner.task.setup.progress)("rescue", MAX_MEASURED);
        let mut groups = vec![self.group(0..self.layers.len())?];
        let (mut found, mut n_measured) = (Vec::new(), 1);
        loop {
            let total: f64 = groups.iter().chain(&found).map(|group: &LayerGroup| group.error).sum();
            let heaviest = (0..groups.len()).max_by(|&a, &b| groups[a].error.total_cmp(&groups[b].error));
            let Some(heaviest) = heaviest.filter(|&i| groups[i].error > LEAST_SHARE * total) else { break };
            let group = groups.swap_remove(heaviest);
            if group.layers.len() == 1 {
                found.push(group);
                continue;
            }
            if n_measured + 2 > MAX_MEASURED {
                break;
            }
            let Range { start, end } = group.layers;
            let middle = start + (end - start) / 2;
            let (first, second) = (self.group(start..middle)?, middle..end);
            let rest = group.error - first.error;
            let is_clear = first.error.min(rest) < SMALL_SHARE * group.error && second.len() > 1 && middle - start > 1;
            tick();
            n_measured += 1;
            groups.push(first);
            groups.push(match is_clear {
                true => LayerGroup { layers: second, error: rest.max(0.0) },
                false => {
                    tick();
                    n_measured += 1;
                    self.group(second)?
                }
            });
        }
        found.sort_by(|a, b| b.error.total_cmp(&a.error));
        let total: f64 = groups.iter().chain(&found).map(|group| group.error).sum();
        Ok(found.into_iter().map(|group| (group.layers.start, group.error / total)).collect())
    }

    /// Measures a group of layers.
    fn group(&mut self, layers: Range<usize>) -> Result<LayerGroup> {
        let placement = self.of_these(layers.clone());
        let plan = self.planner.plan(&placement)?;
        let error = self.error_of(&plan)?;
        if layers.len() == 1 {
            self.alone.insert(Move { layer: layers.start, precision: None }, error);
        }
        Ok(LayerGroup { layers, error: error.deciding })
    }

    /// Multiply-adds of each layer for one sample.
    fn multiply_adds(&self) -> Vec<usize> {
        self.layers.iter().map(|layer| self.network.multiply_adds(layer.node)).collect()
    }

    fn all_multiply_adds(&self) -> usize {
        (0..self.planner.graph.node.len()).map(|node_idx| self.network.multiply_adds(node_idx)).sum()
    }
}
