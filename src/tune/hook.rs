//! What tuning does to a candidate on its way: ranges, weights and biases, as its methods ask for.

use super::bias_grid::BiasGrids;
use super::methods::{BiasCorrector, RangeSearch, Touches};
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
    /// What was learned of the weight of the layer that runs.
    learned: Option<Learned>,
}

impl<'a> TuningHook<'a> {
    /// `grids` are those of biases that have quantization parameters of their own.
    pub fn new(touches: Touches, grids: &'a BiasGrids<'a>) -> TuningHook<'a> {
        let corrects = touches.corrects_biases();
        TuningHook {
            ranges: touches.ranges.then(|| RangeSearch::new(corrects)),
            weights: touches.weights.map(|rule| WeightSearch::new(rule, corrects)),
            biases: touches.biases.map(|rule| BiasCorrector { rule, grids }),
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
        Touched { weights: self.weights.is_some(), biases }
    }

    fn tensor(&mut self, net: &Network, at: &TensorAt, candidate: &mut Candidate) -> Result<()> {
        let ranges = self.ranges.as_mut();
        ranges.map_or(Ok(()), |ranges| ranges.refine(net, at, candidate))
    }

    fn weight(&mut self, net: &Network, at: &NodeAt, candidate: &mut Candidate) -> Result<()> {
        let Some(weights) = &mut self.weights else { return Ok(()) };
        let name = || format!("node `{}`", node_name(at.node));
        self.learned = weights.change(net, at, candidate).with_context(name)?;
        Ok(())
    }

    fn outputs(
        &mut self,
        net: &Network,
        at: &NodeAt,
        candidate: &mut Candidate,
        outputs: Vec<Vec<Value>>,
    ) -> Result<Vec<Vec<Value>>> {
        let Some(biases) = &self.biases else { return Ok(outputs) };
        let (outputs, quantized) = biases.correct(net, at, candidate, outputs)?;
        match (self.learned.take(), quantized, &mut self.weights) {
            (Some(learned), Some(bias), Some(weights)) => {
                weights.make_up(net, at, candidate, learned, &bias)
            }
            _ => Ok(outputs),
        }
    }
}
