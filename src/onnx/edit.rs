//! Edits of a float model as values, and the function that applies them.

use super::graph::drop_unused;
use super::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use super::{node, tensor};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// An edit of a float model. The sidecar holds it in serialized form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelEdit {
    /// Scales the channels of a float32 initializer.
    ScaleChannels(ScaledChannels),
    /// Replaces the bias of a node.
    ReplaceBias(NewBias),
    /// Replaces the values of a float32 initializer.
    ReplaceValues(NewValues),
    /// Inserts a Mul by one constant per channel before some readers of a tensor, optionally with an Add.
    InsertMul(InsertedMul),
    /// Inserts a copy of a tensor before some readers, for quantization to another type.
    InsertCopy(InsertedCopy),
}

/// Factors for the values of a float32 initializer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaledChannels {
    /// Name of the initializer.
    pub tensor: String,
    /// The index in `factors` for each value of the initializer.
    pub entries: Entries,
    /// The factors, one per entry.
    pub factors: Vec<f32>,
    /// Whether the factors multiply the values; otherwise they divide them.
    pub multiply: bool,
}

/// New values for a float32 initializer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewValues {
    /// Name of the initializer.
    pub tensor: String,
    /// Values in row-major order.
    pub values: Vec<f32>,
}

/// A Mul by one constant per channel before some readers of a tensor, followed by an Add if channels are also shifted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InsertedMul {
    /// The tensor that the Mul reads.
    pub tensor: String,
    /// Name of the tensor that the readers read instead, and of the node that produces it.
    pub output: String,
    /// Name of the initializer with the factors.
    pub factors: String,
    /// Shape of the factors: 1 except on the channel axis.
    pub shape: Vec<usize>,
    /// The factors, one per channel.
    pub values: Vec<f32>,
    /// The readers, each by the name of its first output. Each reads the tensor as its first input.
    pub readers: Vec<String>,
    /// The Add after the Mul. Without it, the Mul produces `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add: Option<InsertedAdd>,
}

/// An Identity before some readers of a tensor. Tensor and copy are quantized to different types.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InsertedCopy {
    /// The tensor that the Identity reads.
    pub tensor: String,
    /// Name of the tensor that the readers read instead, and of the node that produces it.
    pub output: String,
    /// The readers, each by the name of its first output.
    pub readers: Vec<String>,
}

/// An Add of one constant per channel after an inserted Mul.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InsertedAdd {
    /// Name of the Mul and of its output.
    pub product: String,
    /// Name of the initializer with the summands; it has the shape of the factors.
    pub summands: String,
    /// The summands, one per channel.
    pub values: Vec<f32>,
}

impl InsertedMul {
    /// Returns the same Mul without the Add.
    #[must_use]
    pub fn without_add(&self) -> InsertedMul {
        InsertedMul { add: None, ..self.clone() }
    }

    /// Returns the names of the inserted nodes.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.add.iter().map(|add| &add.product).chain([&self.output])
    }
}

/// A new bias of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewBias {
    /// Position of the node in the prepared graph, inserted nodes included.
    #[serde(rename = "node")]
    pub node_idx: usize,
    /// Input index of the bias.
    #[serde(rename = "input")]
    pub input_idx: usize,
    /// Name of the initializer.
    pub name: String,
    /// One value per output channel.
    pub values: Vec<f32>,
}

/// Maps the row-major position of a tensor's value to an entry of an axis, such as a channel. An entry has `inner`
/// consecutive values, and after `len` entries the first follows again. For channels in groups of `len`, the next group
/// starts after every `period` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entries {
    inner: usize,
    len: usize,
    period: usize,
}

impl Entries {
    /// Returns the entries of an axis with length `len`, of `inner` consecutive values each.
    pub fn of_axis(inner: usize, len: usize) -> Entries {
        Entries::of_groups(inner, len, usize::MAX)
    }

    /// Works as [`Entries::of_axis`], with the next `len` entries after every `period` values.
    pub fn of_groups(inner: usize, len: usize, period: usize) -> Entries {
        Entries { inner: inner.max(1), len: len.max(1), period: period.max(1) }
    }

    /// Returns the entry of the value at row-major position `i`.
    pub fn of(self, i: usize) -> usize {
        i / self.period * self.len + i / self.inner % self.len
    }
}

/// Returns a copy of a model with the edits applied, as by [`apply`]. It shares the data of unchanged tensors.
///
/// # Errors
/// As [`apply`].
pub fn edited(model: &ModelProto, edits: &[ModelEdit]) -> Result<ModelProto> {
    let mut model = model.clone();
    apply(model.graph_mut()?, edits)?;
    Ok(model)
}

/// Applies the edits in order, and removes biases that become unused.
///
/// # Errors
/// If the graph lacks a node or initializer of an edit, or the number of values does not fit; the message names it.
pub fn apply(graph: &mut GraphProto, edits: &[ModelEdit]) -> Result<()> {
    let mut replaced = Vec::new();
    for edit in edits {
        match edit {
            ModelEdit::ScaleChannels(ScaledChannels { tensor, entries, factors, multiply }) => {
                let stored = initializer(graph, tensor)?;
                let mut values = tensor::f32_values(stored)?;
                for (i, value) in values.iter_mut().enumerate() {
                    let factor = factors.get(entries.of(i));
                    let factor = factor
                        .with_context(|| format!("initializer `{tensor}`: {} factors are too few", factors.len()))?;
                    *value = if *multiply { *value * factor } else { *value / factor };
                }
                *stored = tensor::from_f32(tensor, &tensor::shape(stored)?, &values)?;
            }
            ModelEdit::ReplaceBias(bias) => replaced.extend(replace_bias(graph, bias)?),
            ModelEdit::ReplaceValues(NewValues { tensor, values }) => {
                let stored = initializer(graph, tensor)?;
                *stored = tensor::from_f32(tensor, &tensor::shape(stored)?, values)?;
            }
            ModelEdit::InsertMul(mul) => insert(graph, mul)?,
            ModelEdit::InsertCopy(copy) => insert_copy(graph, copy)?,
        }
    }
    drop_unused(graph, replaced);
    Ok(())
}

fn initializer<'a>(graph: &'a mut GraphProto, name: &str) -> Result<&'a mut TensorProto> {
    let found = graph.initializer.iter_mut().find(|tensor| tensor.name() == name);
    found.with_context(|| format!("initializer `{name}` does not exist"))
}

/// Inserts the Mul and its Add before the first of its readers.
fn insert(graph: &mut GraphProto, mul: &InsertedMul) -> Result<()> {
    let InsertedMul { tensor, output, factors, shape, values, readers, add } = mul;
    let is_reader = |node: &NodeProto| node.output.first().is_some_and(|first| readers.contains(first));
    let mut first = None;
    for (node_idx, node) in graph.node.iter_mut().enumerate().filter(|(_, node)| is_reader(node)) {
        let input = node.input.first_mut().filter(|input| *input == tensor);
        let input = input.with_context(|| format!("`{tensor}` is not an input of node `{}`", node.output[0]))?;
        input.clone_from(output);
        first = first.or(Some(node_idx));
    }
    let first = first.with_context(|| format!("`{output}`: none of its readers is in the graph"))?;
    graph.initializer.push(tensor::from_f32(factors, shape, values)?);
    let product = add.as_ref().map_or(output, |add| &add.product);
    if let Some(InsertedAdd { summands, values, .. }) = add {
        graph.initializer.push(tensor::from_f32(summands, shape, values)?);
        graph.node.insert(first, node::make("Add", output, &[product, summands], output));
    }
    graph.node.insert(first, node::make("Mul", product, &[tensor, factors], product));
    Ok(())
}

/// Inserts the Identity before the first of its readers.
fn insert_copy(graph: &mut GraphProto, copy: &InsertedCopy) -> Result<()> {
    let InsertedCopy { tensor, output, readers } = copy;
    let is_reader = |node: &NodeProto| node.output.first().is_some_and(|first| readers.contains(first));
    let mut first = None;
    for (node_idx, node) in graph.node.iter_mut().enumerate().filter(|(_, node)| is_reader(node)) {
        for input in node.input.iter_mut().filter(|input| *input == tensor) {
            input.clone_from(output);
            first = first.or(Some(node_idx));
        }
    }
    let first =
        first.with_context(|| format!("`{tensor}` is an input of none of the nodes that produce {readers:?}"))?;
    graph.node.insert(first, node::make("Identity", output, &[tensor], output));
    Ok(())
}

/// Replaces or adds the bias of a node. Returns the name of the old bias.
fn replace_bias(graph: &mut GraphProto, bias: &NewBias) -> Result<Option<String>> {
    let NewBias { node_idx, input_idx, name, values } = bias;
    let node = graph.node.get_mut(*node_idx);
    let node = node.with_context(|| format!("the graph has no node {node_idx}"))?;
    let n_inputs = node.input.len();
    ensure!(*input_idx <= n_inputs, "node {node_idx} has {n_inputs} inputs, expected at least {input_idx}");
    let replaced = node.input.get(*input_idx).cloned();
    node.input.resize(n_inputs.max(input_idx + 1), String::new());
    node.input[*input_idx].clone_from(name);
    graph.initializer.push(tensor::from_f32(name, &[values.len()], values)?);
    Ok(replaced)
}
