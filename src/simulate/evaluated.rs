//! The tensors that tell how near a network is to the float one.
//!
//! Behind its last layers a network only sorts, joins and decodes what they found: Concat, Sigmoid, Softmax, boxes from
//! offsets, TopK. Values of different units meet there, scores between 0 and 1 beside coordinates in pixels, and what is
//! sorted cannot be compared value by value. So an output is evaluated by what those layers make, each tensor apart.

use crate::engine::Value;
use crate::metrics::{LikelyPositions, Part, QuantizationError, Units, ValuePair};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, NodeProto};
use std::collections::{BTreeMap, BTreeSet};

/// A tensor by which an output is evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluatedTensor {
    /// Its name.
    pub tensor: String,
    /// The output of the graph.
    pub output: String,
    /// How its values are compared.
    pub units: Units,
}

impl EvaluatedTensor {
    /// Those of all outputs of a graph, each tensor once.
    pub fn all(graph: &GraphProto, index: &GraphIndex) -> Vec<EvaluatedTensor> {
        let mut walk = TailWalk { index, output: "", visited: BTreeSet::new(), evaluated: Vec::new() };
        for output in &graph.output {
            walk.output = output.name();
            let n_before = walk.evaluated.len();
            walk.behind(output.name(), Units::Values { axis: None }, false);
            if walk.evaluated.len() == n_before && !walk.is_known(output.name()) {
                walk.add(output.name(), Units::Values { axis: None });
            }
        }
        walk.evaluated
    }
}

/// The errors of `evaluated` tensors, two of each: at positions where the float network finds something, and at the others.
/// Tensors with the same positions, but for their channels, are told apart by all scores that there are of these: a box
/// matters where there is an object, and nowhere else. `float` and `quantized` give a value per sample.
pub(super) fn errors<'v>(
    evaluated: &[EvaluatedTensor],
    float: impl Fn(&str) -> &'v [Value],
    quantized: impl Fn(&str) -> &'v [Value],
) -> Vec<QuantizationError> {
    let shape = |of: &EvaluatedTensor| float(&of.tensor).first().map(Value::shape).unwrap_or_default().to_vec();
    let mut likely: BTreeMap<Vec<usize>, LikelyPositions> = BTreeMap::new();
    for of in evaluated.iter().filter(|of| matches!(of.units, Units::Scores { .. })) {
        let (shape, samples) = (shape(of), float(&of.tensor).iter().filter_map(Value::f32s).collect::<Vec<_>>());
        if let Some((axis, positions)) = channels(of.units, &shape) {
            likely.entry(positions).or_default().narrow(&samples, &shape, axis);
        }
    }
    let both = |of: &EvaluatedTensor| {
        let pairs = float(&of.tensor).iter().zip(quantized(&of.tensor));
        let pairs = pairs.filter_map(|(a, b)| Some(ValuePair { float: a.f32s()?, quantized: b.f32s()? }));
        let (pairs, shape) = (pairs.collect::<Vec<_>>(), shape(of));
        let channels = channels(of.units, &shape);
        match channels.and_then(|(axis, positions)| Some((axis, likely.get(&positions)?))) {
            Some((axis, likely)) => {
                let units = of.units.along(axis);
                let error = |part| QuantizationError::of(&pairs, &shape, units, part);
                match units {
                    Units::Scores { .. } => [error(Part::Likely(likely)), error(Part::Others(likely))],
                    _ => [error(Part::Likely(likely)), QuantizationError::default()],
                }
            }
            None => [QuantizationError::default(), QuantizationError::of(&pairs, &shape, of.units, Part::All)],
        }
    };
    evaluated.iter().flat_map(both).collect()
}

/// The axis of a tensor's channels, and the other dimensions: its positions.
fn channels(units: Units, shape: &[usize]) -> Option<(usize, Vec<usize>)> {
    let axis = match units {
        Units::Values { axis } | Units::Scores { axis } => axis.or(shape.len().checked_sub(1))?,
        Units::Centred { .. } => return None,
    };
    let mut positions = shape.to_vec();
    (axis < positions.len()).then(|| positions.remove(axis))?;
    Some((axis, positions))
}

struct TailWalk<'a> {
    index: &'a GraphIndex<'a>,
    output: &'a str,
    visited: BTreeSet<&'a str>,
    evaluated: Vec<EvaluatedTensor>,
}

impl<'a> TailWalk<'a> {
    fn is_known(&self, tensor: &str) -> bool {
        self.evaluated.iter().any(|evaluated| evaluated.tensor == tensor)
    }

    fn add(&mut self, tensor: &str, units: Units) {
        let evaluated = EvaluatedTensor { tensor: tensor.to_string(), output: self.output.to_string(), units };
        self.evaluated.push(evaluated);
    }

    /// Adds the tensors that `tensor` is made of; `joined` where values of several are side by side already.
    fn behind(&mut self, tensor: &'a str, units: Units, joined: bool) {
        if !self.visited.insert(tensor) {
            return;
        }
        let Some(producer) = self.index.producer(tensor) else {
            return;
        };
        let data = producer.input.first().map(String::as_str).unwrap_or_default();
        match producer.op_type() {
            "Softmax" | "LogSoftmax" | "Sigmoid" if self.is_known(data) => {}
            "Softmax" | "LogSoftmax" => {
                let axis = node::int(producer, "axis", -1);
                self.behind_layout(data, Units::Centred { axis });
            }
            "Sigmoid" => self.behind_layout(data, Units::Scores { axis: None }),
            "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Transpose" | "Slice" | "Split"
            | "Gather" | "Cast" | "Tile" | "Expand" => self.behind(data, units, joined),
            "TopK" | "GatherElements" | "GatherND" | "Exp" => self.behind(data, units, true),
            "Concat" => producer.input.iter().for_each(|input| self.behind(input, units, true)),
            "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Max" | "Min" if joined => {
                producer.input.iter().for_each(|input| self.behind(input, units, true));
            }
            _ if self.is_known(tensor) => {}
            _ => self.add(tensor, with_axis(units, producer)),
        }
    }

    /// What a Softmax or Sigmoid reads: there all values have a say; of probabilities only those have that are in doubt.
    fn behind_layout(&mut self, tensor: &'a str, units: Units) {
        let units = match self.index.producer(tensor) {
            Some(producer) => with_axis(units, producer),
            None => units,
        };
        self.add(tensor, units);
    }
}

/// The axis of a layer's channels.
fn with_axis(units: Units, producer: &NodeProto) -> Units {
    let axis = match producer.op_type() {
        "Conv" | "ConvTranspose" | "Gemm" => Some(1),
        _ => None,
    };
    match units {
        Units::Values { .. } => Units::Values { axis },
        Units::Scores { .. } => Units::Scores { axis },
        Units::Centred { .. } => units,
    }
}
