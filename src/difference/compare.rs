//! Compares the quantization of two networks.

use super::{Parameters, QuantizedNetwork, QuantizedNode, RemovableNode};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The differences between the quantization of two networks.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Differences {
    /// Number of tensors with the same parameters.
    pub n_same: usize,
    /// Nodes of both networks that are quantized in one network only.
    pub quantized_only: OneSided<String>,
    /// Tensors whose type or granularity differs.
    pub types: Vec<OtherType>,
    /// Tensors whose scales or zero points differ, the largest factor first.
    pub scales: Vec<MovedScale>,
    /// Constants of both networks with the same parameters and other values.
    pub values: Vec<String>,
    /// Whether values are known for both networks.
    #[serde(skip)]
    pub has_values: bool,
    /// Tensors that are quantized in one network only.
    pub tensors_only: OneSided<String>,
    /// Nodes that exist in one network only.
    pub nodes_only: OneSided<String>,
    /// Counts by operator.
    pub operators: Vec<ByOperator>,
}

/// Names that only one of the two networks has.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OneSided<T> {
    /// Names in the first network.
    pub a: Vec<T>,
    /// Names in the second network.
    pub b: Vec<T>,
}

impl<T> OneSided<T> {
    /// Whether both lists are empty.
    pub fn is_empty(&self) -> bool {
        self.a.is_empty() && self.b.is_empty()
    }
}

/// A tensor whose type or granularity differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherType {
    /// Name of the tensor.
    pub tensor: String,
    /// Type and granularity in each network.
    pub types: [String; 2],
}

/// A tensor whose scale or zero point moved.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MovedScale {
    /// Name of the tensor.
    pub tensor: String,
    /// Second scale divided by the first, at the channel where the scales differ most.
    pub factor: f64,
    /// The two scales at this channel.
    pub scales: [f32; 2],
    /// The two zero points at this channel.
    pub zero_points: [i32; 2],
    /// Number of differing channels, and of all channels.
    pub n_channels: [usize; 2],
}

impl MovedScale {
    /// Returns the size of the change: 0 for a factor of 1, and the same for a factor and its inverse.
    fn size(&self) -> f64 {
        self.factor.ln().abs()
    }
}

/// Counts of an operator in both networks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ByOperator {
    /// The operator.
    pub op_type: String,
    /// Number of nodes in each network.
    pub n_nodes: [usize; 2],
    /// Number of quantized nodes in each network.
    pub n_quantized: [usize; 2],
}

impl Differences {
    /// Whether there are no differences.
    pub fn is_empty(&self) -> bool {
        self.quantized_only.is_empty()
            && self.types.is_empty()
            && self.scales.is_empty()
            && self.values.is_empty()
            && self.tensors_only.is_empty()
            && self.nodes_only.is_empty()
    }
}

/// Compares two networks.
pub fn differences(a: &QuantizedNetwork, b: &QuantizedNetwork) -> Differences {
    let (a, b) = (&with_names_of(a, b), &with_names_of(b, a));
    let mut found = Differences { operators: by_operator(a, b), ..Differences::default() };
    found.nodes_only = OneSided { a: absent(&a.nodes, &b.nodes), b: absent(&b.nodes, &a.nodes) };
    let only = |one: &QuantizedNetwork, other: &QuantizedNetwork| {
        let is_float = |name: &String| other.nodes.get(name).is_some_and(|node| !node.is_quantized);
        let nodes = one.nodes.iter().filter(|(name, node)| node.is_quantized && is_float(name));
        nodes.map(|(name, _)| name.clone()).collect()
    };
    found.quantized_only = OneSided { a: only(a, b), b: only(b, a) };
    found.tensors_only = OneSided { a: absent(&a.tensors, &b.tensors), b: absent(&b.tensors, &a.tensors) };
    for (name, first) in &a.tensors {
        let Some(second) = b.tensors.get(name) else { continue };
        let types = [first.describe(), second.describe()];
        let is_other = types[0] != types[1];
        let moved = moved(name, first, second);
        found.n_same += usize::from(!is_other && moved.is_none());
        found.scales.extend(moved);
        if is_other {
            found.types.push(OtherType { tensor: name.clone(), types });
        }
    }
    found.has_values = !a.values.is_empty() && !b.values.is_empty();
    found.values = other_values(a, b, &found.scales);
    found.scales.sort_by(|one, other| other.size().total_cmp(&one.size()));
    found
}

/// Returns the constants whose stored values differ. Other types and shapes, and other scales, are differences of
/// their own.
fn other_values(a: &QuantizedNetwork, b: &QuantizedNetwork, scales: &[MovedScale]) -> Vec<String> {
    let moved: BTreeSet<&str> = scales.iter().map(|moved| moved.tensor.as_str()).collect();
    let mut names = Vec::new();
    for (name, first) in a.values.iter().filter(|(name, _)| !moved.contains(name.as_str())) {
        let Some(second) = b.values.get(name) else { continue };
        if (first.data_type, &first.shape) == (second.data_type, &second.shape) && first.hash != second.hash {
            names.push(name.clone());
        }
    }
    names
}

/// Returns the network with some tensors renamed as in `other`. If one network lacks a removable node, and `other`
/// quantizes the tensor in front of the node, the tensor behind the node takes that tensor's name.
fn with_names_of(network: &QuantizedNetwork, other: &QuantizedNetwork) -> QuantizedNetwork {
    let mut network = network.clone();
    for (name, RemovableNode { node, in_front }) in &network.removable {
        let is_gone = !network.nodes.contains_key(node) || !other.nodes.contains_key(node);
        let is_renamed = is_gone && !other.tensors.contains_key(name) && other.tensors.contains_key(in_front);
        if is_renamed && !network.tensors.contains_key(in_front) {
            let parameters = network.tensors.remove(name);
            network.tensors.extend(parameters.map(|parameters| (in_front.clone(), parameters)));
        }
    }
    network
}

/// Returns the names that are in `one` only.
fn absent<V>(one: &BTreeMap<String, V>, other: &BTreeMap<String, V>) -> Vec<String> {
    one.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
}

/// Returns the change of a tensor's parameters; `None` if nothing changed, or the numbers of scales do not fit. A
/// single scale stands for all scales of the other network.
fn moved(name: &str, a: &Parameters, b: &Parameters) -> Option<MovedScale> {
    let n = a.scales.len().max(b.scales.len());
    let fits = |parameters: &Parameters| [1, n].contains(&parameters.scales.len());
    if n == 0 || !fits(a) || !fits(b) {
        return None;
    }
    let at = |parameters: &Parameters, i: usize| {
        let zero_point = parameters.zero_points.get(i).or(parameters.zero_points.first()).copied().unwrap_or_default();
        (parameters.scales[if parameters.scales.len() == 1 { 0 } else { i }], zero_point)
    };
    let pairs = (0..n).map(|i| (at(a, i), at(b, i))).filter(|(a, b)| a != b);
    let changes = pairs.map(|((scale_a, zero_a), (scale_b, zero_b))| MovedScale {
        tensor: name.to_string(),
        factor: f64::from(scale_b) / f64::from(scale_a),
        scales: [scale_a, scale_b],
        zero_points: [zero_a, zero_b],
        n_channels: [0, n],
    });
    let changes: Vec<MovedScale> = changes.collect();
    let n_moved = changes.len();
    let largest = changes.into_iter().max_by(|a, b| a.size().total_cmp(&b.size()))?;
    Some(MovedScale { n_channels: [n_moved, n], ..largest })
}

fn by_operator(a: &QuantizedNetwork, b: &QuantizedNetwork) -> Vec<ByOperator> {
    let mut operators: BTreeMap<&str, ByOperator> = BTreeMap::new();
    for (which, network) in [a, b].into_iter().enumerate() {
        for QuantizedNode { op_type, is_quantized } in network.nodes.values() {
            let of = operators.entry(op_type).or_insert_with(|| ByOperator {
                op_type: op_type.clone(),
                n_nodes: [0; 2],
                n_quantized: [0; 2],
            });
            of.n_nodes[which] += 1;
            of.n_quantized[which] += usize::from(*is_quantized);
        }
    }
    operators.into_values().collect()
}
