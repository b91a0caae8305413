//! Computes nodes whose inputs are all initializers.
//!
//! The engine runs each such node once, and the node's outputs become initializers. A weight that the network
//! transposes, splits or scales at run time becomes a constant weight, and a normalization in single operators gets
//! constant factors. Exporters with an open batch compute the ends of a Slice of a weight from the last dimension of a
//! tensor, which is fixed: such ends count as initializers. A node stays if
//!
//! 1. it produces an output of the graph, has a subgraph, belongs to another domain than ONNX's, or draws random
//!    numbers;
//! 2. the engine fails on it, or returns another element type than the graph has;
//! 3. its outputs take more than 1 MiB and more than its inputs, so that the file would grow without need. A Cast of
//!    float16 to float32 is an exception: its output is a weight.
//!
//! A BatchNormalization in training mode, which the engine refuses, is computed here from the statistics of its
//! constant input. NFNets standardize their weights in this way.

use super::values_of_shapes::values_of_shapes;
use super::{Change, FLOAT16, is_cast_to_float};
use crate::engine::Parsed;
use crate::onnx::data_type::element_bytes;
use crate::onnx::graph::{GraphIndex, drop_unused, names_read};
use crate::onnx::inputs::Shapes;
use crate::onnx::node;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::tensor;
use crate::onnx::value_info::ValueInfos;
use anyhow::{Context, Result, bail, ensure};
use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap};

/// Bytes that the outputs of a node may take in any case, however small its inputs are.
const MAX_GROWTH: usize = 1 << 20;

/// Operators with random outputs.
const RANDOM: &[&str] =
    &["Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

/// The pass; see the module's documentation.
pub(super) fn run(model: &mut ModelProto, _min_opset: i64) -> Result<Vec<Change>> {
    let value_info = ValueInfos::of_model(model);
    let graph = model.graph()?;
    let index = GraphIndex::new(graph);
    let inputs: BTreeSet<&str> = graph.input.iter().map(|input| input.name()).collect();
    let stored = |name: &str| index.initializer(name).filter(|_| !inputs.contains(name));
    let has_shape = graph.node.iter().any(|node| node.op_type() == "Shape");
    let of_shapes = LazyCell::new(|| if has_shape { values_of_shapes(model) } else { HashMap::new() });
    let mut computed: HashMap<String, TensorProto> = HashMap::new();
    let mut folded = BTreeSet::new();
    for (node_idx, node) in graph.node.iter().enumerate().filter(|(_, node)| may_fold(&index, node)) {
        let names: BTreeSet<&String> = node.input.iter().filter(|name| !name.is_empty()).collect();
        let constant = |name: &String| stored(name).or_else(|| computed.get(name));
        let cuts_constant = node.op_type() == "Slice" && node.input.first().and_then(constant).is_some();
        // The ends of a Slice of a weight.
        let ends = names.iter().filter(|name| cuts_constant && constant(name).is_none());
        let ends: Vec<TensorProto> = ends.filter_map(|name| of_shapes.get(*name)?.to_proto(name).ok()).collect();
        let end = |name: &str| ends.iter().find(|end| end.name() == name);
        let operands = names.into_iter().map(|name| constant(name).or_else(|| end(name)));
        let Some(operands) = operands.collect::<Option<Vec<&TensorProto>>>() else { continue };
        let outputs = match node.op_type() == "BatchNormalization" && node::trains(node) {
            true => normalized(&index, node, &operands),
            false => evaluate(model, node, &operands),
        };
        let may_grow = is_cast_to_float(node) && operands.iter().all(|operand| operand.data_type() == FLOAT16);
        let expected = |outputs: &Vec<TensorProto>| is_as_expected(&value_info, outputs, &operands, may_grow);
        let Some(outputs) = outputs.ok().filter(expected) else { continue };
        computed.extend(outputs.into_iter().map(|output| (output.name().to_string(), output)));
        folded.insert(node_idx);
    }
    let graph = model.graph_mut()?;
    let mut tensors = BTreeSet::new();
    for (node_idx, node) in std::mem::take(&mut graph.node).into_iter().enumerate() {
        if !folded.contains(&node_idx) {
            graph.node.push(node);
            continue;
        }
        graph.initializer.extend(node.output.iter().filter_map(|name| computed.remove(name)));
        tensors.extend(node.input.into_iter().chain(node.output));
    }
    let freed = drop_dead(graph, tensors);
    drop_unused(graph, freed);
    Ok(Change::counted([(folded.len(), Change::FoldedConstants)]))
}

/// Removes the nodes in front of the tensors `freed` that nothing reads any more. Returns these tensors and those that the
/// nodes read.
pub(super) fn drop_dead(graph: &mut GraphProto, mut freed: BTreeSet<String>) -> BTreeSet<String> {
    let mut readers: HashMap<String, usize> = HashMap::new();
    for node in &graph.node {
        names_read(node).into_iter().for_each(|name| *readers.entry(name.to_string()).or_default() += 1);
    }
    for output in &graph.output {
        *readers.entry(output.name().to_string()).or_default() += 1;
    }
    let mut kept = Vec::with_capacity(graph.node.len());
    for node in std::mem::take(&mut graph.node).into_iter().rev() {
        let is_read = |output: &String| readers.get(output).is_some_and(|n| *n > 0);
        if !node.output.iter().any(|output| freed.contains(output)) || node.output.iter().any(is_read) {
            kept.push(node);
            continue;
        }
        for name in names_read(&node) {
            readers.entry(name.to_string()).and_modify(|n| *n -= 1);
            freed.insert(name.to_string());
        }
    }
    kept.reverse();
    graph.node = kept;
    freed
}

fn may_fold(index: &GraphIndex, node: &NodeProto) -> bool {
    let is_read = |output: &String| !output.is_empty() && !index.is_output(output);
    node::is_standard(node)
        && node.input.iter().any(|input| !input.is_empty())
        && node.output.iter().any(|output| !output.is_empty())
        && node.output.iter().all(|output| output.is_empty() || is_read(output))
        && node.attribute.iter().all(|attribute| attribute.g.is_none() && attribute.graphs.is_empty())
        && !RANDOM.contains(&node.op_type())
}

/// Runs the node in the engine. Returns its named outputs, in order.
fn evaluate(model: &ModelProto, node: &NodeProto, operands: &[&TensorProto]) -> Result<Vec<TensorProto>> {
    let names: Vec<&String> = node.output.iter().filter(|name| !name.is_empty()).collect();
    let alone = model.of_node(node, operands.iter().map(|&operand| operand.clone()).collect(), Vec::new());
    let values = Parsed::new(&alone, &Shapes::new())?.build(&[])?.session()?.run_values(Vec::new())?;
    ensure!(values.len() == names.len(), "the engine returned {} outputs, expected {}", values.len(), names.len());
    names.into_iter().zip(values).map(|(name, value)| value.to_proto(name)).collect()
}

/// Returns the output of a BatchNormalization in training mode, from the mean and variance of each channel of its
/// input. Fails if another node reads its outputs for statistics.
fn normalized(index: &GraphIndex, node: &NodeProto, operands: &[&TensorProto]) -> Result<Vec<TensorProto>> {
    let is_read = |name: &&String| !name.is_empty() && !index.consumers(name).is_empty();
    ensure!(!node.output.iter().skip(1).any(|name| is_read(&name)), "its statistics are read");
    let operand = |slot: usize| {
        let name = node.input.get(slot).context("an input is missing")?;
        operands.iter().find(|operand| operand.name() == name).context("an input is no constant")
    };
    let (output, x) = (node.output.first().context("has no output")?, operand(0)?);
    let (shape, mut values) = (tensor::shape(x)?, tensor::f32_values(x)?);
    let [scale, shift] = [tensor::f32_values(operand(1)?)?, tensor::f32_values(operand(2)?)?];
    let [n, n_channels, ref inner @ ..] = shape[..] else {
        bail!("has the shape {shape:?}, expected two axes or more")
    };
    ensure!(!values.is_empty() && [scale.len(), shift.len()] == [n_channels; 2], "has other numbers of channels");
    let (n_inner, epsilon) = (inner.iter().product::<usize>(), f64::from(node::float(node, "epsilon").unwrap_or(1e-5)));
    for channel in 0..n_channels {
        let rows = (0..n).map(|row| (row * n_channels + channel) * n_inner);
        let places = rows.flat_map(|start| start..start + n_inner);
        let mean_of = |of: &dyn Fn(f64) -> f64| {
            places.clone().map(|at| of(f64::from(values[at]))).sum::<f64>() / (n * n_inner) as f64
        };
        let mean = mean_of(&|value| value);
        let gain = f64::from(scale[channel]) / (mean_of(&|value| (value - mean).powi(2)) + epsilon).sqrt();
        for at in places {
            values[at] = ((f64::from(values[at]) - mean) * gain + f64::from(shift[channel])) as f32;
        }
    }
    Ok(vec![tensor::from_f32(output, &shape, &values)?])
}

fn is_as_expected(value_info: &ValueInfos, outputs: &[TensorProto], operands: &[&TensorProto], may_grow: bool) -> bool {
    let is_of_type = |output: &TensorProto| value_info.data_type(output.name()) == output.data_type;
    let sizes: [Option<usize>; 2] = [outputs.iter().map(bytes).sum(), operands.iter().copied().map(bytes).sum()];
    let [Some(n_output), Some(n_input)] = sizes else { return false };
    outputs.iter().all(is_of_type) && (may_grow || n_output <= n_input.max(MAX_GROWTH))
}

/// Returns the bytes of a tensor's values; `None` for types whose elements do not take whole bytes, as
/// [`element_bytes`].
fn bytes(tensor: &TensorProto) -> Option<usize> {
    let n_values: usize = tensor::shape(tensor).ok()?.iter().product();
    n_values.checked_mul(element_bytes(tensor.data_type())?)
}
