//! One quantized network of a walk: a plan, and what some methods make of it.

use super::grid::fake_quantize;
use super::judge::Judged;
use super::methods::{Method, Methods};
use super::network::Network;
use super::step::Step;
use super::walk::{At, Lanes};
use crate::engine::Value;
use crate::metrics::{Centred, QuantizationError};
use crate::onnx::graph::Edge;
use crate::onnx::node::axis_position;
use crate::plan::QuantPlan;
use crate::quant::{Codes, QuantParams};
use anyhow::{Context, Result};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The earlier variant whose values a variant shares, if there is one.
pub(super) type Twin = Option<usize>;

/// A quantized network, and what was found on its way.
pub struct Variant {
    /// Its plan; methods change it.
    pub plan: QuantPlan,
    /// What is changed.
    pub methods: Methods,
    /// The first sample that it sees.
    pub first: usize,
    /// Over the held-out samples, per output of the graph.
    pub errors: Vec<QuantizationError>,
    /// The outputs of the graph, per output and sample.
    pub outputs: Vec<Vec<Value>>,
    /// New biases, a value per output channel: at which node, and which of its inputs.
    pub biases: BTreeMap<Edge, Vec<f32>>,
    /// Time spent on it, without the float network.
    pub seconds: f64,
    pub(super) grids: BTreeMap<String, (QuantParams, BTreeSet<Edge>)>,
    lanes: BTreeMap<String, Lane>,
    /// Weights that were changed.
    pub(super) changed: BTreeSet<usize>,
    /// Groups of activations that have met their values: no range of theirs may change any more.
    pub(super) settled: BTreeSet<usize>,
}

/// One tensor, a value per sample.
struct Lane {
    /// Empty where every use reads the values on the grid.
    values: Vec<Value>,
    /// The values laid on the tensor's grid, where it has one.
    on_grid: Option<Vec<Value>>,
}

impl Variant {
    /// The network of `plan` under `methods`, for the samples from `first` on. What learns begins with 0.
    pub fn new(plan: QuantPlan, methods: Methods, first: usize) -> Variant {
        let grids = plan.activations.iter().map(|planned| {
            let edges = planned.quantizer.edges.iter().copied().collect();
            (planned.quantizer.tensor.clone(), (planned.params, edges))
        });
        Variant {
            grids: grids.collect(),
            plan,
            methods,
            first,
            errors: Vec::new(),
            outputs: Vec::new(),
            biases: BTreeMap::new(),
            seconds: 0.0,
            lanes: BTreeMap::new(),
            changed: BTreeSet::new(),
            settled: BTreeSet::new(),
        }
    }

    /// A tensor's value for some sample.
    pub(super) fn example(&self, name: &str) -> Option<&Value> {
        let lane = self.lanes.get(name)?;
        lane.values.first().or_else(|| lane.on_grid.as_ref()?.first())
    }

    /// Whether all codes are integers times a scale.
    pub(super) fn is_affine(&self) -> bool {
        let activations = self.plan.activations.iter().map(|planned| &planned.params);
        let weights = self.plan.weights.iter().flat_map(|planned| &planned.params);
        activations.chain(weights).all(|params| params.codes == Codes::Affine)
    }

    /// The values that the node's use of `name` reads.
    pub(super) fn read(&self, at: &At, name: &str) -> &[Value] {
        let lane = &self.lanes[name];
        let position = at.node.input.iter().position(|input| input == name);
        let on_grid =
            self.grids.get(name).zip(lane.on_grid.as_deref()).and_then(|((_, edges), on_grid)| {
                edges.contains(&(at.node_idx, position?)).then_some(on_grid)
            });
        on_grid.unwrap_or(&lane.values)
    }

    /// Whether the input `input_idx` of the node is quantized.
    pub(super) fn is_planned(&self, net: &Network, edge: Edge) -> bool {
        net.weight_at(edge).is_some() || self.grids.values().any(|(_, edges)| edges.contains(&edge))
    }

    /// Whether the node makes the same of the same in both.
    pub(super) fn is_twin(&self, other: &Variant, net: &Network, at: &At) -> bool {
        let has = |method: Method| self.methods.contains(method) || other.methods.contains(method);
        let weights = match net.weights_of(at.node_idx, at.node) {
            None => true,
            Some(_) if has(Method::Rounding) || has(Method::Clip) => false,
            Some(idx) => {
                let (a, b) = (&self.plan.weights[idx], &other.plan.weights[idx]);
                a.params == b.params && Arc::ptr_eq(&a.integers, &b.integers)
            }
        };
        let same = |method: Method| self.methods.contains(method) == other.methods.contains(method);
        let bias = same(Method::Bias) && same(Method::BiasCalibration);
        let inputs = || at.runtime.iter().map(|name| (self.read(at, name), other.read(at, name)));
        self.first == other.first
            && bias
            && weights
            && inputs().all(|(a, b)| a.iter().zip(b).all(|(a, b)| a.is(b)))
    }

    /// The biases of a node whose twin in `other` was corrected.
    pub(super) fn take_biases(&mut self, other: &Variant, node_idx: usize) {
        let edges = (node_idx, 0)..(node_idx + 1, 0);
        let taken = other.biases.range(edges).map(|(edge, values)| (*edge, values.clone()));
        self.biases.extend(taken);
    }

    /// Runs a node, changed as the methods ask for.
    pub(super) fn node(
        &mut self,
        net: &Network,
        at: &At,
        float: &Lanes,
    ) -> Result<Vec<Vec<Value>>> {
        if let Some(weight_idx) = net.weights_of(at.node_idx, at.node) {
            return self.layer(net, at, weight_idx);
        }
        let inputs: Vec<&[Value]> = at.runtime.iter().map(|name| self.read(at, name)).collect();
        let same = |(name, values): (&&str, &&[Value])| {
            float[*name][self.first..].iter().zip(*values).all(|(a, b)| a.is(b))
        };
        if !at.float.is_empty() && at.runtime.iter().zip(&inputs).all(same) {
            return Ok(at.float[self.first..].to_vec());
        }
        let step = at.step.context("internal error: a node without a step")?;
        let outputs = run(step, &inputs, at.n_samples - self.first)?;
        Ok(self.correct(net, at, outputs)?.0)
    }

    /// Keeps a tensor, which has the values `float` in the float network. `twin` is a variant that has the
    /// same `values`.
    pub(super) fn store(
        &mut self,
        net: &Network,
        name: &str,
        (float, values): (&[Value], Vec<Value>),
        twin: Option<&Variant>,
    ) -> Result<()> {
        if self.methods.contains(Method::Ranges) {
            self.refine_range(net, name, float, &values)?;
        }
        let Some((params, edges)) = self.grids.get(name) else {
            self.lanes.insert(name.to_string(), Lane { values, on_grid: None });
            return Ok(());
        };
        let twin = twin.filter(|twin| twin.grids.get(name).is_some_and(|(p, _)| p == params));
        let all_on_grid = net.index.consumers(name).iter().all(|edge| edges.contains(edge));
        let all_on_grid = all_on_grid && !net.index.is_output(name);
        // Values that are kept have two holders, and are copied.
        let kept = if all_on_grid { Vec::new() } else { values.clone() };
        let on_grid = match twin.and_then(|twin| twin.lanes.get(name)?.on_grid.clone()) {
            Some(on_grid) => on_grid,
            None => {
                let on_grid = values.into_par_iter().map(|value| fake_quantize(value, params));
                on_grid.collect::<Result<Vec<Value>>>()?
            }
        };
        self.lanes.insert(name.to_string(), Lane { values: kept, on_grid: Some(on_grid) });
        Ok(())
    }

    /// Forgets a tensor.
    pub(super) fn free(&mut self, name: &str) {
        self.lanes.remove(name);
    }

    /// The values that leave the network by the name of an output, or that the nodes behind read.
    fn seen(&self, name: &str) -> Option<&[Value]> {
        let lane = self.lanes.get(name)?;
        let mut planned = self.plan.activations.iter().filter(|p| p.quantizer.tensor == name);
        let on_grid = lane.values.is_empty() || planned.any(|p| p.quantizer.network_output);
        Some(lane.on_grid.as_deref().filter(|_| on_grid).unwrap_or(&lane.values))
    }

    /// Compares a tensor that output `output_idx` is judged by with the float one.
    pub(super) fn judge(
        &mut self,
        net: &Network,
        output_idx: usize,
        judged: &Judged,
        float: &[Value],
    ) {
        let mut error = QuantizationError::default();
        let first = net.judges.max(self.first);
        if let Some(values) = self.seen(&judged.tensor) {
            for (a, b) in float[first..].iter().zip(&values[first - self.first..]) {
                let (Some(float), Some(quantized)) = (a.f32s(), b.f32s()) else { continue };
                let shape = a.shape();
                let axis = judged.centred.map(|axis| axis_position(axis, shape.len()));
                error.add(float, quantized, axis.map(|axis| Centred { shape, axis }));
            }
        }
        self.errors.resize_with(self.errors.len().max(output_idx + 1), QuantizationError::default);
        self.errors[output_idx] = error;
    }

    /// Keeps an output of the graph.
    pub(super) fn finish(&mut self, output: &str) {
        if let Some(values) = self.seen(output).map(<[Value]>::to_vec) {
            self.outputs.push(values);
        }
    }
}

/// The outputs of a node for the values of its inputs, which are given per sample.
pub(super) fn run(step: &Step, inputs: &[&[Value]], n_samples: usize) -> Result<Vec<Vec<Value>>> {
    step.run(n_samples, |sample| inputs.iter().map(|values| values[sample].clone()).collect())
}
