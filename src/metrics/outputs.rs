//! The outputs of a graph, and the tensors by which they are evaluated.

use crate::onnx::data_type::{DataType, TypeKind};
use crate::onnx::graph::GraphIndex;
use crate::onnx::node;
use crate::onnx::proto::{Dimension, GraphProto, ValueInfoProto};
use std::collections::{BTreeMap, BTreeSet};

/// Channel axes that the user gives, by output.
pub type ChannelAxes = BTreeMap<String, usize>;

/// An output and how it is evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluatedOutput {
    /// ONNX name of the output.
    pub name: String,
    /// The tensor by which the output is evaluated: the output itself, or the input of its Softmax or ArgMax.
    pub tensor: String,
    /// The axis of `tensor` along which only differences count; negative axes count from the last.
    pub centered_axis: Option<i64>,
    /// Whether the output's type is float, as for class scores.
    pub is_float: bool,
    /// Whether the output is class scores, if a Softmax produces it or the user names the task; `None` if its values
    /// decide.
    pub is_scores: Option<bool>,
    /// Whether a TopK or non-maximum suppression chooses its rows, so that the same row of two networks need not
    /// correspond.
    pub is_selected: bool,
    /// The channel axis, if the user gives it.
    pub channel_axis: Option<usize>,
}

impl EvaluatedOutput {
    /// Returns the outputs of a graph, each evaluated by its own values.
    pub fn of(graph: &GraphProto, axes: &ChannelAxes) -> Vec<EvaluatedOutput> {
        let index = GraphIndex::new(graph);
        let selected = selected_tensors(graph, &index);
        // An undeclared type is 0.
        let is_float = |number: i32| {
            number == 0 || DataType::of(number).is_some_and(|of| of.is_plain() && of.kind() == TypeKind::Float)
        };
        let of = |value: &ValueInfoProto| EvaluatedOutput {
            name: value.name().to_string(),
            tensor: value.name().to_string(),
            centered_axis: None,
            is_float: value.tensor_type().is_none_or(|tensor| is_float(tensor.elem_type())),
            is_scores: softmax_input(&index, value.name()).map(|_| true),
            is_selected: selected.contains(value.name()),
            channel_axis: axes.get(value.name()).copied(),
        };
        graph.output.iter().map(of).collect()
    }

    /// Returns the outputs of a graph, as [`EvaluatedOutput::of`]. `are_scores` says whether they are class scores, if
    /// the user does.
    pub fn of_scores(graph: &GraphProto, axes: &ChannelAxes, are_scores: Option<bool>) -> Vec<EvaluatedOutput> {
        let mut outputs = EvaluatedOutput::of(graph, axes);
        outputs.iter_mut().for_each(|output| output.is_scores = are_scores.or(output.is_scores));
        outputs
    }

    /// Returns the outputs of a graph, with class probabilities evaluated by the Softmax's input, and classes by the
    /// ArgMax's input, both up to a constant. In the Softmax's input all samples count, whereas among probabilities only
    /// samples of doubtful class do. A Softmax at every position of a map is kept, because its probabilities locate
    /// objects. Numbers of classes are in no order, so that their differences say nothing.
    pub fn with_scores(graph: &GraphProto, axes: &ChannelAxes) -> Vec<EvaluatedOutput> {
        let index = GraphIndex::new(graph);
        let mut outputs = EvaluatedOutput::of(graph, axes);
        for (output, value) in outputs.iter_mut().zip(&graph.output) {
            if let (Some((tensor, axis)), true) = (softmax_input(&index, value.name()), is_one_row(value)) {
                (output.tensor, output.centered_axis) = (tensor, Some(axis));
            } else if let Some((tensor, axis)) = arg_max_input(&index, value.name()) {
                (output.tensor, output.centered_axis, output.is_float) = (tensor, Some(axis), true);
            }
        }
        outputs
    }
}

/// Returns the tensors that are computed from chosen rows: rows of a non-maximum suppression, or of a TopK whose
/// indices are used.
fn selected_tensors<'g>(graph: &'g GraphProto, index: &GraphIndex) -> BTreeSet<&'g str> {
    let is_read = |name: &String| !index.consumers(name).is_empty() || index.is_output(name);
    let mut selected = BTreeSet::new();
    for node in &graph.node {
        let chooses = match node.op_type() {
            "TopK" => node.output.get(1).is_some_and(is_read),
            _ => node::is_suppression(node),
        };
        if chooses || node.input.iter().any(|input| selected.contains(input.as_str())) {
            selected.extend(node.output.iter().map(String::as_str));
        }
    }
    selected
}

/// Returns the input of the Softmax that produces an output, and the Softmax's axis.
fn softmax_input(index: &GraphIndex, output: &str) -> Option<(String, i64)> {
    input_of(index, output, &["Softmax", "LogSoftmax"], -1)
}

/// Returns the input of the ArgMax that produces an output, and the ArgMax's axis.
fn arg_max_input(index: &GraphIndex, output: &str) -> Option<(String, i64)> {
    input_of(index, output, &["ArgMax"], 0)
}

/// Returns the input and the axis of one of these operators, if only moves follow it up to an output.
fn input_of(index: &GraphIndex, output: &str, operators: &[&str], default_axis: i64) -> Option<(String, i64)> {
    let mut tensor = output;
    loop {
        let producer = index.producer(tensor)?;
        let input = producer.input.first()?;
        match producer.op_type() {
            op if operators.contains(&op) => return Some((input.clone(), node::int(producer, "axis", default_axis))),
            "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Cast" => tensor = input,
            _ => return None,
        }
    }
}

/// Whether the declared shape is `[N, C]` or `[N, C, 1, 1]`.
fn is_one_row(value: &ValueInfoProto) -> bool {
    let shape = value.tensor_type().and_then(|tensor| tensor.shape.as_ref());
    let is_one = |dim: &Dimension| dim.dim_value == Some(1);
    shape.is_some_and(|shape| shape.dim.len() >= 2 && shape.dim[2..].iter().all(is_one))
}

/// Subtracts the mean along an axis from the values. Negative axes count from the last.
pub fn center_along(values: &[f32], shape: &[usize], axis: i64) -> Vec<f32> {
    let axis = node::axis_position(axis, shape.len());
    let n = shape.get(axis).copied().unwrap_or(1).max(1);
    let inner = shape.iter().skip(axis + 1).product::<usize>().max(1);
    let mut centered = values.to_vec();
    for part in centered.chunks_exact_mut(n * inner) {
        for i in 0..inner {
            // Minus infinity in a mask stays.
            let finite = part[i..].iter().step_by(inner).filter(|x| x.is_finite());
            let (sum, n) = finite.fold((0.0, 0.0), |(sum, n), &x| (sum + f64::from(x), n + 1.0));
            let mean = sum / f64::max(n, 1.0);
            part[i..].iter_mut().step_by(inner).for_each(|x| *x = (f64::from(*x) - mean) as f32);
        }
    }
    centered
}
