//! Rewrites nodes that the engine reads differently from ONNX, in the engine's own copy of the model.

use super::attention_mask::{ADDED_MASK, ROWS_WITH_KEYS};
use super::axis::INPUT_WITH_AXIS;
use super::conv_transpose::SIZED_CONV_TRANSPOSE;
use crate::onnx::node::{SHAPED_BY_VALUES, plain_domain};
use std::collections::HashSet;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto};

/// Rewrites nodes of a graph and of its subgraphs (tract 0.23.9):
///
/// - omitted inputs and outputs at the end of a node's list are removed from the list;
/// - a ConstantOfShape without a value gets ONNX's default, a float32 0; the engine's default has 64 bits;
/// - ends of a Slice, where the length of its input depends on values, are limited to that length, as in ONNX; the
///   engine takes a constant end as it is;
/// - pads beside `auto_pad` are removed: ONNX Runtime ignores them, and the engine ignores `auto_pad` instead;
/// - `auto_pad` of a ConvTranspose becomes pads; with it, the engine refuses kernels smaller than the stride and
///   ignores `output_padding`;
/// - a ConvTranspose with `output_shape` becomes mqq's own operator: the engine leaves out the pads that follow from it;
/// - the mask of an Attention becomes numbers, as the engine adds a boolean mask as 0 and 1, and queries that see no key
///   get 0;
/// - a Celu whose `alpha` is not 1 becomes a Div, a Celu and a Mul: the engine lacks the factor `alpha`;
/// - a negative axis of a OneHot or LayerNormalization is checked, as the engine runs endlessly if it is too low;
/// - a nearest Resize of opset 10 rounds down, or up if it reduces the size, as in ONNX Runtime; the engine's default is
///   that of later opsets;
/// - nodes get different names, and none that of an input or constant;
/// - nodes that the engine computes otherwise get other names, so that it refuses them: ONNX Runtime's Attention, as it
///   ignores domains; an Attention with a window, or causal with past keys, whose positions it does not shift;
///   GlobalLpPool; a Swish whose `alpha` is not 1; a Celu whose `alpha` is not above 0; a SpaceToDepth of mode CRD.
pub(super) fn rewrite_dialect(graph: &mut GraphProto) {
    clamp_ends(graph);
    insert_nodes(graph);
    // The engine makes a node of each tensor that no node of the graph gives.
    let made: HashSet<&String> = graph.node.iter().flat_map(|node| &node.output).collect();
    let given = graph.node.iter().flat_map(|node| &node.input).filter(|name| !made.contains(name));
    let given = given.chain(graph.input.iter().map(|input| &input.name));
    let mut names: HashSet<String> = given.chain(graph.initializer.iter().map(|it| &it.name)).cloned().collect();
    for node in &mut graph.node {
        if let Some(output) = node.output.first().filter(|_| !node.name.is_empty())
            && !names.insert(node.name.clone())
        {
            node.name = format!("{}.{output}", node.name);
        }
        while node.input.last().is_some_and(String::is_empty) {
            node.input.pop();
        }
        while node.output.len() > 1 && node.output.last().is_some_and(String::is_empty) {
            node.output.pop();
        }
        if node.attribute.iter().any(|a| a.name == "auto_pad" && !matches!(&a.s[..], b"" | b"NOTSET")) {
            node.attribute.retain(|attribute| attribute.name != "pads");
        }
        match (plain_domain(&node.domain), node.op_type.as_str()) {
            ("com.microsoft", "Attention") => node.op_type = "com.microsoft.Attention".to_string(),
            ("", "GlobalLpPool") => node.op_type = "ai.onnx.GlobalLpPool".to_string(),
            ("", op @ ("Swish" | "Celu")) if node.attribute.iter().any(|a| a.name == "alpha" && a.f != 1.0) => {
                node.op_type = format!("ai.onnx.{op} with alpha");
            }
            ("", "Attention") if node.attribute.iter().any(|a| a.name.ends_with("_window_size")) => {
                node.op_type = "ai.onnx.Attention with a window".to_string();
            }
            ("", "Attention") if is_causal_with_past(node) => {
                node.op_type = "ai.onnx.Attention with past keys that is causal".to_string();
            }
            ("", "SpaceToDepth") if node.attribute.iter().any(|a| a.name == "mode" && a.s != b"DCR") => {
                node.op_type = "ai.onnx.SpaceToDepth with mode CRD".to_string();
            }
            // Only in opset 10 it has two inputs.
            ("", "Resize") if node.input.len() == 2 && node.attribute.iter().all(|a| a.name != "nearest_mode") => {
                let scales = graph.initializer.iter().find(|scales| scales.name == node.input[1]);
                let s = if scales.is_some_and(reduces) { b"ceil".to_vec() } else { b"floor".to_vec() };
                let (name, r#type) = ("nearest_mode".to_string(), AttributeType::String as i32);
                node.attribute.push(AttributeProto { name, r#type, s, ..Default::default() });
            }
            ("", "ConstantOfShape") if node.attribute.iter().all(|a| a.name != "value") => {
                node.attribute.push(float_zero());
            }
            ("", "ConvTranspose") if node.attribute.iter().any(|a| a.name == "output_shape") => {
                node.op_type = SIZED_CONV_TRANSPOSE.to_string();
            }
            ("", "ConvTranspose") => pad_explicitly(node, &graph.initializer),
            _ => {}
        }
        for attribute in &mut node.attribute {
            attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(rewrite_dialect);
        }
    }
}

/// Inserts nodes around each Attention with a mask and each Celu with an `alpha` other than 1, and in front of each OneHot
/// and LayerNormalization with a negative axis.
fn insert_nodes(graph: &mut GraphProto) {
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        let output = node.output.first().cloned().unwrap_or_default();
        let name = |part: &str| format!("{output}.{part}");
        let attribute = |name: &str| node.attribute.iter().find(|attribute| attribute.name == name);
        let alpha = attribute("alpha").map_or(1.0, |alpha| alpha.f);
        let axis = attribute("axis").map_or(-1, |axis| axis.i);
        match (plain_domain(&node.domain), node.op_type.as_str()) {
            ("", "Attention") if node.input.get(3).is_some_and(|mask| !mask.is_empty()) => {
                nodes.push(made(ADDED_MASK, &[&node.input[3], &node.input[0]], name("mask")));
                node.input[3] = name("mask");
                if let Some(attended) = node.output.first_mut() {
                    *attended = name("attended");
                    let is_read =
                        |attribute: &&AttributeProto| ["is_causal", "q_num_heads"].contains(&&*attribute.name);
                    let attribute = node.attribute.iter().filter(is_read).cloned().collect();
                    let rows = made(ROWS_WITH_KEYS, &[&name("attended"), &name("mask")], output.clone());
                    nodes.push(node);
                    node = NodeProto { attribute, ..rows };
                }
            }
            ("", op @ ("OneHot" | "LayerNormalization")) if axis < -1 && !node.input.is_empty() => {
                let first = if op == "OneHot" { -1 } else { 0 };
                let checked = made(INPUT_WITH_AXIS, &[&node.input[0]], name("input"));
                nodes.push(NodeProto { attribute: vec![integer("axis", axis), integer("first", first)], ..checked });
                node.input[0] = name("input");
            }
            ("", "Celu") if alpha > 0.0 && alpha != 1.0 && node.input.len() == 1 => {
                let (data_type, float_data) = (DataType::Float as i32, vec![alpha]);
                let number = TensorProto { name: name("alpha"), data_type, float_data, ..Default::default() };
                graph.initializer.push(number);
                nodes.push(made("Div", &[&node.input[0], &name("alpha")], name("scaled")));
                nodes.push(made("Celu", &[&name("scaled")], name("celu")));
                node.op_type = "Mul".to_string();
                node.input = vec![name("celu"), name("alpha")];
                node.attribute.clear();
            }
            _ => {}
        }
        nodes.push(node);
    }
    graph.node = nodes;
}

/// Whether an Attention is causal and its keys follow those of an earlier run.
fn is_causal_with_past(node: &NodeProto) -> bool {
    let is_causal = node.attribute.iter().any(|a| a.name == "is_causal" && a.i != 0);
    is_causal && node.input.get(4).is_some_and(|past_key| !past_key.is_empty())
}

/// Whether one of the scales, a float32 tensor, is below 1.
fn reduces(scales: &TensorProto) -> bool {
    let raw = scales.raw_data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    scales.float_data.iter().copied().chain(raw).any(|scale| scale < 1.0)
}

/// Replaces `auto_pad` of a ConvTranspose by pads. They add up to the kernel's extent plus `output_padding` minus the
/// stride. Source: ONNX Runtime, `core/providers/cpu/nn/conv_transpose_attributes.h`.
fn pad_explicitly(node: &mut NodeProto, initializers: &[TensorProto]) {
    let attribute = |name: &str| node.attribute.iter().find(|attribute| attribute.name == name);
    let is_upper = match attribute("auto_pad").map(|attribute| &attribute.s[..]) {
        Some(b"SAME_UPPER") => true,
        Some(b"SAME_LOWER") => false,
        _ => return,
    };
    let weight = initializers.iter().find(|initializer| node.input.get(1) == Some(&initializer.name));
    let kernel = attribute("kernel_shape").map(|attribute| &attribute.ints[..]);
    let kernel = kernel.or_else(|| weight.and_then(|weight| weight.dims.get(2..)));
    let Some(kernel) = kernel else { return };
    let number = |name: &str, axis: usize, default: i64| {
        attribute(name).and_then(|attribute| attribute.ints.get(axis)).copied().unwrap_or(default)
    };
    let pads = kernel.iter().enumerate().map(|(axis, length)| {
        let reach = length.saturating_sub(1).saturating_mul(number("dilations", axis, 1)).saturating_add(1);
        let reach = reach.saturating_add(number("output_padding", axis, 0));
        let sum = reach.saturating_sub(number("strides", axis, 1)).max(0);
        let (less, more) = (sum / 2, sum - sum / 2);
        if is_upper { (less, more) } else { (more, less) }
    });
    let (before, after): (Vec<i64>, Vec<i64>) = pads.unzip();
    let (name, r#type) = ("pads".to_string(), AttributeType::Ints as i32);
    let pads = AttributeProto { name, r#type, ints: [before, after].concat(), ..Default::default() };
    node.attribute.retain(|attribute| !["auto_pad", "pads"].contains(&attribute.name.as_str()));
    node.attribute.push(pads);
}

/// Replaces the ends of each Slice of a tensor `x` behind [`SHAPED_BY_VALUES`] by `Min(ends, Gather(Shape(x), axes))`.
fn clamp_ends(graph: &mut GraphProto) {
    let mut shaped: HashSet<String> = HashSet::new();
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        let is_shaped = node.input.iter().any(|input| shaped.contains(input));
        if let ("Slice", true, [x, _, ends, axes @ ..]) = (node.op_type.as_str(), is_shaped, &node.input[..])
            && let Some(output) = node.output.first()
            && let Some(axes) = axes_of_slice(axes.first(), ends, output, &mut graph.initializer)
        {
            let name = |part: &str| format!("{output}.{part}");
            nodes.push(made("Shape", &[x], name("lengths")));
            nodes.push(made("Gather", &[&name("lengths"), &axes], name("longest")));
            let to = integer("to", DataType::Int64 as i64);
            let cast = made("Cast", &[ends], name("given"));
            nodes.push(NodeProto { attribute: vec![to], ..cast });
            nodes.push(made("Min", &[&name("given"), &name("longest")], name("ends")));
            node.input[2] = format!("{output}.ends");
        }
        if is_shaped || SHAPED_BY_VALUES.contains(&node.op_type.as_str()) {
            shaped.extend(node.output.iter().cloned());
        }
        nodes.push(node);
    }
    graph.node = nodes;
}

/// Returns the name of a Slice's axes. Without `axes`, these are the first axes, one for each of the constant `ends`,
/// and are added to the initializers. `None` if the number of ends is not known.
fn axes_of_slice(
    axes: Option<&String>,
    ends: &str,
    output: &str,
    initializers: &mut Vec<TensorProto>,
) -> Option<String> {
    if let Some(axes) = axes.filter(|axes| !axes.is_empty()) {
        return Some(axes.clone());
    }
    const MAX_RANK: i64 = 64;
    let ends = initializers.iter().find(|initializer| initializer.name == ends)?;
    let n = ends.dims.first().copied().filter(|n| (1..=MAX_RANK).contains(n))?;
    let name = format!("{output}.axes");
    let (data_type, int64_data) = (DataType::Int64 as i32, (0..n).collect());
    initializers.push(TensorProto { name: name.clone(), dims: vec![n], data_type, int64_data, ..Default::default() });
    Some(name)
}

/// Returns a node without attributes, with the name of its output.
fn made(op_type: &str, inputs: &[&str], output: String) -> NodeProto {
    NodeProto {
        op_type: op_type.to_string(),
        input: inputs.iter().map(|input| input.to_string()).collect(),
        name: output.clone(),
        output: vec![output],
        ..Default::default()
    }
}

/// Returns an attribute with an integer.
fn integer(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.to_string(), r#type: AttributeType::Int as i32, i, ..Default::default() }
}

/// Returns the attribute `value` with one float32 0.
fn float_zero() -> AttributeProto {
    let (dims, data_type, float_data) = (vec![1], DataType::Float as i32, vec![0.0]);
    let zero = TensorProto { dims, data_type, float_data, ..Default::default() };
    let (name, r#type) = ("value".to_string(), AttributeType::Tensor as i32);
    AttributeProto { name, r#type, t: Some(zero), ..Default::default() }
}
