//! Plans for many placements of one model: what was decided for a group of tensors or a weight is decided
//! once.

use crate::decide::{
    Finders, PlannedActivation, PlannedWeight, QuantPlan, decide, decide_biases, round,
};
use crate::observe::Statistic;
use crate::onnx::facts::Facts;
use crate::onnx::proto::GraphProto;
use crate::place::{ActivationSite, Assigned, Selection, Sites, WeightSite, place_assigned};
use crate::quant::GivenRange;
use crate::scheme::Scheme;
use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// What plans are made from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The prepared model's graph.
    pub graph: &'a GraphProto,
    /// Types and shapes of its tensors.
    pub facts: &'a Facts,
    /// The backend's table.
    pub scheme: &'a Scheme,
    /// Which nodes the user takes out or asks for.
    pub selection: &'a Selection,
    /// Range finders.
    pub finders: Finders<'a>,
    /// Ranges that need no statistics.
    pub given: Option<&'a BTreeMap<String, GivenRange>>,
}

/// Observes tensors: a statistic for each, in their order.
pub type Observe<'a> = dyn FnMut(&[String]) -> Result<Vec<Statistic>> + Send + 'a;

/// Members of a group and their type.
type GroupKey = (Vec<String>, String);

/// A weight with the type and axis that it is quantized on.
type WeightKey = (String, String, Option<usize>);

/// Makes plans.
pub struct Planner<'a> {
    /// What they are made from.
    pub source: Source<'a>,
    known: BTreeMap<String, Statistic>,
    /// Of a tensor that is not known.
    none: Statistic,
    observe: &'a mut Observe<'a>,
    groups: BTreeMap<GroupKey, BTreeMap<String, PlannedActivation>>,
    weights: BTreeMap<WeightKey, PlannedWeight>,
}

fn weight_key(site: &WeightSite) -> WeightKey {
    (site.tensor.clone(), site.qtype.clone(), site.axis)
}

/// Members of the groups of `sites`, by the group's number.
fn groups_of(sites: &Sites) -> BTreeMap<usize, Vec<&ActivationSite>> {
    let mut groups: BTreeMap<usize, Vec<&ActivationSite>> = BTreeMap::new();
    sites.activations.iter().for_each(|site| groups.entry(site.group).or_default().push(site));
    groups
}

fn group_key(members: &[&ActivationSite]) -> GroupKey {
    let tensors = members.iter().map(|site| site.tensor.clone()).collect();
    (tensors, members.first().map(|site| site.qtype.clone()).unwrap_or_default())
}

impl<'a> Planner<'a> {
    /// `known` are statistics by tensor; `observe` is asked for those that other placements need.
    pub fn new(
        source: Source<'a>,
        known: BTreeMap<String, Statistic>,
        observe: &'a mut Observe<'a>,
    ) -> Planner<'a> {
        let (none, groups, weights) = Default::default();
        Planner { source, known, none, observe, groups, weights }
    }

    /// Where the model is quantized with these precisions.
    pub fn sites(&self, assigned: &Assigned) -> Sites {
        let Source { graph, facts, scheme, selection, .. } = self.source;
        place_assigned(graph, facts, scheme, selection, assigned)
    }

    /// Observes what the placements need and is not known.
    pub fn ensure_known(&mut self, placements: &[Sites]) -> Result<()> {
        let sites = placements.iter().flat_map(|sites| &sites.activations);
        let is_given =
            |tensor: &String| self.source.given.is_some_and(|given| given.contains_key(tensor));
        let tensors = sites.map(|site| &site.tensor);
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

    fn statistics(&self, sites: &Sites) -> Vec<&Statistic> {
        let known = |site: &ActivationSite| self.known.get(&site.tensor).unwrap_or(&self.none);
        sites.activations.iter().map(known).collect()
    }

    /// The plan as the main job decides it.
    pub fn decide(&mut self, sites: &Sites) -> Result<QuantPlan> {
        self.ensure_known(std::slice::from_ref(sites))?;
        let Source { graph, scheme, finders, given, .. } = self.source;
        decide(graph, sites, &self.statistics(sites), given, scheme, finders)
    }

    /// The same plan, without its warnings, from what was decided before where that is possible.
    pub fn plan(&mut self, sites: &Sites) -> Result<QuantPlan> {
        self.ensure_known(std::slice::from_ref(sites))?;
        self.decide_new(sites)?;
        let mut plan = QuantPlan::default();
        let groups = groups_of(sites);
        for site in &sites.activations {
            let known =
                groups.get(&site.group).and_then(|members| self.groups.get(&group_key(members)));
            if let Some(planned) = known.and_then(|group| group.get(&site.tensor)) {
                plan.activations.push(PlannedActivation { site: site.clone(), ..planned.clone() });
            }
        }
        for site in &sites.weights {
            if let Some(planned) = self.weights.get(&weight_key(site)) {
                plan.weights.push(PlannedWeight { site: site.clone(), ..planned.clone() });
            }
        }
        let found = (plan.activations.len(), plan.weights.len());
        ensure!(
            found == (sites.activations.len(), sites.weights.len()),
            "{} activations and {} weights were decided",
            found.0,
            found.1
        );
        let Source { graph, scheme, finders, .. } = self.source;
        decide_biases(graph, sites, scheme, finders.weight, &mut plan, true)?;
        for weight in &mut plan.weights {
            // A bias may have widened the scales.
            let decided = self.weights.get(&weight_key(&weight.site));
            if decided.is_some_and(|decided| decided.params != weight.params) {
                round(graph, weight)?;
            }
        }
        Ok(plan)
    }

    /// Decides the groups and weights of `sites` that were not seen before.
    fn decide_new(&mut self, sites: &Sites) -> Result<()> {
        let mut new = Sites::default();
        let groups = groups_of(sites);
        for members in groups.values() {
            if !self.groups.contains_key(&group_key(members)) {
                new.activations.extend(members.iter().map(|site| (*site).clone()));
            }
        }
        let unknown = |site: &&WeightSite| !self.weights.contains_key(&weight_key(site));
        new.weights = sites.weights.iter().filter(unknown).cloned().collect();
        if new.activations.is_empty() && new.weights.is_empty() {
            return Ok(());
        }
        let Source { graph, scheme, finders, given, .. } = self.source;
        let plan = decide(graph, &new, &self.statistics(&new), given, scheme, finders)?;
        for planned in plan.activations {
            let Some(members) = groups.get(&planned.site.group) else { continue };
            let group = self.groups.entry(group_key(members)).or_default();
            group.insert(planned.site.tensor.clone(), planned);
        }
        let weights = plan.weights.into_iter().map(|planned| (weight_key(&planned.site), planned));
        self.weights.extend(weights);
        Ok(())
    }
}
