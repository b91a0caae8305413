//! Plans for many placements of one model: what was decided for a group of tensors or a weight is decided
//! once.

use crate::onnx::proto::GraphProto;
use crate::onnx::value_info::ValueInfos;
use crate::place::{ActivationQuantizer, Assigned, Placement, Selection, WeightQuantizer, place_assigned};
use crate::plan::{Observers, PlannedActivation, PlannedWeight, QuantPlan, decide, decide_biases, round};
use crate::quant::GivenRange;
use crate::scheme::Scheme;
use crate::statistics::TensorStatistics;
use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// What plans are made from.
#[derive(Clone, Copy)]
pub struct PlanSource<'a> {
    /// The prepared model's graph.
    pub graph: &'a GraphProto,
    /// Types and shapes of its tensors.
    pub value_info: &'a ValueInfos,
    /// The backend's table.
    pub scheme: &'a Scheme,
    /// Which nodes the user takes out or asks for.
    pub selection: &'a Selection,
    /// Range observers.
    pub observers: Observers<'a>,
    /// Ranges that need no statistics.
    pub given: Option<&'a BTreeMap<String, GivenRange>>,
}

/// Observes tensors: a statistic for each, in their order.
pub type Observe<'a> = dyn FnMut(&[String]) -> Result<Vec<TensorStatistics>> + Send + 'a;

/// Members of a group and their type.
type GroupKey = (Vec<String>, String);

/// A weight with the type and axis that it is quantized on.
type WeightKey = (String, String, Option<usize>);

/// Makes plans.
pub struct Planner<'a> {
    /// What they are made from.
    pub source: PlanSource<'a>,
    known: BTreeMap<String, TensorStatistics>,
    /// Of a tensor that is not known.
    none: TensorStatistics,
    observe: &'a mut Observe<'a>,
    groups: BTreeMap<GroupKey, BTreeMap<String, PlannedActivation>>,
    weights: BTreeMap<WeightKey, PlannedWeight>,
}

fn weight_key(quantizer: &WeightQuantizer) -> WeightKey {
    (quantizer.tensor.clone(), quantizer.qtype.clone(), quantizer.axis)
}

/// Members of the groups of `placement`, by the group's number.
fn groups_of(placement: &Placement) -> BTreeMap<usize, Vec<&ActivationQuantizer>> {
    let mut groups: BTreeMap<usize, Vec<&ActivationQuantizer>> = BTreeMap::new();
    placement.activations.iter().for_each(|quantizer| groups.entry(quantizer.group).or_default().push(quantizer));
    groups
}

fn group_key(members: &[&ActivationQuantizer]) -> GroupKey {
    let tensors = members.iter().map(|quantizer| quantizer.tensor.clone()).collect();
    (tensors, members.first().map(|quantizer| quantizer.qtype.clone()).unwrap_or_default())
}

impl<'a> Planner<'a> {
    /// `known` are statistics by tensor; `observe` is asked for those that other placements need.
    pub fn new(
        source: PlanSource<'a>,
        known: BTreeMap<String, TensorStatistics>,
        observe: &'a mut Observe<'a>,
    ) -> Planner<'a> {
        let (none, groups, weights) = Default::default();
        Planner { source, known, none, observe, groups, weights }
    }

    /// Where the model is quantized with these precisions.
    pub fn placement(&self, assigned: &Assigned) -> Placement {
        let PlanSource { graph, value_info, scheme, selection, .. } = self.source;
        place_assigned(graph, value_info, scheme, selection, assigned)
    }

    /// Observes what the placements need and is not known.
    pub fn ensure_known(&mut self, placements: &[Placement]) -> Result<()> {
        let placement = placements.iter().flat_map(|placement| &placement.activations);
        let is_given = |tensor: &String| self.source.given.is_some_and(|given| given.contains_key(tensor));
        let tensors = placement.map(|quantizer| &quantizer.tensor);
        let missing = tensors.filter(|name| !self.known.contains_key(*name) && !is_given(name));
        let missing: BTreeSet<String> = missing.cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<String> = missing.into_iter().collect();
        let statistics = (self.observe)(&missing)?;
        ensure!(statistics.len() == missing.len(), "{} tensors were observed", statistics.len());
        self.known.extend(missing.into_iter().zip(statistics));
        Ok(())
    }

    fn statistics(&self, placement: &Placement) -> Vec<&TensorStatistics> {
        let known = |quantizer: &ActivationQuantizer| self.known.get(&quantizer.tensor).unwrap_or(&self.none);
        placement.activations.iter().map(known).collect()
    }

    /// The plan as the main job decides it.
    pub fn decide(&mut self, placement: &Placement) -> Result<QuantPlan> {
        self.ensure_known(std::slice::from_ref(placement))?;
        let PlanSource { graph, scheme, observers, given, .. } = self.source;
        decide(graph, placement, &self.statistics(placement), given, scheme, observers)
    }

    /// The same plan, without its warnings, from what was decided before where that is possible.
    pub fn plan(&mut self, placement: &Placement) -> Result<QuantPlan> {
        self.ensure_known(std::slice::from_ref(placement))?;
        self.decide_new(placement)?;
        let mut plan = QuantPlan::default();
        let groups = groups_of(placement);
        for quantizer in &placement.activations {
            let known = groups.get(&quantizer.group).and_then(|members| self.groups.get(&group_key(members)));
            if let Some(planned) = known.and_then(|group| group.get(&quantizer.tensor)) {
                plan.activations.push(PlannedActivation { quantizer: quantizer.clone(), ..planned.clone() });
            }
        }
        for quantizer in &placement.weights {
            if let Some(planned) = self.weights.get(&weight_key(quantizer)) {
                plan.weights.push(PlannedWeight { quantizer: quantizer.clone(), ..planned.clone() });
            }
        }
        let found = (plan.activations.len(), plan.weights.len());
        ensure!(
            found == (placement.activations.len(), placement.weights.len()),
            "{} activations and {} weights were decided",
            found.0,
            found.1
        );
        let PlanSource { graph, scheme, observers, .. } = self.source;
        decide_biases(graph, placement, scheme, observers.weight, &mut plan, true)?;
        for weight in &mut plan.weights {
            // A bias may have widened the scales.
            let decided = self.weights.get(&weight_key(&weight.quantizer));
            if decided.is_some_and(|decided| decided.params != weight.params) {
                round(graph, weight)?;
            }
        }
        Ok(plan)
    }

    /// Decides the groups and weights of `placement` that were not seen before.
    fn decide_new(&mut self, placement: &Placement) -> Result<()> {
        let mut new = Placement::default();
        let groups = groups_of(placement);
        for members in groups.values() {
            if !self.groups.contains_key(&group_key(members)) {
                new.activations.extend(members.iter().map(|quantizer| (*quantizer).clone()));
            }
        }
        let unknown = |quantizer: &&WeightQuantizer| !self.weights.contains_key(&weight_key(quantizer));
        new.weights = placement.weights.iter().filter(unknown).cloned().collect();
        if new.activations.is_empty() && new.weights.is_empty() {
            return Ok(());
        }
        let PlanSource { graph, scheme, observers, given, .. } = self.source;
        let plan = decide(graph, &new, &self.statistics(&new), given, scheme, observers)?;
        for planned in plan.activations {
            let Some(members) = groups.get(&planned.quantizer.group) else { continue };
            let group = self.groups.entry(group_key(members)).or_default();
            group.insert(planned.quantizer.tensor.clone(), planned);
        }
        let weights = plan.weights.into_iter().map(|planned| (weight_key(&planned.quantizer), planned));
        self.weights.extend(weights);
        Ok(())
    }
}
