//! A candidate of a forward pass with its hook.

use super::candidate::{BiasOf, Candidate};
use super::hook::LayerHook;
use super::network::Network;
use super::node::NodeAt;
use crate::engine::Value;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A candidate and its hook.
pub struct Branch<'a> {
    /// The quantized network.
    pub candidate: Candidate,
    /// Called at each tensor and node; may change the candidate.
    pub hook: Box<dyn LayerHook + 'a>,
}

impl Branch<'_> {
    /// Whether both candidates have the same inputs, weight and changes at the node, so that its outputs are equal.
    pub fn shares(&self, other: &Branch, at: &NodeAt) -> bool {
        let (changes, of_other) = (self.hook.changes(), other.hook.changes());
        let (a, b) = (&self.candidate, &other.candidate);
        let weights = match a.view().weight_of(at.node_idx, at.node) {
            None => true,
            Some(_) if changes.weights || of_other.weights => false,
            Some(idx) => {
                let (a, b) = (&a.plan.weights[idx], &b.plan.weights[idx]);
                a.params == b.params && Arc::ptr_eq(&a.integers, &b.integers)
            }
        };
        let inputs = || at.runtime.iter().map(|name| (a.read(at, name), b.read(at, name)));
        a.first == b.first
            && !(changes.others || of_other.others)
            && changes.biases == of_other.biases
            && weights
            && inputs().all(|(a, b)| a.iter().zip(b).all(|(a, b)| a.is(b)))
    }

    /// Whether the candidate reads the float network's own values at the node.
    pub fn reads_float(&self, at: &NodeAt, float: &BTreeMap<String, Vec<Value>>) -> bool {
        let same = |name: &&str| {
            let float = float[*name].get(self.candidate.first..).unwrap_or_default();
            let read = self.candidate.read(at, name);
            float.len() == read.len() && float.iter().zip(read).all(|(a, b)| a.is(b))
        };
        at.runtime.iter().all(same)
    }

    /// Runs a node with the changes of the hook. Tensors that no later node reads are freed.
    /// `reads_float` tells whether its outputs are those of the float network.
    pub fn node(&mut self, net: &Network, at: &NodeAt, reads_float: bool) -> Result<Vec<Vec<Value>>> {
        let Branch { candidate, hook } = self;
        candidate.new_bias = None;
        if candidate.view().weight_of(at.node_idx, at.node).is_some() {
            hook.weight(net, at, candidate)?;
            let bias = if hook.changes().biases.is_some() { BiasOf::Model } else { BiasOf::Plan };
            let outputs = candidate.run_layer(net, at, bias)?;
            return hook.outputs(net, at, candidate, outputs);
        }
        if !at.float.is_empty() && reads_float {
            return Ok(at.float[candidate.first..].to_vec());
        }
        let inputs = candidate.inputs(at);
        at.last.iter().for_each(|name| candidate.free(name));
        let single = at.single.context("internal error: a node without a model of its own")?;
        let outputs = single.run_all(inputs, &net.groups()[candidate.first..])?;
        hook.outputs(net, at, candidate, outputs)
    }
}
