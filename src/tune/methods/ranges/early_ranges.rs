//! Ranges of groups whose first tensor no layer reads.
//!
//! A group's quantization parameters must be known at its first tensor, but the layers that show a good choice may come
//! later, after a Concat or a pooling. So the float network runs alone first, and each choice is evaluated at all
//! layers that read a tensor of the group.

use super::reader::{Quantized, readers};
use super::{GroupCandidates, N_SAMPLES, RangeCandidate, error, follow_descent, least_error};
use crate::engine::Value;
use crate::onnx::proto::ModelProto;
use crate::plan::{PlannedActivation, QuantPlan};
use crate::simulate::{ForwardPass, Network, PlanView, Samples};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Chooses the best ranges for the groups of `plan` whose first tensor no layer reads, by group. `corrects` says
/// whether biases will be corrected by the float network. Fails if a node cannot be run by itself; the message names
/// it.
pub(super) fn early_ranges(
    model: &ModelProto,
    plan: &QuantPlan,
    samples: Samples,
    corrects: bool,
) -> Result<EarlyRanges> {
    let mut search = EarlyRangeSearch::new(plan, corrects)?;
    if search.groups.is_empty() {
        return Ok(EarlyRanges(BTreeMap::new()));
    }
    let n = samples.len().min(N_SAMPLES);
    let on_float = |net: &Network, name: &str, float: &[Value]| search.add_errors(net, name, float);
    ForwardPass::new(model, n)?.on_float_tensor(on_float).run(samples.first(n))?;
    Ok(EarlyRanges(search.chosen()?))
}

/// Ranges by group, chosen before the pass.
pub(super) struct EarlyRanges(pub BTreeMap<usize, RangeCandidate>);

/// A search for the ranges of groups during a pass of the float network.
struct EarlyRangeSearch<'p> {
    plan: &'p QuantPlan,
    view: PlanView,
    corrects: bool,
    groups: BTreeMap<usize, Measured>,
}

/// The candidate ranges of a group, each with its error at the layers that read the group.
struct Measured {
    found: Vec<(RangeCandidate, f64)>,
    /// Smaller and larger ranges around the first of `found`.
    directions: [Vec<(RangeCandidate, f64)>; 2],
}

impl<'p> EarlyRangeSearch<'p> {
    fn new(plan: &'p QuantPlan, corrects: bool) -> Result<EarlyRangeSearch<'p>> {
        let layers = plan.weights.iter().flat_map(|weight| &weight.quantizer.edges);
        let layers: BTreeSet<usize> = layers.map(|(node_idx, _)| *node_idx).collect();
        let is_read =
            |planned: &PlannedActivation| planned.quantizer.edges.iter().any(|(node_idx, _)| layers.contains(node_idx));
        let (mut seen, mut groups) = (BTreeSet::new(), BTreeMap::new());
        for planned in &plan.activations {
            let group = planned.quantizer.group;
            if !seen.insert(group) || is_read(planned) {
                continue;
            }
            let mut members = plan.activations.iter().filter(|p| p.quantizer.group == group);
            if let (true, Some(candidates)) = (members.any(is_read), GroupCandidates::of(plan, group)) {
                let unmeasured = |all: Vec<RangeCandidate>| all.into_iter().map(|one| (one, 0.0));
                let directions =
                    candidates.rescaled(&candidates.found[0]).map(|direction| unmeasured(direction).collect());
                groups.insert(group, Measured { found: unmeasured(candidates.found).collect(), directions });
            }
        }
        Ok(EarlyRangeSearch { plan, view: PlanView::of(plan)?, corrects, groups })
    }

    /// Adds up the error of each range of the tensor's group at the layers that read the tensor. `float` holds its
    /// values. Fails if a layer cannot be run by itself.
    fn add_errors(&mut self, net: &Network, name: &str, float: &[Value]) -> Result<()> {
        let Some(planned) = self.plan.activations.iter().find(|p| p.quantizer.tensor == name) else {
            return Ok(());
        };
        let Some(group) = self.groups.get_mut(&planned.quantizer.group) else { return Ok(()) };
        let edges = &planned.quantizer.edges;
        let EarlyRangeSearch { plan, ref view, corrects, .. } = *self;
        let readers = readers(net, Quantized { plan, view, corrects }, name, edges, float)?;
        if readers.is_empty() {
            return Ok(());
        }
        let Measured { found, directions } = group;
        for (candidate, sum) in found.iter_mut().chain(directions.iter_mut().flatten()) {
            *sum += error(&readers, float, &candidate.params)?;
        }
        Ok(())
    }

    /// Returns the best range of each group; the planned range where no other is better.
    fn chosen(self) -> Result<BTreeMap<usize, RangeCandidate>> {
        let mut chosen = BTreeMap::new();
        for (group, Measured { found, directions }) in self.groups {
            let measured = |(_, error): &(RangeCandidate, f64)| Ok(*error);
            let Some((best, error)) = least_error(&found, measured)? else { continue };
            let followed = follow_descent(found[0].1, error, directions, measured)?;
            chosen.insert(group, followed.unwrap_or_else(|| best.clone()).0);
        }
        Ok(chosen)
    }
}
