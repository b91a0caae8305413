//! Rescue: layers that stay float or get wider types unasked, where the network is far from the float one and a few
//! layers cause most of the error.

use super::choose::begin;
use super::goal::{Goal, RESCUE, Wanted, rescue_precision};
use super::layers::QuantizedLayer;
use super::search::{LayerError, Move, Search};
use super::task::Task;
use crate::calibrate::CalibrationStatistics;
use crate::diag::{count, quoted};
use crate::metrics::{Gain, Measurement};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node::PRODUCTS;
use crate::place::{NetworkEnd, layers_at_end, with_followers};
use crate::plan::Observers;
use crate::scheme::{FLOAT, Scheme};
use crate::tune::accept::{BROKEN, FINE, INSERTION};
use crate::tune::{Evaluation, MethodOutcome, PlannedModel, Setup};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

/// Minimum samples for the choice of layers.
const MIN_SAMPLES: usize = 8;
/// Share of the error of all layers below which a group of layers is not split.
const LEAST_SHARE: f64 = 0.05;
/// Maximum groups of layers that are measured.
const MAX_MEASURED: usize = 24;
/// Share of a group's error. Where either half of the group has less, the second half is not measured, but gets the
/// error that the first half leaves.
const SMALL_SHARE: f64 = 0.1;
/// Maximum layers of a group that was not split, for the group to be promoted.
const MAX_TOGETHER: usize = 8;
/// Successive groups tried in vain, after which no further group is tried.
const MAX_IN_VAIN: usize = 3;
/// Successive groups of first layers tried in vain, after which no further group is tried.
const MAX_FIRST_IN_VAIN: usize = 2;
/// Maximum layers that a warning names.
const MAX_NAMED: usize = 5;
/// Least reduction of the overlap's shortfall (1 - overlap) by a promotion, as a share of the shortfall.
const LEAST_GAIN: f64 = 0.02;
/// The same for the promotion of all operators of a kind: the products of two activations, which may take most of the
/// budget, or the sums.
const LEAST_GAIN_OF_KIND: f64 = 0.2;

/// Consecutive layers, and the error of the outputs with only these layers quantized.
struct LayerGroup {
    layers: Range<usize>,
    error: f64,
}

/// The result of [`rescue`].
#[derive(Debug, Default)]
pub struct Rescued {
    /// The outcome; absent where rescue does not apply.
    pub outcome: Option<MethodOutcome>,
    /// For a table without wider types: the layers with most of the error, and possible remedies.
    pub advice: Option<String>,
}

impl Rescued {
    fn by(outcome: MethodOutcome) -> Rescued {
        Rescued { outcome: Some(outcome), advice: None }
    }
}

/// Promotes the layers of `planned` that cause most of the error to float, or to the widest types of a table without
/// float. Together these layers have at most the option's share of the network's multiply-adds, and held-out samples
/// must accept them. There is no outcome where rescue does not apply, or the network is near the float one, by `known` or
/// as measured. Warns where the network cannot be run node by node.
pub fn rescue(
    setup: Setup,
    observers: Observers,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
    known: Option<&Evaluation>,
) -> Rescued {
    let has_samples = setup.samples.is_some_and(|samples| samples.by_content().len() >= MIN_SAMPLES);
    let measured = known.and_then(|known| known.reference.measured.as_ref());
    let is_fine = measured.is_some_and(|plan| plan.measured.overlap().is_none_or(|overlap| overlap >= FINE));
    if setup.options.rescue == 0.0
        || planned.plan.weights.is_empty()
        || !has_samples
        || setup.has_given_ranges
        || is_fine
    {
        return Rescued::default();
    }
    let start = Instant::now();
    let rescued = attempt(setup, observers, planned, calibration).unwrap_or_else(|error| {
        planned.warnings.push(format!("rescue skipped: {error:#}"));
        Rescued::by(MethodOutcome::skipped(RESCUE, format!("{error:#}")))
    });
    let seconds = start.elapsed().as_secs_f64();
    Rescued { outcome: rescued.outcome.map(|outcome| MethodOutcome { seconds, ..outcome }), ..rescued }
}

fn attempt(
    setup: Setup,
    observers: Observers,
    planned: &mut PlannedModel,
    calibration: &mut CalibrationStatistics,
) -> Result<Rescued> {
    let goal = Goal::rescue(100.0 * setup.options.rescue);
    let wider = rescue_precision(setup.scheme);
    let wanted = Wanted { goal, precisions: vec![wider.clone().unwrap_or_else(|| FLOAT.to_string())] };
    let task = Task { wanted: &wanted, setup, observers, given: None, known: None };
    let mut search = begin(task, planned, calibration)?.0;
    let before = search.on_held_out.clone();
    let Some(lacked) = lacks(&before).filter(|lacked| *lacked > 1.0 - FINE) else { return Ok(Rescued::default()) };
    let Some(precision) = wider else {
        if setup.scheme.wider.is_some() && lacked > 1.0 - BROKEN {
            // Later, the table of wider types replaces this table.
            return Ok(Rescued::default());
        }
        return Ok(Rescued { outcome: None, advice: Some(advice(&mut search, setup.scheme)?) });
    };
    let mut promotions = Promotions::new(&mut search, precision, setup);
    promotions.try_products()?;
    promotions.try_heaviest()?;
    promotions.try_sums()?;
    promotions.try_first()?;
    let details = promotions.details;
    if !search.has_chosen() {
        let reason = "the error is not concentrated in a few layers".to_string();
        return Ok(Rescued::by(MethodOutcome::skipped(RESCUE, reason)));
    }
    search.hold_out()?;
    let gain = Gain::of(&before, &search.on_held_out);
    let outcome = MethodOutcome::judged(RESCUE, &gain, INSERTION, before.n_samples());
    if outcome.accepted {
        let chosen = search.planned()?;
        planned.replan((chosen.plan, chosen.warnings));
        planned.placement = chosen.placement;
    }
    Ok(Rescued::by(MethodOutcome { details, ..outcome }))
}

/// Layers that are promoted one group after the other.
struct Promotions<'s, 'a> {
    search: &'s mut Search<'a>,
    scheme: &'a Scheme,
    /// The precision of promoted layers.
    precision: String,
    /// Multiply-adds of each layer, and of the network.
    costs: Vec<usize>,
    total: f64,
    /// Multiply-adds that may still be promoted.
    left: f64,
    /// The promotions in words.
    details: Vec<String>,
}

impl<'s, 'a> Promotions<'s, 'a> {
    fn new(search: &'s mut Search<'a>, precision: String, setup: Setup<'a>) -> Promotions<'s, 'a> {
        let costs = search.multiply_adds();
        let total = search.all_multiply_adds().max(1) as f64;
        let left = setup.options.rescue * total;
        Promotions { search, scheme: setup.scheme, precision, costs, total, left, details: Vec::new() }
    }

    /// Whether a layer can be promoted.
    fn is_open(&self, layer: usize) -> bool {
        self.search.precision_of(layer).is_none()
            && self.search.layers[layer].is_promoted_by(&self.precision, self.scheme)
    }

    /// Tries all products of two activations together, as in attention. Where each of them harms the outputs, no single
    /// promotion gains.
    fn try_products(&mut self) -> Result<()> {
        self.try_kind(|layer| layer.n_weights == 0 && PRODUCTS.contains(&layer.op_type.as_str()))
    }

    /// Tries all sums of two activations together, as of a residual stream. A channel with huge values costs the others
    /// their precision at each of them, so that no single promotion gains.
    fn try_sums(&mut self) -> Result<()> {
        let graph = self.search.planner.graph;
        let index = GraphIndex::new(graph);
        let adds_constant = |layer: &QuantizedLayer| index.constant_operand(&graph.node[layer.node]).is_some();
        self.try_kind(|layer| layer.op_type == "Add" && !adds_constant(layer))
    }

    /// Tries the groups of layers in the order of the error that they cause alone, largest first.
    fn try_heaviest(&mut self) -> Result<()> {
        let mut n_in_vain = 0;
        for LayerGroup { layers, .. } in self.search.heaviest()? {
            match self.promote(&layers.collect::<Vec<_>>(), MAX_TOGETHER, LEAST_GAIN)? {
                Some(true) => n_in_vain = 0,
                Some(false) => n_in_vain += 1,
                None => {}
            }
            if n_in_vain == MAX_IN_VAIN {
                break;
            }
        }
        Ok(())
    }

    /// Tries all layers of a kind together.
    fn try_kind(&mut self, is_of_kind: impl Fn(&QuantizedLayer) -> bool) -> Result<()> {
        let layers = self.search.layers.iter().enumerate().filter(|(_, layer)| is_of_kind(layer));
        let layers: Vec<usize> = layers.map(|(i, _)| i).collect();
        self.promote(&layers, usize::MAX, LEAST_GAIN_OF_KIND).map(drop)
    }

    /// Tries the first layers with a weight, then the layers after them, and so on. All later layers inherit their
    /// error.
    fn try_first(&mut self) -> Result<()> {
        let graph = self.search.planner.graph;
        let layers = self.search.layers.iter().enumerate().filter(|(_, layer)| layer.weight.is_some());
        // Layers by node.
        let mut untried: BTreeMap<usize, usize> = layers.map(|(i, layer)| (layer.node, i)).collect();
        let mut n_in_vain = 0;
        while n_in_vain < MAX_FIRST_IN_VAIN && !untried.is_empty() {
            let first = layers_at_end(graph, NetworkEnd::First, |node| untried.contains_key(&node));
            let first: Vec<usize> = first.iter().filter_map(|node| untried.remove(node)).collect();
            match self.promote(&first, MAX_TOGETHER, LEAST_GAIN)? {
                Some(true) => n_in_vain = 0,
                Some(false) | None => n_in_vain += 1,
            }
        }
        Ok(())
    }

    /// Promotes `layers` and their followers, where that recovers the share `least_gain` of the shortfall. Returns
    /// whether it does. `None` where the promotion is not tried: nothing is left to gain or to promote, more than `max`
    /// layers are open, or the budget is too small.
    fn promote(&mut self, layers: &[usize], max: usize, least_gain: f64) -> Result<Option<bool>> {
        let open = |layers: &[usize]| layers.iter().copied().filter(|&layer| self.is_open(layer)).collect::<Vec<_>>();
        let layers = open(layers);
        let is_small = layers.len() <= max;
        let layers = open(&self.search.with_followers(&layers));
        let cost: f64 = layers.iter().map(|layer| self.costs[*layer] as f64).sum();
        let now = lacks(&self.search.measured).unwrap_or(1.0);
        if cost > self.left || now <= 1.0 - FINE || layers.is_empty() || !is_small {
            return Ok(None);
        }
        let to = |layer: &usize| Move { layer: *layer, precision: Some(self.precision.clone()) };
        let moves: Vec<Move> = layers.iter().map(to).collect();
        let plan = self.search.plan_with(&moves)?;
        let measured = self.search.measure_plan(&plan, false)?;
        let after = lacks(&measured).unwrap_or(1.0);
        if plan.weights.is_empty() || after > (1.0 - least_gain) * now {
            return Ok(Some(false));
        }
        self.search.make(&moves, plan, measured);
        self.left -= cost;
        let named = layers.iter().take(MAX_TOGETHER).map(|layer| &self.search.layers[*layer].name);
        let others = match layers.len() - named.len() {
            0 => String::new(),
            others => format!(" and {}", count(others, "other layer")),
        };
        self.details.push(format!(
            "{}{others} {}: overlap {:.3} -> {:.3}, {:.2} % of the multiply-adds",
            quoted(named, ", "),
            self.precision,
            1.0 - now,
            1.0 - after,
            100.0 * cost / self.total
        ));
        Ok(Some(true))
    }
}

/// Returns the overlap's shortfall, 1 - overlap.
fn lacks(measured: &Measurement) -> Option<f64> {
    measured.overlap().map(|overlap| 1.0 - overlap)
}

/// Returns the layers with most of the error, and possible remedies, for a target without wider types.
fn advice(search: &mut Search, scheme: &Scheme) -> Result<String> {
    let groups = search.heaviest()?;
    let total: f64 = groups.iter().map(|group| group.error).sum();
    let is_large = |group: &&LayerGroup| group.layers.len() == 1 && group.error > LEAST_SHARE * total;
    let layers: Vec<String> = groups
        .iter()
        .filter(is_large)
        .take(MAX_NAMED)
        .map(|group| format!("`{}` ({:.0} %)", search.layers[group.layers.start].name, 100.0 * group.error / total))
        .collect();
    let Scheme { name, wider, .. } = scheme;
    let wider = wider.as_ref().map(|wider| format!("; --backend {wider} has 16 bits"));
    let named = match layers.is_empty() {
        true => "the error is spread over many layers".to_string(),
        false => format!("the layers with most of the error are {}", layers.join(", ")),
    };
    Ok(format!(
        "{named}; `{name}` has no wider type for single layers{}{}",
        wider.unwrap_or_default(),
        if scheme.allows_float_nodes() { "; --exclude keeps layers float that the target runs in float" } else { "" }
    ))
}

impl Search<'_> {
    /// Returns all layers in groups of consecutive layers, largest error first. Errors of layers add up, so the group
    /// with the largest error is halved and its halves are measured, until all groups with a large error are single
    /// layers or `MAX_MEASURED` groups were measured.
    fn heaviest(&mut self) -> Result<Vec<LayerGroup>> {
        let tick = (self.planner.task.setup.progress)("rescue", MAX_MEASURED);
        // The measured plan quantizes all layers that were not promoted.
        let error = LayerError::of(&self.measured).deciding;
        let mut groups = vec![LayerGroup { layers: 0..self.layers.len(), error }];
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
        groups.extend(found);
        groups.sort_by(|a, b| b.error.total_cmp(&a.error));
        Ok(groups)
    }

    /// Returns `layers`, and the layers behind them that read nothing else, such as gates. With a float gate, the
    /// output of a float layer is not quantized.
    fn with_followers(&self, layers: &[usize]) -> Vec<usize> {
        let nodes = layers.iter().map(|&layer| self.layers[layer].node).collect();
        let of_layers: BTreeSet<usize> = self.layers.iter().map(|layer| layer.node).collect();
        let nodes = with_followers(self.planner.graph, &nodes, |node| of_layers.contains(&node));
        (0..self.layers.len()).filter(|&layer| nodes.contains(&self.layers[layer].node)).collect()
    }

    /// Measures the error of a group of layers.
    fn group(&mut self, layers: Range<usize>) -> Result<LayerGroup> {
        let placement = self.placement_of_layers(layers.clone());
        let plan = self.planner.plan(&placement)?;
        let error = LayerError::of(&self.measure_plan(&plan, false)?);
        if layers.len() == 1 {
            self.alone.insert(Move { layer: layers.start, precision: None }, error);
        }
        Ok(LayerGroup { layers, error: error.deciding })
    }

    /// Returns the multiply-adds of each layer for one sample.
    fn multiply_adds(&self) -> Vec<usize> {
        self.layers.iter().map(|layer| self.network.multiply_adds(layer.node)).collect()
    }

    fn all_multiply_adds(&self) -> usize {
        (0..self.planner.graph.node.len()).map(|node_idx| self.network.multiply_adds(node_idx)).sum()
    }
}
