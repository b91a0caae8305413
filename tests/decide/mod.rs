//! Parameters that a plan decides for activations, weights and biases, from tables and graphs that are made here.

mod activations;
mod biases;
mod masks;
mod off_grid;
mod pairs;
mod unlike;
mod weights;

use crate::support::GraphBuilder;
use mqq::diag::explain;
use mqq::observers::by_spelling;
use mqq::onnx::edit::{ModelEdit, NewValues};
use mqq::place::clips::FoldableClip;
use mqq::place::{ActivationQuantizer, BiasQuantizer, Placement, SoftmaxRole, WeightQuantizer};
use mqq::plan::{
    Decided, Integers, Observers, PlannedActivation, PlannedWeight, QuantPlan, bias_grids, decide, decide_biases, round,
};
use mqq::quant::{GivenRange, Range};
use mqq::scheme::{FixedGrid, Scheme};
use mqq::statistics::TensorStatistics;
use std::collections::BTreeMap;
use std::sync::Arc;

const TABLE: &str = "\
name: test
source: test
min_opset: 21
types:
  u8: { bits: 8, signed: false, symmetry: asymmetric }
  s8: { bits: 8, signed: true, symmetry: symmetric, narrow_range: true }
  s4: { bits: 4, signed: true, symmetry: symmetric }
  s16: { bits: 16, signed: true, symmetry: symmetric }
  ada: { bits: 8, signed: true, symmetry: symmetric, ada_sign: true }
  pairs: { bits: 8, signed: true, symmetry: symmetric, narrow_range: true, max_pair_sum: 128 }
  pot: { bits: 8, signed: true, symmetry: symmetric, scale: power_of_two, pot_search: 4 }
  pot_unsigned: { bits: 8, signed: false, symmetry: asymmetric, scale: power_of_two, pot_search: 4 }
  pot_asymmetric: { bits: 4, signed: true, symmetry: asymmetric, scale: power_of_two, pot_search: 4 }
observers: { activation: max, weight: max }
ops: {}
placement: []
";

/// Inputs of a plan: quantizers, statistics, constants.
struct Given {
    scheme: Scheme,
    graph: GraphBuilder,
    placement: Placement,
    statistics: Vec<TensorStatistics>,
    imported: BTreeMap<String, GivenRange>,
    activation: &'static str,
    weight: &'static str,
}

impl Given {
    fn new() -> Given {
        Given {
            scheme: serde_yaml::from_str(TABLE).unwrap(),
            graph: GraphBuilder::new(21),
            placement: Placement::default(),
            statistics: Vec::new(),
            imported: BTreeMap::new(),
            activation: "max",
            weight: "max",
        }
    }

    /// An activation in a group of its own, which was observed to hold `values`.
    fn activation(&mut self, tensor: &str, qtype: &str, values: &[f32]) -> &mut ActivationQuantizer {
        let mut statistic = TensorStatistics::default();
        statistic.observe(values);
        self.statistics.push(statistic);
        self.placement.activations.push(ActivationQuantizer {
            tensor: tensor.into(),
            qtype: qtype.into(),
            edges: Vec::new(),
            network_output: false,
            holds_all: false,
            linear: false,
            clip: None,
            group: self.placement.activations.len(),
            fixed: None,
            softmax: None,
            rule: "test",
            reason: "asked for".into(),
        });
        self.placement.activations.last_mut().unwrap()
    }

    /// A weight with scales along `axis`, read by the first node.
    fn weight(
        &mut self,
        tensor: &str,
        qtype: &str,
        axis: Option<usize>,
        shape: &[usize],
        values: &[f32],
    ) -> &mut WeightQuantizer {
        self.graph.values(tensor, shape, values);
        self.placement.weights.push(WeightQuantizer {
            tensor: tensor.into(),
            qtype: qtype.into(),
            axis,
            block: None,
            edges: vec![(0, 1)],
            shares_with: None,
            softmax: None,
        });
        self.placement.weights.last_mut().unwrap()
    }

    /// A bias of the weight at this position and the activation `x`.
    fn bias(&mut self, tensor: &str, weight: usize, values: &[f32]) -> &mut BiasQuantizer {
        self.graph.values(tensor, &[values.len()], values);
        let (tensor, input) = (tensor.into(), "x".into());
        self.placement.biases.push(BiasQuantizer { tensor, qtype: None, input, weight, edge: (0, 2) });
        self.placement.biases.last_mut().unwrap()
    }

    fn decide(&self) -> Result<Decided, String> {
        let model = self.graph.build();
        let observer = |spelling| by_spelling(spelling).unwrap();
        let observers = Observers { activation: &observer(self.activation), weight: &observer(self.weight) };
        let given = Some(&self.imported);
        let graph = model.graph.as_ref().unwrap();
        decide(graph, &self.placement, &self.statistics, given, &self.scheme, observers)
            .map_err(|error| explain(&error))
    }

    fn plan(&self) -> QuantPlan {
        self.decide().unwrap().0
    }

    fn warnings(&self) -> Vec<String> {
        self.decide().unwrap().1
    }

    fn one(&self) -> PlannedActivation {
        let [planned] = <[PlannedActivation; 1]>::try_from(self.plan().activations).unwrap();
        planned
    }
}

fn scales(weight: &PlannedWeight) -> Vec<f32> {
    weight.params.iter().map(|params| params.scale).collect()
}

/// One value of 1 and a thousand small ones: a finer scale than that of the largest has less error.
fn long_tailed(small: f32) -> Vec<f32> {
    let mut values: Vec<f32> = (0..1000).map(|i| small * (1.0 + (i % 7) as f32 / 10.0)).collect();
    values.push(1.0);
    values
}

/// The float model's Conv reads `x` with the scale 0.01, `far` lies beside it.
fn of_conv() -> Given {
    let mut given = Given::new();
    given.activation("far", "s8", &[12.7]);
    given.activation("x", "s8", &[-1.27]);
    given.graph.op("Conv", &["x", "w", "b"], "y");
    given
}
