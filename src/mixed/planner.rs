//! Plans for many placements of one model. A group of tensors, or a weight, that placements share is decided once.

use super::Task;
use crate::calibrate::{CalibrationStatistics, SampleSet};
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::place::{ActivationQuantizer, Assigned, Placement, WeightQuantizer, place_assigned};
use crate::plan::{Decided, PlannedActivation, PlannedWeight, QuantPlan, decide, decide_biases, round, share};
use crate::scheme::Scheme;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Tensors of a group, and their type.
type GroupKey = (Vec<String>, String);

/// A weight, its type, its axis, and the activation whose parameters it shares.
type WeightKey = (String, String, Option<usize>, Option<String>);

/// A maker of plans, with its cached decisions.
pub struct Planner<'a> {
    /// The task of the search.
    pub task: Task<'a>,
    /// The prepared model.
    pub model: &'a ModelProto,
    /// The model's graph.
    pub graph: &'a GraphProto,
    /// The data, for placements that need statistics of more tensors.
    pub samples: &'a SampleSet,
    /// Calibration statistics of the model's tensors.
    pub calibration: &'a mut CalibrationStatistics,
    /// Decided activations by group and tensor.
    pub groups: BTreeMap<GroupKey, BTreeMap<String, PlannedActivation>>,
    /// Decided weights.
    pub weights: BTreeMap<WeightKey, PlannedWeight>,
}

fn weight_key(quantizer: &WeightQuantizer) -> WeightKey {
    (quantizer.tensor.clone(), quantizer.qtype.clone(), quantizer.axis, quantizer.shares_with.clone())
}

/// Returns the groups of `placement`, by number.
fn groups_of(placement: &Placement) -> BTreeMap<usize, GroupKey> {
    let mut groups: BTreeMap<usize, GroupKey> = BTreeMap::new();
    for quantizer in &placement.activations {
        let (members, _) = groups.entry(quantizer.group).or_insert_with(|| (Vec::new(), quantizer.qtype.clone()));
        members.push(quantizer.tensor.clone());
    }
    groups
}

impl<'a> Planner<'a> {
    /// Returns the backend's table.
    pub fn scheme(&self) -> &'a Scheme {
        self.task.setup.scheme
    }

    /// Returns the placement with the assigned precisions.
    pub fn placement(&self, assigned: &Assigned) -> Placement {
        let setup = self.task.setup;
        place_assigned(self.graph, setup.value_info, setup.scheme, setup.selection, assigned)
    }

    /// Observes tensors of the placements that have no statistics yet.
    pub fn ensure_known(&mut self, placements: &[Placement]) -> Result<()> {
        let tensors = placements.iter().flat_map(|placement| &placement.activations).map(|q| &q.tensor);
        let is_given = |tensor: &String| self.task.given.is_some_and(|given| given.contains_key(tensor));
        let tensors: BTreeSet<&String> = tensors.filter(|tensor| !is_given(tensor)).collect();
        let shapes = self.task.setup.shapes;
        self.calibration.observe_more(self.model, shapes, tensors, self.samples, self.task.setup.progress)
    }

    fn decide_for(&self, placement: &Placement) -> Result<Decided> {
        let Task { given, observers, .. } = self.task;
        decide(self.graph, placement, &self.calibration.for_quantizers(placement), given, self.scheme(), observers)
    }

    /// Returns the plan for a placement, decided from scratch.
    pub fn decide(&mut self, placement: &Placement) -> Result<Decided> {
        self.ensure_known(std::slice::from_ref(placement))?;
        self.decide_for(placement)
    }

    /// Returns the plan for a placement without warnings, from cached decisions where possible.
    pub fn plan(&mut self, placement: &Placement) -> Result<QuantPlan> {
        self.ensure_known(std::slice::from_ref(placement))?;
        let groups = groups_of(placement);
        self.decide_new(placement, &groups)?;
        let activation = |quantizer: &ActivationQuantizer| {
            let planned = self.groups.get(&groups[&quantizer.group])?.get(&quantizer.tensor)?;
            Some(PlannedActivation { quantizer: quantizer.clone(), ..planned.clone() })
        };
        let weight = |quantizer: &WeightQuantizer| {
            let planned = self.weights.get(&weight_key(quantizer))?;
            Some(PlannedWeight { quantizer: quantizer.clone(), ..planned.clone() })
        };
        let activations: Option<Vec<_>> = placement.activations.iter().map(activation).collect();
        let weights: Option<Vec<_>> = placement.weights.iter().map(weight).collect();
        let undecided = "internal error: a quantizer without parameters";
        let (mut activations, mut weights) = activations.zip(weights).context(undecided)?;
        share(&mut weights, &mut activations);
        let mut plan = QuantPlan { activations, weights, biases: Vec::new() };
        decide_biases(self.graph, placement, self.scheme(), self.task.observers.weight, &mut plan, true)?;
        for weight in &mut plan.weights {
            // A bias may have widened the scales of the cached weight, and its activation may have another range.
            let decided = self.weights.get(&weight_key(&weight.quantizer));
            if decided.is_some_and(|decided| decided.params != weight.params) {
                round(self.graph, weight)?;
            }
        }
        Ok(plan)
    }

    /// Decides the groups and weights of `placement` that are not cached.
    fn decide_new(&mut self, placement: &Placement, groups: &BTreeMap<usize, GroupKey>) -> Result<()> {
        let is_new = |quantizer: &&ActivationQuantizer| !self.groups.contains_key(&groups[&quantizer.group]);
        let is_new_weight = |quantizer: &&WeightQuantizer| !self.weights.contains_key(&weight_key(quantizer));
        let new = Placement {
            activations: placement.activations.iter().filter(is_new).cloned().collect(),
            weights: placement.weights.iter().filter(is_new_weight).cloned().collect(),
            ..Placement::default()
        };
        if new.activations.is_empty() && new.weights.is_empty() {
            return Ok(());
        }
        let (plan, _) = self.decide_for(&new)?;
        for planned in plan.activations {
            let group = self.groups.entry(groups[&planned.quantizer.group].clone()).or_default();
            group.insert(planned.quantizer.tensor.clone(), planned);
        }
        self.weights.extend(plan.weights.into_iter().map(|planned| (weight_key(&planned.quantizer), planned)));
        Ok(())
    }
}
