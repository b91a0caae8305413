//! The search for precisions, layer by layer.
//!
//! The cost of a layer's precision is measured with all other layers float: the error that it adds alone. With all
//! other layers quantized, layers whose errors cancel each other would hide each other's effect
//! (docs/design/mixed-precision.md).

use super::bias::{BiasCorrection, BiasMode};
use super::goal::{Bounded, Goal, RESCUE, Reached};
use super::held_out::{EvaluatedBy, HeldOut};
use super::layers::{QuantizedLayer, WeightCost, layers};
use super::planner::Planner;
use super::report::{ChosenLayer, CurvePoint, Mixed};
use super::{MAX_ANALYSIS, MAX_BYTES, MAX_WORK, MIN_ANALYSIS};
use crate::diag::WithHint;
use crate::metrics::{
    AGREEMENT, EvaluatedOutput, MAX_DB, Measurement, Metric, OVERLAPS, SQNR, relative_error, relative_error_db,
};
use crate::place::{Assigned, Placement};
use crate::plan::QuantPlan;
use crate::scheme::FLOAT;
use crate::simulate::{CachedNetwork, CachedSamples, EvaluatedFloat, Samples, simulated_graph};
use crate::tune::PlannedModel;
use anyhow::{Result, anyhow, ensure};
use std::collections::BTreeMap;

/// A new precision for a layer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// Index into the search's layers.
    pub layer: usize,
    /// The precision's name in the table; `None` is the layer's own.
    pub precision: Option<String>,
}

/// The error of the outputs with one layer quantized.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerError {
    /// Error in the deciding metric, on a scale that adds up over layers: the squared shortfall of the overlap, or
    /// `relative` where no overlap decides.
    pub deciding: f64,
    /// Energy of the error divided by that of the signal, mean over the outputs.
    pub relative: f64,
}

impl LayerError {
    /// Returns the error of a measured plan; `f64::MAX` where the error is not finite.
    pub(super) fn of(measured: &Measurement) -> LayerError {
        let mean = |metric: Metric, error: fn(f64) -> f64| {
            let figures: Vec<f64> =
                measured.figures(metric).iter().flatten().map(|figure| error(figure.value)).collect();
            (figures.iter().sum::<f64>() / figures.len().max(1) as f64).min(f64::MAX)
        };
        let relative = mean(SQNR, relative_error);
        // The overlap falls with the error's amplitude, not its energy.
        let deciding = match measured.deciding() {
            metric if OVERLAPS.contains(&metric) => mean(metric, |overlap| (1.0 - overlap).powi(2)),
            _ => relative,
        };
        LayerError { deciding, relative }
    }
}

/// Number of layers that are tried before one of them is chosen. With more, layers that hide others would again be
/// chosen first.
const WINDOW: usize = 2;

/// A search in progress.
pub struct Search<'a> {
    pub(super) planner: Planner<'a>,
    pub(super) network: CachedNetwork<'a>,
    biases: BiasCorrection,
    analysis: CachedSamples,
    n_analysis: usize,
    float: EvaluatedFloat,
    held_out: HeldOut,
    pub(super) layers: Vec<QuantizedLayer>,
    pub(super) cost: WeightCost,
    /// Nodes that stay float from the beginning.
    pub(super) base: Assigned,
    assigned: Assigned,
    /// The current plan.
    pub(super) plan: QuantPlan,
    /// Figures of the plan on the samples of the sensitivity analysis.
    pub(super) measured: Measurement,
    pub(super) on_held_out: Measurement,
    curve: Vec<CurvePoint>,
    chosen: Vec<(usize, ChosenLayer)>,
    /// Error of each move with all other layers float.
    pub(super) alone: BTreeMap<Move, LayerError>,
    /// Promotions that are left, the next one first; `None` before the sensitivity analysis.
    open: Option<Vec<Move>>,
}

impl<'a> Search<'a> {
    /// Starts from `placement`, where no precision is chosen yet. `analysis` holds the samples of the sensitivity
    /// analysis, `held_out` other samples. `corrected` says whether tuning will correct biases, which the search then
    /// simulates. Fails if a node cannot be run by itself, or no output has the goal's metric.
    pub fn new(
        mut planner: Planner<'a>,
        placement: &Placement,
        analysis: Samples,
        held_out: Samples,
        corrected: bool,
    ) -> Result<Search<'a>> {
        let mut network = CachedNetwork::new(planner.model, analysis, Some(planner.task.setup.prepared))?;
        let goal = planner.task.wanted.goal.clone();
        let mut metrics = [&OVERLAPS[..], &[SQNR, AGREEMENT]].concat();
        metrics.extend(goal.metric().filter(|metric| !metrics.contains(metric)));
        let options = planner.task.setup.outputs;
        let outputs = EvaluatedOutput::of(&*simulated_graph(planner.model)?, options.axes);
        let by = EvaluatedBy { metrics: &metrics, outputs: &outputs, options };
        let held_out = HeldOut::new(&mut network, held_out, by)?;
        let layout = analysis.layout();
        let layers = layers(planner.graph, placement, planner.scheme());
        let bytes = network.bytes_per_sample().max(1);
        let cheap = (MAX_WORK / (bytes.div_ceil(1024) * layers.len().max(1))).max(MIN_ANALYSIS);
        let n_analysis = analysis.len().min(MAX_ANALYSIS).min(cheap).min((MAX_BYTES / bytes).max(4));
        let mut analysis = CachedSamples::new(analysis.first(n_analysis), MAX_BYTES);
        let mut biases = BiasCorrection::new(corrected);
        let plan = planner.plan(placement)?;
        network.keep_starts(&plan);
        let float = network.run(&QuantPlan::default(), &mut analysis, true, Some(&mut biases))?;
        let float = EvaluatedFloat::new(&metrics, outputs, &float, layout, held_out.head())?;
        biases.set(BiasMode::Learn);
        let nothing = Measurement::new(float.prepared().clone(), Vec::new());
        let mut search = Search {
            network,
            biases,
            analysis,
            n_analysis,
            float,
            held_out,
            layers,
            cost: WeightCost::of(planner.graph),
            base: placement.assigned.clone(),
            assigned: placement.assigned.clone(),
            plan: QuantPlan::default(),
            measured: nothing.clone(),
            on_held_out: nothing,
            curve: Vec::new(),
            chosen: Vec::new(),
            alone: BTreeMap::new(),
            open: None,
            planner,
        };
        search.measured = search.measure_plan(&plan, false)?;
        search.plan = plan;
        search.hold_out()?;
        search.add_point(None);
        if let Some(metric) = goal.metric() {
            ensure!(
                search.on_held_out.worst(metric).is_some(),
                anyhow!("no output has {}, expected {} for {}", metric.title, metric.about, goal.option())
                    .hint("--target-sqnr works with outputs of any kind")
            );
        }
        Ok(search)
    }

    fn goal(&self) -> &'a Goal {
        &self.planner.task.wanted.goal
    }

    /// Promotes layers until the goal, made stricter by `margin` in its unit, is met; or fits the weights into their
    /// budget. Fails if a plan cannot be made or run.
    pub fn go_on(&mut self, margin: f64) -> Result<()> {
        match self.goal() {
            Goal { figure: Bounded::WeightBits, bound, .. } => self.fit(*bound),
            _ => self.promote(margin),
        }
    }

    /// Whether layers are left to promote.
    pub fn can_go_on(&self) -> bool {
        self.goal().metric().is_some() && self.open.as_ref().is_none_or(|open| !open.is_empty())
    }

    fn promote(&mut self, margin: f64) -> Result<()> {
        let limit = match self.goal() {
            Goal { figure: Bounded::FloatLayers, bound, .. } => *bound as usize,
            _ if margin == 0.0 && self.is_met(0.0) => return Ok(()),
            _ => usize::MAX,
        };
        if self.open.is_none() {
            self.open = Some(self.by_sensitivity()?);
        }
        let mut forced = margin > 0.0;
        let is_gate = self.goal().figure != Bounded::FloatLayers;
        while self.chosen.len() < limit && (forced || !is_gate || !self.is_met(margin)) {
            forced = false;
            let Some(moved) = self.next()? else { break };
            // A model without quantized layers meets every goal, but the user asked for a quantized one.
            if is_gate && self.plan_with(std::slice::from_ref(&moved))?.weights.is_empty() {
                self.open = Some(Vec::new());
                break;
            }
            self.commit(moved)?;
        }
        Ok(())
    }

    /// Takes the next promotion off the list: among the first few, the promotion with the largest gain on top of the
    /// current plan.
    fn next(&mut self) -> Result<Option<Move>> {
        let mut open = self.open.take().unwrap_or_default();
        let mut best = (f64::NEG_INFINITY, 0);
        let metric = self.measured.deciding();
        let mean = |measured: &Measurement| measured.mean(metric).unwrap_or(metric.scale.best);
        let window = WINDOW.min(open.len());
        for (i, moved) in open[..window].iter().enumerate().filter(|_| window > 1) {
            let plan = self.plan_with(std::slice::from_ref(moved))?;
            let measured = self.measure_plan(&plan, false)?;
            let gain = mean(&measured) - mean(&self.measured);
            if gain > best.0 {
                best = (gain, i);
            }
        }
        let next = if open.is_empty() { None } else { Some(open.remove(best.1)) };
        self.open = Some(open);
        Ok(next)
    }

    /// Measures a plan on the samples of the sensitivity analysis. With `keep`, the plan's values stay cached.
    pub(super) fn measure_plan(&mut self, plan: &QuantPlan, keep: bool) -> Result<Measurement> {
        let outputs = self.network.run(plan, &mut self.analysis, keep, Some(&mut self.biases))?;
        let sums = self.float.sums(0..self.n_analysis, |output_idx, sample| outputs[output_idx].get(sample))?;
        Ok(Measurement::new(self.float.prepared().clone(), sums))
    }

    /// Returns the current plan with `moves` made.
    pub(super) fn plan_with(&mut self, moves: &[Move]) -> Result<QuantPlan> {
        let mut assigned = self.assigned.clone();
        moves.iter().for_each(|moved| self.assign(&mut assigned, moved, ""));
        self.planner.plan(&self.planner.placement(&assigned))
    }

    /// Gives the layer of a move its precision.
    pub(super) fn assign(&self, assigned: &mut Assigned, moved: &Move, reason: &str) {
        let layer = &self.layers[moved.layer];
        match &moved.precision {
            Some(name) => layer.assign(name, reason, self.planner.scheme(), assigned),
            None => layer.clear(assigned),
        }
    }

    /// Returns the current precision of a layer; `None` for its own.
    pub(super) fn precision_of(&self, layer: usize) -> Option<&str> {
        let chosen = self.chosen.iter().find(|(i, _)| *i == layer);
        chosen.map(|(_, chosen)| chosen.precision.as_str())
    }

    /// Makes a move and measures the new plan, on held-out samples too.
    pub(super) fn commit(&mut self, moved: Move) -> Result<()> {
        let moves = std::slice::from_ref(&moved);
        let plan = self.plan_with(moves)?;
        let measured = self.measure_plan(&plan, true)?;
        self.make(moves, plan, measured);
        self.hold_out()?;
        self.add_point(Some(moved));
        Ok(())
    }

    /// Makes moves whose plan was already measured on the samples of the sensitivity analysis.
    pub(super) fn make(&mut self, moves: &[Move], plan: QuantPlan, measured: Measurement) {
        let gain_db = sqnr_gain(&self.measured, &measured);
        for moved in moves {
            let reason = self.reason(moved);
            let mut assigned = std::mem::take(&mut self.assigned);
            self.assign(&mut assigned, moved, &reason);
            self.assigned = assigned;
            self.chosen.retain(|(i, _)| *i != moved.layer);
            let of = &self.layers[moved.layer];
            if let Some(precision) = &moved.precision {
                let (layer, op_type) = (of.name.clone(), of.op_type.clone());
                let chosen = ChosenLayer { layer, op_type, precision: precision.clone(), gain_db, reason };
                self.chosen.push((moved.layer, chosen));
            }
        }
        (self.plan, self.measured) = (plan, measured);
    }

    /// Returns the reason of a move in words.
    fn reason(&self, moved: &Move) -> String {
        let goal = self.goal();
        let by = if goal.is_rescue() { RESCUE.to_string() } else { goal.spelled() };
        let kept = match moved.precision.as_deref() {
            Some(FLOAT) => format!("kept float by {by}"),
            Some(precision) => format!("`{precision}` by {by}"),
            None => format!("its own precision by {by}"),
        };
        match self.alone.get(&Move { layer: moved.layer, precision: None }) {
            Some(own) => {
                let left = SQNR.with_unit(relative_error_db(own.relative));
                format!("{kept}: quantizing only this layer leaves an SQNR of {left}")
            }
            None => {
                format!("{kept}: promoting the layer and its neighbors brings the overlap nearer to the float outputs")
            }
        }
    }

    /// Measures the current plan on held-out samples.
    pub(super) fn hold_out(&mut self) -> Result<()> {
        self.biases.set(BiasMode::Apply);
        self.on_held_out = self.held_out.measure_in(&mut self.network, &self.plan, &mut self.biases)?;
        self.biases.set(BiasMode::Learn);
        Ok(())
    }

    fn add_point(&mut self, moved: Option<Move>) {
        let own = || "as in the table".to_string();
        let reached = self.reached(&self.on_held_out);
        let Reached { sqnr_db, agreement_percent, weight_bits, .. } = reached;
        let of_goal = self.goal().words(reached);
        self.curve.push(CurvePoint {
            n_layers: self.chosen.len(),
            layer: moved.as_ref().map(|moved| self.layers[moved.layer].name.clone()),
            precision: moved.map(|moved| moved.precision.unwrap_or_else(own)),
            sqnr_db,
            agreement_percent,
            weight_bits,
            weight_bytes: self.cost.bytes(&self.plan),
            of_goal,
        });
    }

    /// Returns the figures of a network whose weights have the current plan's types.
    fn reached(&self, measured: &Measurement) -> Reached {
        Reached {
            sqnr_db: measured.worst(SQNR).unwrap_or(-MAX_DB),
            agreement_percent: measured.worst(AGREEMENT),
            goal: self.goal().metric().and_then(|metric: Metric| measured.worst(metric)),
            weight_bits: self.cost.mean_bits(&self.plan),
        }
    }

    fn is_met(&self, margin: f64) -> bool {
        self.goal().stricter(margin).is_met(self.reached(&self.on_held_out))
    }

    /// Whether a layer was chosen.
    pub fn has_chosen(&self) -> bool {
        !self.chosen.is_empty()
    }

    /// Returns the reason that no choice meets a budget of bits: no weight can have so few bits. `None` else.
    pub fn lack(&self) -> Option<String> {
        let (goal, scheme) = (self.goal(), self.planner.scheme());
        let precisions = || self.planner.task.wanted.precisions.iter().map(|name| Some(name.as_str())).chain([None]);
        let fits = |layer: &QuantizedLayer| {
            layer.n_weights > 0 && precisions().any(|name| f64::from(layer.weight_bits(name, scheme)) <= goal.bound)
        };
        let is_hopeless = goal.figure == Bounded::WeightBits && !self.layers.iter().any(fits);
        is_hopeless.then(|| format!("backend `{}` has no weights of {} bits or fewer", scheme.name, goal.bound))
    }

    /// Returns the chosen placement, with its plan decided from scratch. Fails if the plan cannot be made.
    pub fn planned(&mut self) -> Result<PlannedModel> {
        let placement = self.planner.placement(&self.assigned);
        let (plan, warnings) = self.planner.decide(&placement)?;
        Ok(PlannedModel { warnings, ..PlannedModel::new(self.planner.model.clone(), placement, plan) })
    }

    /// Returns the result, and the final plan's distance from the goal in the goal's unit. The plan is evaluated with
    /// the final biases of its model. Fails if a node cannot be run by itself.
    pub fn outcome(&mut self, last: &PlannedModel) -> Result<(Mixed, f64)> {
        let measured = self.held_out.measure(&last.model, &last.plan)?;
        let reached = self.reached(&measured);
        let Reached { sqnr_db, agreement_percent, weight_bits, .. } = reached;
        let goal = self.goal();
        let mixed = Mixed {
            goal: goal.clone(),
            met: goal.is_met(reached),
            n_ranking: self.n_analysis,
            n_held_out: self.held_out.n,
            sqnr_db,
            agreement_percent,
            weight_bits,
            curve: self.curve.clone(),
            layers: self.chosen.iter().map(|(_, chosen)| chosen.clone()).collect(),
            sensitivity: self.sensitivity(),
            of_goal: goal.words(reached),
            seconds: 0.0,
        };
        Ok((mixed, goal.shortfall(reached)))
    }
}

/// Returns the rise of the mean SQNR of the outputs, in dB.
fn sqnr_gain(before: &Measurement, after: &Measurement) -> f64 {
    let [before, after] = [before, after].map(|measured| measured.mean(SQNR).unwrap_or_default());
    after - before
}
