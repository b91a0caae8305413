//! The sensitivity analysis: the cost of a layer's precision with all other layers float.

use super::choose::begin;
use super::goal::{Goal, Wanted};
use super::report::LayerSensitivity;
use super::search::{LayerError, Move, Search};
use super::{MIN_SAMPLES, Task};
use crate::calibrate::CalibrationStatistics;
use crate::metrics::relative_error_db;
use crate::place::{Assigned, Placement};
use crate::plan::Observers;
use crate::quant::GivenRange;
use crate::scheme::FLOAT;
use crate::tune::{PlannedModel, Setup};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// A move and its gain.
pub struct RatedMove {
    /// The move.
    pub moved: Move,
    /// Decrease of the error that the layer adds alone, in the deciding metric.
    pub gain: f64,
}

/// Returns the cost of each layer's own precision in a final plan, highest first. Empty with too few samples.
///
/// # Errors
/// If a node cannot be run by itself.
pub fn layer_sensitivity(
    setup: Setup,
    observers: Observers,
    given: Option<&BTreeMap<String, GivenRange>>,
    planned: &PlannedModel,
    calibration: &mut CalibrationStatistics,
) -> Result<Vec<LayerSensitivity>> {
    let has_samples = setup.samples.is_some_and(|samples| samples.by_content().len() >= MIN_SAMPLES);
    if planned.plan.weights.is_empty() || !has_samples {
        return Ok(Vec::new());
    }
    // The analysis of rescue, without a budget: no layer is promoted.
    let wanted = Wanted { goal: Goal::rescue(0.0), precisions: vec![FLOAT.to_string()] };
    let mut search = begin(Task { wanted: &wanted, setup, observers, given, known: None }, planned, calibration)?.0;
    let own: Vec<Move> = (0..search.layers.len()).map(|layer| Move { layer, precision: None }).collect();
    search.measure(&own)?;
    Ok(search.sensitivity())
}

impl Search<'_> {
    /// Returns the layers that can be promoted, largest gain first.
    pub(super) fn by_sensitivity(&mut self) -> Result<Vec<Move>> {
        let scheme = self.planner.scheme();
        let precision = self.planner.task.wanted.precisions.first().context("no precision")?.clone();
        let open = |i: &usize| self.layers[*i].is_promoted_by(&precision, scheme);
        let moves: Vec<Move> = (0..self.layers.len())
            .filter(open)
            .map(|layer| Move { layer, precision: Some(precision.clone()) })
            .collect();
        let mut rated = self.rate(&moves)?;
        rated.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        Ok(rated.into_iter().map(|rated| rated.moved).collect())
    }

    /// Measures the gain of each move.
    pub(super) fn rate(&mut self, moves: &[Move]) -> Result<Vec<RatedMove>> {
        let now = |search: &Self, layer: usize| -> Move {
            Move { layer, precision: search.precision_of(layer).map(str::to_string) }
        };
        let all: Vec<Move> = moves.iter().flat_map(|moved| [now(self, moved.layer), moved.clone()]).collect();
        self.measure(&all)?;
        let rated = moves.iter().map(|moved| {
            let error = |moved: &Move| self.alone.get(moved).copied().unwrap_or_default().deciding;
            let gain = error(&now(self, moved.layer)) - error(moved);
            RatedMove { moved: moved.clone(), gain }
        });
        Ok(rated.collect())
    }

    /// Measures the error of each move with all other layers float, where it is not known yet.
    fn measure(&mut self, moves: &[Move]) -> Result<()> {
        let is_new = |moved: &&Move| !self.alone.contains_key(*moved) && moved.precision.as_deref() != Some(FLOAT);
        let moves: Vec<Move> = moves.iter().filter(is_new).cloned().collect();
        let placements: Vec<Placement> = moves.iter().map(|moved| self.placement_of_move(moved)).collect();
        self.planner.ensure_known(&placements)?;
        let tick = (self.planner.task.setup.progress)("sensitivity analysis", moves.len());
        for (moved, placement) in moves.into_iter().zip(placements) {
            let plan = self.planner.plan(&placement)?;
            let error = LayerError::of(&self.measure_plan(&plan, false)?);
            self.alone.insert(moved, error);
            tick();
        }
        Ok(())
    }

    /// Returns the placement with all layers float but the layer of the move.
    fn placement_of_move(&self, moved: &Move) -> Placement {
        let mut assigned = self.others_float(moved.layer..moved.layer + 1);
        self.assign(&mut assigned, moved, "");
        self.planner.placement(&assigned)
    }

    /// Returns the placement with all layers float but those of `layers` that were not promoted.
    pub(super) fn placement_of_layers(&self, layers: Range<usize>) -> Placement {
        let promoted = layers.clone().filter(|&layer| self.precision_of(layer).is_some());
        let mut assigned = self.others_float(layers);
        assigned.float.extend(promoted.map(|layer| (self.layers[layer].node, String::new())));
        self.planner.placement(&assigned)
    }

    fn others_float(&self, layers: Range<usize>) -> Assigned {
        let others = self.layers.iter().enumerate().filter(|(i, _)| !layers.contains(i));
        let mut assigned = self.base.clone();
        assigned.float.extend(others.map(|(_, other)| (other.node, String::new())));
        assigned
    }

    /// Returns the cost of each layer's own precision, highest first.
    pub(super) fn sensitivity(&self) -> Vec<LayerSensitivity> {
        let own = self.alone.iter().filter(|(moved, _)| moved.precision.is_none());
        let mut list: Vec<LayerSensitivity> = own
            .map(|(moved, error)| LayerSensitivity {
                layer: self.layers[moved.layer].name.clone(),
                op_type: self.layers[moved.layer].op_type.clone(),
                sqnr_db: relative_error_db(error.relative),
            })
            .collect();
        list.sort_by(|a, b| a.sqnr_db.total_cmp(&b.sqnr_db));
        list
    }
}
