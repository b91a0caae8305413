//! Cache keys, so that plans can share results.

use super::view::PlanView;
use crate::onnx::graph::Edge;
use crate::onnx::proto::NodeProto;
use crate::plan::{PlannedWeight, QuantPlan};
use crate::quant::QuantParams;
use anyhow::Result;
use rayon::prelude::*;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// A plan with cache keys of its weights.
pub struct KeyedPlan<'p> {
    plan: &'p QuantPlan,
    /// The plan's quantizers by tensor and use.
    pub view: PlanView,
    /// Cache keys of the plan's weights, by index.
    weight_ids: Vec<u64>,
}

impl<'p> KeyedPlan<'p> {
    /// Hashes the weights of `plan`. Fails if the plan's codes are not affine.
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

    /// Returns the cache key of the weight at an input of a node.
    pub fn weight_id(&self, edge: Edge) -> Option<u64> {
        Some(self.weight_ids[self.view.weight_at(edge)?])
    }

    /// Returns the weights that the node reads.
    pub fn weights_of(&self, node_idx: usize, node: &NodeProto) -> Vec<KeyedWeight<'p>> {
        let weights = (0..node.input.len()).filter_map(|input_idx| self.view.weight_at((node_idx, input_idx)));
        weights.map(|idx| KeyedWeight { planned: &self.plan.weights[idx], id: self.weight_ids[idx] }).collect()
    }
}

/// A weight of the plan.
pub struct KeyedWeight<'p> {
    /// The weight.
    pub planned: &'p PlannedWeight,
    /// Its cache key.
    pub id: u64,
}

/// Returns the hash of everything that `write` writes.
pub fn hash_of(write: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    write(&mut hasher);
    hasher.finish()
}

/// Hashes quantization parameters.
pub fn hash_params(params: &QuantParams, hasher: &mut DefaultHasher) {
    (params.scale.to_bits(), params.zero_point, params.q_min, params.q_max).hash(hasher);
}
