//! Searches a layer's weight once its quantized input is known and before its output is.

use super::layer::LayerProduct;
use super::problem::{Bounds, LayerData, Rows, WeightProblem};
use super::rounding::{self, MAX_ROW, RoundedWeight};
use super::scales;
use crate::engine::Value;
use crate::onnx::node::node_name;
use crate::onnx::tensor;
use crate::plan::PlannedWeight;
use crate::quant::QuantParams;
use crate::scheme::ScaleKind;
use crate::simulate::{BiasOf, Candidate, HookChanges, LayerHook, Network, NodeAt, QuantizedBias, TokenMask};
use crate::tune::method::LayerContext;
use crate::tune::methods::bias::{BIAS, BiasSlot, rebias};
use crate::tune::methods::local_bias::LOCAL_BIAS;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The part of a weight that is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightRule {
    /// Scales with the least error at the layer's output.
    Scales,
    /// Integers that reproduce the layer's float output.
    Rounding,
}

/// A search for better weights of a candidate.
pub struct WeightSearch {
    /// With [`WeightRule::Rounding`], rows that are too long get scales instead.
    rule: WeightRule,
    /// Whether biases are corrected.
    corrects: bool,
    /// Tokens of each sample that are not padding.
    tokens: Vec<TokenMask>,
    /// In a transformer, the inputs of linear layers: only the weights of these layers are learned. The rows of the few
    /// convolutions are so long that they take most of the time, and the result is worse.
    linear: Option<BTreeSet<String>>,
    /// Indices of the weights that were changed.
    changed: BTreeSet<usize>,
    /// The learned weight of the current layer.
    learned: Option<Learned>,
}

/// A learned weight.
struct Learned {
    weight_idx: usize,
    problem: WeightProblem,
    rounded: RoundedWeight,
}

impl WeightSearch {
    /// Starts a search by a rule, beside the methods of `context`.
    pub fn new(rule: WeightRule, context: &LayerContext) -> WeightSearch {
        let is_limited = rule == WeightRule::Rounding && context.placement.is_transformer;
        WeightSearch {
            rule,
            corrects: [BIAS, LOCAL_BIAS].iter().any(|method| context.has(method.name)),
            tokens: context.samples.tokens().unwrap_or_default(),
            linear: is_limited.then(|| context.plan.linear_inputs().cloned().collect()),
            changed: BTreeSet::new(),
            learned: None,
        }
    }

    /// Replaces the integers by integers that compensate for the bias's rounding, except where the bias saturates.
    /// Returns the layer's new outputs.
    fn compensate_bias(
        &mut self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        learned: Learned,
        bias: &QuantizedBias,
    ) -> Result<Vec<Vec<Value>>> {
        let Learned { weight_idx, problem, mut rounded } = learned;
        let around: Vec<Vec<f32>> = (0..bias.wanted.len()).map(|o| bias.around(o)).collect();
        let errors = around.iter().zip(&bias.wanted).map(|(around, wanted)| -> Vec<f64> {
            let errors = around.iter().map(|value| f64::from(value - wanted));
            errors.filter(|error| error.abs() <= f64::from(bias.params.scale)).collect()
        });
        let chosen = rounded.compensate_bias(&problem, &errors.collect::<Vec<_>>());
        self.keep(candidate, weight_idx, &problem.layer, &rounded.rows);
        let values: Vec<f32> = around.iter().zip(chosen).map(|(around, i)| around[i]).collect();
        let mut outputs = candidate.run_layer(net, at, BiasOf::Model)?;
        rebias(&bias.channels, &mut outputs, &bias.stored, &values)?;
        candidate.biases.insert(bias.edge, values);
        Ok(outputs)
    }

    /// Gives the weight of a layer new scales and integers. A weight that several layers share is changed at the first
    /// of them. Returns the learned weight, if integers were learned.
    fn change(&mut self, net: &Network, at: &NodeAt, candidate: &mut Candidate) -> Result<Option<Learned>> {
        let node = at.node;
        let weight_idx = candidate.view().weight_of(at.node_idx, node);
        let Some(weight_idx) = weight_idx else { return Ok(None) };
        let planned = &candidate.plan.weights[weight_idx];
        let input = node.input.first().map_or("", String::as_str);
        let second = node.input.get(1).is_some_and(|name| *name == planned.quantizer.tensor);
        if !second || self.changed.contains(&weight_idx) || net.is_constant(input) {
            return Ok(None);
        }
        if self.linear.as_ref().is_some_and(|linear| !linear.contains(input)) {
            return Ok(None);
        }
        let y: Vec<Value> = at.float_outputs().cloned().collect();
        let is_quantized = |input_idx| candidate.view().is_quantized((at.node_idx, input_idx));
        let slot = y.first().and_then(|y| BiasSlot::of(net, node, y, is_quantized));
        let corrects_bias = self.corrects && (slot.is_some() || net.index.add_behind(node).is_some());
        let b = &candidate.read(at, input)[..y.len()];
        let Some(layer) = b.first().and_then(|x| LayerProduct::of(node, &planned.shape, x)) else {
            return Ok(None);
        };
        let Some(scale_idx) = scale_indices(planned, &layer) else { return Ok(None) };
        let initializer = net.index.initializer(&planned.quantizer.tensor);
        let Some(initializer) = initializer else { return Ok(None) };
        let values = tensor::f32_values(initializer)?;
        let w = (0..values.len()).map(|i| values[layer.at(i / layer.n_in, i % layer.n_in)]);
        // The problem counts integers from the zero point.
        let QuantParams { q_min, q_max, zero_point, .. } = planned.params[0];
        let (low, high) = (q_min - zero_point, q_max - zero_point);
        let shifts = zero_point_shifts(planned, &layer);
        let problem = WeightProblem {
            w: w.collect(),
            scales: planned.params.iter().map(|params| params.scale).collect(),
            scale_idx,
            bounds: Bounds { low, high, pairs: planned.pairs, shifts: &[] },
            shifts,
            free: planned.qtype.scale == ScaleKind::Float,
            layer,
        };
        let bias =
            node.input.get(2).and_then(|name| net.index.initializer(name)).map(tensor::f32_values).transpose()?;
        let bias = bias.filter(|bias| bias.len() == problem.layer.n_out).unwrap_or_default();
        let data = LayerData { inputs: b, outputs: &y, bias: &bias, corrects_bias, tokens: &self.tokens };
        if self.rule == WeightRule::Rounding && problem.layer.n_in <= MAX_ROW {
            let rounded = rounding::round(&problem, data)?;
            self.keep(candidate, weight_idx, &problem.layer, &rounded.rows);
            candidate.plan.weights[weight_idx].learned = true;
            return Ok(Some(Learned { weight_idx, problem, rounded }));
        }
        if let Some(rows) = problem.free.then(|| scales::search(&problem, data)).flatten() {
            self.keep(candidate, weight_idx, &problem.layer, &rows);
        }
        Ok(None)
    }

    /// Stores integers and scales in the candidate's plan.
    fn keep(&mut self, candidate: &mut Candidate, weight_idx: usize, layer: &LayerProduct, rows: &Rows) {
        let Rows { integers, scales } = rows;
        let planned = &mut candidate.plan.weights[weight_idx];
        let scale_of = planned.scale_of_value();
        let mut stored: Vec<i32> = planned.integers.iter().collect();
        for (i, &q) in integers.iter().enumerate() {
            let at = layer.at(i / layer.n_in, i % layer.n_in);
            stored[at] = q + planned.params[scale_of(at)].zero_point;
        }
        planned.integers = Arc::new(stored.into());
        for (params, &scale) in planned.params.iter_mut().zip(scales) {
            params.scale = scale;
        }
        self.changed.insert(weight_idx);
    }
}

impl LayerHook for WeightSearch {
    fn changes(&self) -> HookChanges {
        HookChanges { weights: true, ..HookChanges::default() }
    }

    fn reads_inputs(&self) -> bool {
        true
    }

    fn weight(&mut self, net: &Network, at: &NodeAt, candidate: &mut Candidate) -> Result<()> {
        let name = || format!("node `{}`", node_name(at.node));
        self.learned = self.change(net, at, candidate).with_context(name)?;
        Ok(())
    }

    /// Learns the integers again where the layer got a new bias, so that they compensate for the bias's rounding.
    fn outputs(
        &mut self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        outputs: Vec<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>> {
        match self.learned.take().zip(candidate.new_bias.take()) {
            Some((learned, bias)) => self.compensate_bias(net, at, candidate, learned, &bias),
            None => Ok(outputs),
        }
    }
}

/// Returns the zero point of each weight minus the first one, row by row; empty where all are equal.
fn zero_point_shifts(planned: &PlannedWeight, layer: &LayerProduct) -> Vec<i32> {
    let first = planned.params[0].zero_point;
    if planned.params.iter().all(|params| params.zero_point == first) {
        return Vec::new();
    }
    let of_value = planned.scale_of_value();
    let at = |i: usize| layer.at(i / layer.n_in, i % layer.n_in);
    (0..layer.n_out * layer.n_in).map(|i| planned.params[of_value(at(i))].zero_point - first).collect()
}

/// Returns the index of the scale of each weight, row by row; empty where each row has its own. `None` where some rows
/// share scales, or pairs are limited and a zero point is not 0.
fn scale_indices(planned: &PlannedWeight, layer: &LayerProduct) -> Option<Vec<u32>> {
    if planned.params.is_empty() || planned.pairs.is_some() && planned.params.iter().any(|it| it.zero_point != 0) {
        return None;
    }
    let n = layer.n_out * layer.n_in;
    match (planned.quantizer.axis, planned.quantizer.block) {
        (Some(axis), None) if axis == layer.out_axis() && planned.params.len() == layer.n_out => Some(Vec::new()),
        // Blocks of a row, or scales that the groups of a ConvTranspose share.
        (Some(axis), block) if block.is_none() == (axis == layer.out_axis()) => {
            let of_value = planned.scale_of_value();
            let at = |i: usize| layer.at(i / layer.n_in, i % layer.n_in);
            Some((0..n).map(|i| of_value(at(i)) as u32).collect())
        }
        _ => (planned.params.len() == 1).then(|| vec![0; n]),
    }
}
