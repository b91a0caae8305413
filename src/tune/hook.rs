//! What tuning does to a candidate on its way: ranges, weights and biases, as its methods ask for.

use super::bias_grid::BiasGrids;
use super::methods::{BiasCorrector, Methods, RangeSearch};
use super::weights::{Learned, WeightSearch};
use crate::engine::Value;
use crate::onnx::node::node_name;
use crate::plan::RangeCandidate;
use crate::simulate::{Candidate, LayerHook, Network, NodeAt, TensorAt, Touched};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// The methods at work on one candidate.
pub struct TuningHook<'a> {
    ranges: Option<RangeSearch>,
    weights: Option<WeightSearch>,
    biases: Option<BiasCorrector<'a>>,
    /// Methods of other kinds.
    others: Vec<Box<dyn LayerHook>>,
    /// What was learned of the weight of the layer that runs.
    learned: Option<Learned>,
}

impl<'a> TuningHook<'a> {
    /// `grids` are those of biases that have quantization parameters of their own.
    pub fn new(methods: Methods, grids: &'a BiasGrids<'a>) -> TuningHook<'a> {
        let touches = methods.touches();
        let corrects = touches.corrects_biases();
        TuningHook {
            ranges: touches.ranges.then(|| RangeSearch::new(corrects)),
            weights: touches.weights.map(|rule| WeightSearch::new(rule, corrects)),
            biases: touches.biases.map(|rule| BiasCorrector { rule, grids }),
            others: methods.iter().filter_map(|method| method.hook).map(|hook| hook()).collect(),
            learned: None,
        }
    }

    /// With ranges of some groups of `candidate` that are decided before.
    pub fn decide(&mut self, candidate: &mut Candidate, decided: &BTreeMap<usize, RangeCandidate>) {
        if let Some(ranges) = &mut self.ranges {
            decided.iter().for_each(|(group, chosen)| ranges.settle(candidate, *group, chosen));
        }
    }
}

impl LayerHook for TuningHook<'_> {
    fn touched(&self) -> Touched {
        let biases = self.biases.as_ref().map(|biases| biases.rule.name());
        Touched { weights: self.weights.is_some(), biases, others: !self.others.is_empty() }
    }

    fn tensor(&mut self, net: &Network, at: &TensorAt, candidate: &mut Candidate) -> Result<()> {
        if let Some(ranges) = &mut self.ranges {
            ranges.refine(net, at, candidate)?;
        }
        self.others.iter_mut().try_for_each(|other| other.tensor(net, at, candidate))
    }

    fn weight(&mut self, net: &Network, at: &NodeAt, candidate: &mut Candidate) -> Result<()> {
        if let Some(weights) = &mut self.weights {
            let name = || format!("node `{}`", node_name(at.node));
            self.learned = weights.change(net, at, candidate).with_context(name)?;
        }
        self.others.iter_mut().try_for_each(|other| other.weight(net, at, candidate))
    }

    fn outputs(
        &mut self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        outputs: Vec<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>> {
        let mut outputs = outputs;
        if let Some(biases) = &self.biases {
            let (corrected, quantized) = biases.correct(net, at, candidate, outputs)?;
            outputs = match (self.learned.take(), quantized, &mut self.weights) {
                (Some(learned), Some(bias), Some(weights)) => weights.make_up(net, at, candidate, learned, &bias)?,
                _ => corrected,
            };
        }
        for other in &mut self.others {
            outputs = other.outputs(net, at, candidate, outputs)?;
        }
        Ok(outputs)
    }
}
