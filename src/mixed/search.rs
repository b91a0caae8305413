//! Layer by layer, the one whose precision costs most first.
//!
//! What a layer's precision costs is measured with all other layers float: the noise that it adds alone.
//! The other way round, all layers quantized but one, the errors of layers that cancel each other hide what
//! each does (docs/design/mixed-precision.md).

use super::bias::{BiasCorrection, BiasMode, as_hook};
use super::goal::{Goal, Wanted};
use super::judge::{Judge, add_outputs};
use super::layers::{Layer, WeightCost, layers};
use super::planner::Planner;
use super::report::{ChosenLayer, CurvePoint, LayerNoise, Mixed};
use super::{Choice, MAX_BYTES, MAX_RANKING, MAX_WORK, MIN_RANKING, Ranking};
use crate::diag::WithHint;
use crate::metrics::{OutputErrors, relative_error_db};
use crate::onnx::proto::ModelProto;
use crate::place::{Assigned, Placement};
use crate::plan::QuantPlan;
use crate::progress::Progress;
use crate::scheme::FLOAT;
use crate::simulate::{CachedNetwork, CachedSamples, SampleValues};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;

/// A layer gets a precision; `None` is its own.
pub type Move = (usize, Option<String>);

/// Layers that are tried before one is chosen. With more, layers that hide others come first again.
const WINDOW: usize = 2;

/// A choice in progress.
pub struct Search<'a, 'p> {
    pub(super) planner: &'a mut Planner<'p>,
    pub(super) wanted: &'a Wanted,
    network: CachedNetwork<'a>,
    /// Where biases will be corrected.
    biases: Option<BiasCorrection>,
    ranking: CachedSamples,
    n_ranking: usize,
    float: Vec<SampleValues>,
    judge: &'a mut Judge,
    progress: &'a Progress<'a>,
    pub(super) layers: Vec<Layer>,
    pub(super) cost: WeightCost,
    assigned: Assigned,
    /// The current plan.
    pub(super) plan: QuantPlan,
    figures: OutputErrors,
    judged: OutputErrors,
    curve: Vec<CurvePoint>,
    chosen: Vec<(usize, ChosenLayer)>,
    /// Noise that layers add alone, relative to the outputs.
    noise: BTreeMap<Move, f64>,
    /// Moves that are left, the next first, where layers are raised.
    open: Option<Vec<Move>>,
}

impl<'a, 'p> Search<'a, 'p> {
    /// Begins with `placement`, where `model` is quantized without a choice. Layers are ranked by `ranking`;
    /// `judge` has other samples. `progress` is told a number of steps, and gives what to call after each.
    ///
    /// # Errors
    /// If a node cannot be run by itself, or no output has what the goal is about.
    pub fn new(
        model: &'a ModelProto,
        placement: &Placement,
        planner: &'a mut Planner<'p>,
        wanted: &'a Wanted,
        ranking: Ranking,
        judge: &'a mut Judge,
        progress: &'a Progress<'a>,
    ) -> Result<Search<'a, 'p>> {
        let graph = model.graph.as_ref().context("model has no graph")?;
        let Ranking { samples, corrected } = ranking;
        ensure!(!samples.is_empty(), "there are no samples to rank layers by");
        let mut network = CachedNetwork::new(model, samples)?;
        let layers = layers(graph, placement, planner.source.scheme);
        let bytes = network.bytes_per_sample().max(1);
        let cheap = (MAX_WORK / (bytes.div_ceil(1024) * layers.len().max(1))).max(MIN_RANKING);
        let n_ranking = samples.len().min(MAX_RANKING).min(cheap).min((MAX_BYTES / bytes).max(4));
        let mut samples = CachedSamples::new(samples.first(n_ranking), MAX_BYTES);
        let mut biases = corrected.then(BiasCorrection::default);
        let hook = as_hook(&mut biases);
        let float = network.run(&QuantPlan::default(), &mut samples, true, hook)?;
        biases.iter_mut().for_each(|biases| biases.set(BiasMode::Learn));
        let plan = planner.plan(placement)?;
        let mut search = Search {
            wanted,
            network,
            biases,
            ranking: samples,
            n_ranking,
            float,
            judge,
            progress,
            layers,
            cost: WeightCost::of(graph),
            assigned: Assigned::default(),
            plan: QuantPlan::default(),
            figures: OutputErrors::default(),
            judged: OutputErrors::default(),
            curve: Vec::new(),
            chosen: Vec::new(),
            noise: BTreeMap::new(),
            open: None,
            planner,
        };
        search.settle(plan, false)?;
        search.add_point(None);
        let scores = search.judged.agreement_percent().is_some();
        ensure!(
            scores || !matches!(wanted.goal, Goal::MaxDrop(_)),
            anyhow!(
                "no output looks like class scores, expected one with rows of them for --max-drop"
            )
            .hint("--target-sqnr judges outputs of any kind")
        );
        Ok(search)
    }

    /// Raises one layer after the other until the goal is reached, or a stricter one by `margin` in the
    /// goal's unit; or fits the weights in their budget.
    ///
    /// # Errors
    /// If a plan cannot be made or run.
    pub fn go_on(&mut self, margin: f64) -> Result<()> {
        match self.wanted.goal {
            Goal::BitsBudget(bits) => self.fit(bits),
            _ => self.raise(margin),
        }
    }

    /// Whether there are layers left to raise.
    pub fn can_go_on(&self) -> bool {
        !matches!(self.wanted.goal, Goal::BitsBudget(_) | Goal::KeepFloat(_))
            && self.open.as_ref().is_none_or(|open| !open.is_empty())
    }

    fn raise(&mut self, margin: f64) -> Result<()> {
        let limit = match self.wanted.goal {
            Goal::KeepFloat(n) => n,
            _ if margin == 0.0 && self.is_met(0.0) => return Ok(()),
            _ => usize::MAX,
        };
        if self.open.is_none() {
            self.open = Some(self.rank()?);
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

    /// The layers that can be raised, the one that gains most first.
    fn rank(&mut self) -> Result<Vec<Move>> {
        let scheme = self.planner.source.scheme;
        let precision = self.wanted.precisions.first().context("no precision")?.clone();
        let open = |i: &usize| self.layers[*i].is_raised_by(&precision, scheme);
        let moves: Vec<Move> = (0..self.layers.len())
            .filter(open)
            .map(|layer| (layer, Some(precision.clone())))
            .collect();
        let mut rated = self.rate(&moves)?;
        rated.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(rated.into_iter().map(|(moved, _)| moved).collect())
    }

    /// How much less noise each move leaves, of what the layer adds alone.
    pub(super) fn rate(&mut self, moves: &[Move]) -> Result<Vec<(Move, f64)>> {
        let now = |search: &Self, layer: usize| -> Move {
            (layer, search.precision_of(layer).map(str::to_string))
        };
        let all: Vec<Move> =
            moves.iter().flat_map(|moved| [now(self, moved.0), moved.clone()]).collect();
        self.listen(&all)?;
        let rated = moves.iter().map(|moved| {
            let noise = |moved: &Move| self.noise.get(moved).copied().unwrap_or_default();
            (moved.clone(), noise(&now(self, moved.0)) - noise(moved))
        });
        Ok(rated.collect())
    }

    /// Measures the noise that layers add alone, where it is not known.
    fn listen(&mut self, moves: &[Move]) -> Result<()> {
        let is_new =
            |moved: &&Move| !self.noise.contains_key(*moved) && moved.1.as_deref() != Some(FLOAT);
        let moves: Vec<Move> = moves.iter().filter(is_new).cloned().collect();
        let placements: Vec<Placement> = moves.iter().map(|moved| self.alone(moved)).collect();
        self.planner.ensure_known(&placements)?;
        let tick = (self.progress)(moves.len());
        for (moved, placement) in moves.into_iter().zip(placements) {
            let plan = self.planner.plan(&placement)?;
            let noise = self.figures_of(&plan, false)?.relative_error();
            self.noise.insert(moved, noise);
            tick();
        }
        Ok(())
    }

    /// Where the model is quantized if all other layers are float.
    fn alone(&self, (layer, precision): &Move) -> Placement {
        let mut assigned = Assigned::default();
        for (_, other) in self.layers.iter().enumerate().filter(|(i, _)| i != layer) {
            assigned.float.insert(other.node, String::new());
        }
        self.assign(&mut assigned, *layer, precision.as_deref(), "");
        self.planner.placement(&assigned)
    }

    /// The next layer to raise: of the first few that are left, the one with the least noise together with
    /// those raised before.
    fn next(&mut self) -> Result<Option<Move>> {
        let mut open = self.open.take().unwrap_or_default();
        let mut best = (f64::NEG_INFINITY, 0);
        let window = WINDOW.min(open.len());
        for (i, moved) in open[..window].iter().enumerate().filter(|_| window > 1) {
            let plan = self.plan_with(moved)?;
            let figures = self.figures_of(&plan, false)?;
            let gain_db = self.figures.gain_db(&figures);
            if gain_db > best.0 {
                best = (gain_db, i);
            }
        }
        let next = if open.is_empty() { None } else { Some(open.remove(best.1)) };
        self.open = Some(open);
        Ok(next)
    }

    fn figures_of(&mut self, plan: &QuantPlan, keep: bool) -> Result<OutputErrors> {
        let hook = as_hook(&mut self.biases);
        let outputs = self.network.run(plan, &mut self.ranking, keep, hook)?;
        let mut figures = OutputErrors::new(self.float.len());
        add_outputs(&mut figures, &self.float, &outputs);
        Ok(figures)
    }

    /// The plan after a move.
    pub(super) fn plan_with(&mut self, (layer, precision): &Move) -> Result<QuantPlan> {
        let mut assigned = self.assigned.clone();
        self.assign(&mut assigned, *layer, precision.as_deref(), "");
        let placement = self.planner.placement(&assigned);
        self.planner.plan(&placement)
    }

    fn assign(&self, assigned: &mut Assigned, layer: usize, precision: Option<&str>, reason: &str) {
        let layer = &self.layers[layer];
        match precision {
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
    pub(super) fn commit(&mut self, (layer, precision): Move) -> Result<()> {
        let own = self.noise.get(&(layer, None)).copied().unwrap_or_default();
        let goal = self.wanted.goal.spelled();
        let reason = format!("{goal}: quantized alone it leaves {:.2} dB", relative_error_db(own));
        let mut assigned = std::mem::take(&mut self.assigned);
        self.assign(&mut assigned, layer, precision.as_deref(), &reason);
        self.assigned = assigned;
        let placement = self.planner.placement(&self.assigned);
        let plan = self.planner.plan(&placement)?;
        let before = std::mem::take(&mut self.figures);
        self.settle(plan, true)?;
        self.chosen.retain(|(i, _)| *i != layer);
        let of = &self.layers[layer];
        if let Some(precision) = &precision {
            let chosen = ChosenLayer {
                layer: of.name.clone(),
                op_type: of.op_type.clone(),
                precision: precision.clone(),
                gain_db: before.gain_db(&self.figures),
                reason,
            };
            self.chosen.push((layer, chosen));
        }
        self.add_point(Some((layer, precision)));
        Ok(())
    }

    /// Makes `plan` the one that others are compared with; with `keep`, its values are kept.
    fn settle(&mut self, plan: QuantPlan, keep: bool) -> Result<()> {
        self.figures = self.figures_of(&plan, keep)?;
        self.set(BiasMode::Apply);
        self.judged = self.judge.of_network(&mut self.network, &plan, &mut self.biases)?;
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
        let layer = moved.as_ref().map(|(layer, _)| self.layers[*layer].name.clone());
        self.curve.push(CurvePoint {
            n_layers: self.chosen.len(),
            layer,
            precision: moved.map(|(_, precision)| precision.unwrap_or_else(own)),
            sqnr_db: self.judged.sqnr_db(),
            agreement_percent: self.judged.agreement_percent(),
            weight_bits: self.cost.mean_bits(&self.plan),
            weight_bytes: self.cost.bytes(&self.plan),
        });
    }

    fn is_met(&self, margin: f64) -> bool {
        let (sqnr_db, agreement) = (self.judged.sqnr_db(), self.judged.agreement_percent());
        let goal = self.wanted.goal.stricter(margin);
        Mixed::is_met(goal, sqnr_db, agreement, self.cost.mean_bits(&self.plan))
    }

    /// What was chosen by now: the plan as the main job decides it, with its warnings.
    ///
    /// # Errors
    /// If the plan cannot be made.
    pub fn choice(&mut self) -> Result<Choice> {
        let placement = self.planner.placement(&self.assigned);
        let plan = self.planner.decide(&placement)?;
        let chosen = self.chosen.iter().map(|(_, chosen)| chosen.clone());
        let mixed = Mixed {
            goal: self.wanted.goal,
            met: self.is_met(0.0),
            n_ranking: self.n_ranking,
            n_judges: self.judge.n,
            sqnr_db: self.judged.sqnr_db(),
            agreement_percent: self.judged.agreement_percent(),
            weight_bits: self.cost.mean_bits(&self.plan),
            curve: self.curve.clone(),
            layers: chosen.collect(),
            sensitivity: self.sensitivity(),
            seconds: 0.0,
        };
        Ok(Choice { placement, plan, mixed })
    }

    /// What the layers' own precision costs, the most first.
    fn sensitivity(&self) -> Vec<LayerNoise> {
        let own = self.noise.iter().filter(|((_, precision), _)| precision.is_none());
        let of = |((layer, _), noise): (&Move, &f64)| LayerNoise {
            layer: self.layers[*layer].name.clone(),
            op_type: self.layers[*layer].op_type.clone(),
            sqnr_db: relative_error_db(*noise),
        };
        let mut list: Vec<LayerNoise> = own.map(of).collect();
        list.sort_by(|a, b| a.sqnr_db.total_cmp(&b.sqnr_db));
        list
    }

    /// The figures of the final plan, for `model` with its final biases.
    ///
    /// # Errors
    /// If a node cannot be run by itself.
    pub fn judge(&mut self, model: &ModelProto, plan: &QuantPlan, mixed: &mut Mixed) -> Result<()> {
        let figures = self.judge.figures(model, plan)?;
        mixed.judged(figures.sqnr_db(), figures.agreement_percent());
        Ok(())
    }
}
