//! Names for what a plan makes of a network, so that what two plans have in common is found.

use super::view::PlanView;
use crate::onnx::graph::Edge;
use crate::onnx::proto::NodeProto;
use crate::plan::{PlannedWeight, QuantPlan};
use crate::quant::QuantParams;
use anyhow::Result;
use rayon::prelude::*;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// A plan whose weights can be told apart from those of others.
pub struct KeyedPlan<'p> {
    plan: &'p QuantPlan,
    /// Where it quantizes.
    pub view: PlanView,
    /// What tells the plan's weights apart, by their positions.
    weight_ids: Vec<u64>,
}

impl<'p> KeyedPlan<'p> {
    /// Of `plan`.
    ///
    /// # Errors
    /// If its codes are not affine.
    pub fn of(plan: &'p QuantPlan) -> Result<KeyedPlan<'p>> {
        let id = |planned: &PlannedWeight| {
            hash_of(|h| {
                (&planned.quantizer.tensor, &planned.quantizer.qtype).hash(h);
                planned.params.iter().for_each(|params| hash_params(params, h));
                planned.integers.hash(h);
            })
        };
        let weight_ids = plan.weights.par_iter().map(id).collect();
        Ok(KeyedPlan { plan, view: PlanView::of(plan)?, weight_ids })
    }

    /// What tells the weight at an input of a node apart.
    pub fn weight_id(&self, edge: Edge) -> Option<u64> {
        Some(self.weight_ids[self.view.weight_at(edge)?])
    }

    /// The weights that the node reads.
    pub fn weights_of(&self, node_idx: usize, node: &NodeProto) -> Vec<KeyedWeight<'p>> {
        let weights = (0..node.input.len()).filter_map(|input_idx| self.view.weight_at((node_idx, input_idx)));
        weights.map(|idx| KeyedWeight { planned: &self.plan.weights[idx], id: self.weight_ids[idx] }).collect()
    }
}

/// A weight of the plan.
pub struct KeyedWeight<'p> {
    /// The weight.
    pub planned: &'p PlannedWeight,
    /// What tells it apart.
    pub id: u64,
}

/// The hash of what is written.
pub fn hash_of(write: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    write(&mut hasher);
    hasher.finish()
}

/// Writes quantization parameters.
pub fn hash_params(params: &QuantParams, hasher: &mut DefaultHasher) {
    (params.scale.to_bits(), params.zero_point, params.q_min, params.q_max).hash(hasher);
}
