//! Layer by layer, the one whose precision costs most first.
//!
//! What a layer's precision costs is measured with all other layers float: the error that it adds alone.
//! The other way round, all layers quantized but one, the errors of layers that cancel each other hide what
//! each does (docs/design/mixed-precision.md).

use super::bias::{BiasCorrection, BiasMode, as_hook};
use super::goal::{Goal, Wanted};
use super::held_out::{HeldOut, add_outputs};
use super::layers::{QuantizedLayer, WeightCost, layers};
use super::planner::Planner;
use super::report::{ChosenLayer, CurvePoint, Mixed};
use super::{AnalysisSamples, ChosenPrecisions, MAX_ANALYSIS, MAX_BYTES, MAX_WORK, MIN_ANALYSIS};
use crate::diag::WithHint;
use crate::metrics::{OutputErrors, relative_error_db};
use crate::onnx::proto::ModelProto;
use crate::place::{Assigned, Placement};
use crate::plan::QuantPlan;
use crate::progress::Progress;
use crate::simulate::{CachedNetwork, CachedSamples, SampleValues};
use crate::tune::accept::Reached;
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;

/// A layer gets a precision; `None` is its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// Position in the search's layers.
    pub layer: usize,
    /// By the table's name.
    pub precision: Option<String>,
}

/// Layers that are tried before one is chosen. With more, layers that hide others come first again.
const WINDOW: usize = 2;

/// A choice in progress.
pub struct Search<'a, 'p> {
    pub(super) planner: &'a mut Planner<'p>,
    pub(super) wanted: &'a Wanted,
    network: CachedNetwork<'a>,
    /// Where biases will be corrected.
    biases: Option<BiasCorrection>,
    analysis: CachedSamples,
    n_analysis: usize,
    float: Vec<SampleValues>,
    held_out: &'a mut HeldOut,
    pub(super) progress: &'a Progress<'a>,
    pub(super) layers: Vec<QuantizedLayer>,
    pub(super) cost: WeightCost,
    assigned: Assigned,
    /// The current plan.
    pub(super) plan: QuantPlan,
    /// Its errors, on the samples of the sensitivity analysis and on the held-out ones.
    errors: OutputErrors,
    held_out_errors: OutputErrors,
    curve: Vec<CurvePoint>,
    chosen: Vec<(usize, ChosenLayer)>,
    /// Errors that layers add alone, relative to the outputs.
    pub(super) alone: BTreeMap<Move, f64>,
    /// Moves that are left, the next first, where layers are promoted.
    open: Option<Vec<Move>>,
}

impl<'a, 'p> Search<'a, 'p> {
    /// Begins with `placement`, where `model` is quantized without a choice. The sensitivity analysis has
    /// the samples `analysis`, `held_out` others. `progress` is told a number of steps, and gives what to call after each.
    ///
    /// # Errors
    /// If a node cannot be run by itself, or no output has what the goal is about.
    pub fn new(
        model: &'a ModelProto,
        placement: &Placement,
        planner: &'a mut Planner<'p>,
        wanted: &'a Wanted,
        analysis: AnalysisSamples,
        held_out: &'a mut HeldOut,
        progress: &'a Progress<'a>,
    ) -> Result<Search<'a, 'p>> {
        let graph = model.graph.as_ref().context("model has no graph")?;
        let AnalysisSamples { samples, corrected } = analysis;
        ensure!(!samples.is_empty(), "there are no samples to rank layers by");
        let mut network = CachedNetwork::new(model, samples)?;
        let layers = layers(graph, placement, planner.source.scheme);
        let bytes = network.bytes_per_sample().max(1);
        let cheap = (MAX_WORK / (bytes.div_ceil(1024) * layers.len().max(1))).max(MIN_ANALYSIS);
        let n_analysis = samples.len().min(MAX_ANALYSIS).min(cheap).min((MAX_BYTES / bytes).max(4));
        let mut samples = CachedSamples::new(samples.first(n_analysis), MAX_BYTES);
        let mut biases = corrected.then(BiasCorrection::default);
        let hook = as_hook(&mut biases);
        let float = network.run(&QuantPlan::default(), &mut samples, true, hook)?;
        biases.iter_mut().for_each(|biases| biases.set(BiasMode::Learn));
        let plan = planner.plan(placement)?;
        let mut search = Search {
            wanted,
            network,
            biases,
            analysis: samples,
            n_analysis,
            float,
            held_out,
            progress,
            layers,
            cost: WeightCost::of(graph),
            assigned: Assigned::default(),
            plan: QuantPlan::default(),
            errors: OutputErrors::default(),
            held_out_errors: OutputErrors::default(),
            curve: Vec::new(),
            chosen: Vec::new(),
            alone: BTreeMap::new(),
            open: None,
            planner,
        };
        search.settle(plan, false)?;
        search.add_point(None);
        let scores = search.held_out_errors.agreement_percent().is_some();
        ensure!(
            scores || !matches!(wanted.goal, Goal::MaxDrop(_)),
            anyhow!("no output looks like class scores, expected one with rows of them for --max-drop")
                .hint("--target-sqnr takes outputs of any kind")
        );
        Ok(search)
    }

    /// Promotes one layer after the other until the goal is reached, or a stricter one by `margin` in the
    /// goal's unit; or fits the weights in their budget.
    ///
    /// # Errors
    /// If a plan cannot be made or run.
    pub fn go_on(&mut self, margin: f64) -> Result<()> {
        match self.wanted.goal {
            Goal::BitsBudget(bits) => self.fit(bits),
            _ => self.promote(margin),
        }
    }

    /// Whether there are layers left to promote.
    pub fn can_go_on(&self) -> bool {
        !matches!(self.wanted.goal, Goal::BitsBudget(_) | Goal::KeepFloat(_))
            && self.open.as_ref().is_none_or(|open| !open.is_empty())
    }

    fn promote(&mut self, margin: f64) -> Result<()> {
        let limit = match self.wanted.goal {
            Goal::KeepFloat(n) => n,
            _ if margin == 0.0 && self.is_met(0.0) => return Ok(()),
            _ => usize::MAX,
        };
        if self.open.is_none() {
            self.open = Some(self.by_sensitivity()?);
        }
        let mut forced = margin > 0.0;
        let is_gate = !matches!(self.wanted.goal, Goal::KeepFloat(_));
        while self.chosen.len() < limit && (forced || !is_gate || !self.is_met(margin)) {
            forced = false;
            let Some(moved) = self.next()? else { break };
            // A model without a quantized layer meets every goal, but is none that was asked for.
            if is_gate && self.plan_with(&moved)?.weights.is_empty() {
                self.open = Some(Vec::new());
                break;
            }
            self.commit(moved)?;
        }
        Ok(())
    }

    /// The next layer to promote: of the first few that are left, the one with the least error together with
    /// those promoted before.
    fn next(&mut self) -> Result<Option<Move>> {
        let mut open = self.open.take().unwrap_or_default();
        let mut best = (f64::NEG_INFINITY, 0);
        let window = WINDOW.min(open.len());
        for (i, moved) in open[..window].iter().enumerate().filter(|_| window > 1) {
            let plan = self.plan_with(moved)?;
            let errors = self.errors_of(&plan, false)?;
            let gain_db = self.errors.gain_db(&errors);
            if gain_db > best.0 {
                best = (gain_db, i);
            }
        }
        let next = if open.is_empty() { None } else { Some(open.remove(best.1)) };
        self.open = Some(open);
        Ok(next)
    }

    pub(super) fn errors_of(&mut self, plan: &QuantPlan, keep: bool) -> Result<OutputErrors> {
        let hook = as_hook(&mut self.biases);
        let outputs = self.network.run(plan, &mut self.analysis, keep, hook)?;
        let mut errors = OutputErrors::new(self.float.len());
        add_outputs(&mut errors, &self.float, &outputs);
        Ok(errors)
    }

    /// The plan after a move.
    pub(super) fn plan_with(&mut self, moved: &Move) -> Result<QuantPlan> {
        let mut assigned = self.assigned.clone();
        self.assign(&mut assigned, moved, "");
        let placement = self.planner.placement(&assigned);
        self.planner.plan(&placement)
    }

    /// Gives the layer of a move its precision.
    pub(super) fn assign(&self, assigned: &mut Assigned, moved: &Move, reason: &str) {
        let layer = &self.layers[moved.layer];
        match &moved.precision {
            Some(name) => layer.assign(name, reason, self.planner.source.scheme, assigned),
            None => layer.clear(assigned),
        }
    }

    /// The precision that a layer has by now, where it is not its own.
    pub(super) fn precision_of(&self, layer: usize) -> Option<&str> {
        let chosen = self.chosen.iter().find(|(i, _)| *i == layer);
        chosen.map(|(_, chosen)| chosen.precision.as_str())
    }

    /// Makes a move.
    pub(super) fn commit(&mut self, moved: Move) -> Result<()> {
        let own = Move { precision: None, ..moved };
        let own = self.alone.get(&own).copied().unwrap_or_default();
        let goal = self.wanted.goal.spelled();
        let reason = format!("{goal}: quantized alone it leaves {:.2} dB", relative_error_db(own));
        let mut assigned = std::mem::take(&mut self.assigned);
        self.assign(&mut assigned, &moved, &reason);
        self.assigned = assigned;
        let placement = self.planner.placement(&self.assigned);
        let plan = self.planner.plan(&placement)?;
        let before = std::mem::take(&mut self.errors);
        self.settle(plan, true)?;
        self.chosen.retain(|(i, _)| *i != moved.layer);
        let of = &self.layers[moved.layer];
        if let Some(precision) = &moved.precision {
            let chosen = ChosenLayer {
                layer: of.name.clone(),
                op_type: of.op_type.clone(),
                precision: precision.clone(),
                gain_db: before.gain_db(&self.errors),
                reason,
            };
            self.chosen.push((moved.layer, chosen));
        }
        self.add_point(Some(moved));
        Ok(())
    }

    /// Makes `plan` the one that others are compared with; with `keep`, its values are kept.
    fn settle(&mut self, plan: QuantPlan, keep: bool) -> Result<()> {
        self.errors = self.errors_of(&plan, keep)?;
        self.set(BiasMode::Apply);
        self.held_out_errors = self.held_out.errors_in(&mut self.network, &plan, &mut self.biases)?;
        self.set(BiasMode::Learn);
        self.plan = plan;
        Ok(())
    }

    /// What happens to biases from now on, where they are corrected.
    fn set(&mut self, mode: BiasMode) {
        self.biases.iter_mut().for_each(|biases| biases.set(mode));
    }

    fn add_point(&mut self, moved: Option<Move>) {
        let own = || "as the table says".to_string();
        let layer = moved.as_ref().map(|moved| self.layers[moved.layer].name.clone());
        self.curve.push(CurvePoint {
            n_layers: self.chosen.len(),
            layer,
            precision: moved.map(|moved| moved.precision.unwrap_or_else(own)),
            sqnr_db: self.held_out_errors.sqnr_db(),
            agreement_percent: self.held_out_errors.agreement_percent(),
            weight_bits: self.cost.mean_bits(&self.plan),
            weight_bytes: self.cost.bytes(&self.plan),
        });
    }

    fn is_met(&self, margin: f64) -> bool {
        let reached = Reached {
            sqnr_db: self.held_out_errors.sqnr_db(),
            agreement_percent: self.held_out_errors.agreement_percent(),
            weight_bits: self.cost.mean_bits(&self.plan),
        };
        self.wanted.goal.stricter(margin).limit().is_met(reached)
    }

    /// What was chosen by now: the plan as the main job decides it, with its warnings.
    ///
    /// # Errors
    /// If the plan cannot be made.
    pub fn choice(&mut self) -> Result<ChosenPrecisions> {
        let placement = self.planner.placement(&self.assigned);
        let plan = self.planner.decide(&placement)?;
        let chosen = self.chosen.iter().map(|(_, chosen)| chosen.clone());
        let mixed = Mixed {
            goal: self.wanted.goal,
            met: self.is_met(0.0),
            n_ranking: self.n_analysis,
            n_judges: self.held_out.n,
            sqnr_db: self.held_out_errors.sqnr_db(),
            agreement_percent: self.held_out_errors.agreement_percent(),
            weight_bits: self.cost.mean_bits(&self.plan),
            curve: self.curve.clone(),
            layers: chosen.collect(),
            sensitivity: self.sensitivity(),
            seconds: 0.0,
        };
        Ok(ChosenPrecisions { placement, plan, mixed })
    }

    /// Evaluates the final plan, for `model` with its final biases.
    ///
    /// # Errors
    /// If a node cannot be run by itself.
    pub fn evaluate(&mut self, model: &ModelProto, plan: &QuantPlan, mixed: &mut Mixed) -> Result<()> {
        let errors = self.held_out.errors(model, plan)?;
        mixed.evaluated(errors.sqnr_db(), errors.agreement_percent());
        Ok(())
    }
}
