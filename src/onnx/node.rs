//! Nodes: attributes, the axes of their weights, and new nodes.

use super::proto::{AttributeProto, NodeProto, TensorProto};
use super::tensor;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the node's name, or the name of its first output if it has none.
pub fn node_name(node: &NodeProto) -> &str {
    match node.name() {
        "" => node.output.first().map_or("", String::as_str),
        name => name,
    }
}

/// Returns the value of a numeric Constant node, named after the node's output; `None` for other nodes.
pub fn constant(node: &NodeProto) -> Option<TensorProto> {
    const STRING: i32 = 8;
    if node.op_type() != "Constant" || !is_standard(node) {
        return None;
    }
    let name = node.output.first().filter(|name| !name.is_empty())?;
    let [attribute] = node.attribute.as_slice() else { return None };
    let mut value = match attribute.name() {
        "value" => attribute.t.clone()?,
        "value_float" => tensor::from_f32(name, &[], &[attribute.f()]).ok()?,
        "value_floats" => tensor::from_f32(name, &[attribute.floats.len()], &attribute.floats).ok()?,
        "value_int" => tensor::from_i64(name, &[], &[attribute.i()]).ok()?,
        "value_ints" => tensor::from_i64(name, &[attribute.ints.len()], &attribute.ints).ok()?,
        _ => return None,
    };
    value.name = Some(name.clone());
    (value.data_type() != STRING).then_some(value)
}

/// Whether the operator belongs to ONNX's default domain.
pub fn is_standard(node: &NodeProto) -> bool {
    plain_domain(node.domain()).is_empty()
}

/// Returns the empty domain for `ai.onnx`, as both name the default domain.
pub fn plain_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Returns the domain as messages name it: `ai.onnx` for the default domain.
pub fn shown_domain(domain: &str) -> &str {
    if domain.is_empty() { "ai.onnx" } else { domain }
}

/// Whether a node is a QuantizeLinear or DequantizeLinear of any domain.
pub fn is_qdq(node: &NodeProto) -> bool {
    matches!(node.op_type(), "QuantizeLinear" | "DequantizeLinear")
}

/// Returns the attribute `name`.
pub fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name() == name)
}

/// Returns an integer attribute, or `default` if the node lacks it.
pub fn int(node: &NodeProto, name: &str, default: i64) -> i64 {
    attribute(node, name).map_or(default, |attribute| attribute.i())
}

/// Returns a float attribute.
pub fn float(node: &NodeProto, name: &str) -> Option<f32> {
    attribute(node, name).map(|attribute| attribute.f())
}

/// Returns a string attribute, or `default` if the node lacks it.
pub fn text(node: &NodeProto, name: &str, default: &str) -> String {
    let bytes = attribute(node, name).and_then(|attribute| attribute.s.clone());
    bytes.map_or(default.to_string(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a BatchNormalization is in training mode, in which it normalizes by the statistics of its input. Up to opset
/// 13, outputs for the statistics mean training mode.
pub fn trains(norm: &NodeProto) -> bool {
    int(norm, "training_mode", 0) != 0 || norm.output.iter().skip(1).any(|output| !output.is_empty())
}

/// Removes the attribute `name` from the node, and returns it.
pub fn take(node: &mut NodeProto, name: &str) -> Option<AttributeProto> {
    let position = node.attribute.iter().position(|attribute| attribute.name() == name)?;
    Some(node.attribute.remove(position))
}

/// Sets an integer attribute.
pub fn set_int(node: &mut NodeProto, name: &str, value: i64) {
    const INT: i32 = 2;
    take(node, name);
    let (name, value) = (Some(name.into()), Some(value));
    node.attribute.push(AttributeProto { name, r#type: Some(INT), i: value, ..Default::default() });
}

/// Sets an attribute of several integers.
pub fn set_ints(node: &mut NodeProto, name: &str, ints: Vec<i64>) {
    const INTS: i32 = 7;
    take(node, name);
    node.attribute.push(AttributeProto { name: Some(name.into()), r#type: Some(INTS), ints, ..Default::default() });
}

/// Sets a string attribute.
pub fn set_text(node: &mut NodeProto, name: &str, value: &str) {
    const STRING: i32 = 3;
    take(node, name);
    let (name, value) = (Some(name.into()), Some(value.as_bytes().to_vec().into()));
    node.attribute.push(AttributeProto { name, r#type: Some(STRING), s: value, ..Default::default() });
}

/// Returns a new node of the default domain.
pub fn make(op_type: &str, name: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: Some(name.into()),
        op_type: Some(op_type.into()),
        input: inputs.iter().map(|input| input.to_string()).collect(),
        output: vec![output.into()],
        ..Default::default()
    }
}

/// Whether the node is non-maximum suppression, of ONNX or another domain (`EfficientNMS_TRT`).
pub fn is_suppression(node: &NodeProto) -> bool {
    node.op_type() == "NonMaxSuppression" || node.op_type().contains("NMS")
}

/// Whether the node has integer inputs or weights without Q/DQ, or quantizes its input by the input's own range.
pub fn is_integer_operator(node: &NodeProto) -> bool {
    let op = node.op_type();
    let others = ["ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "MatMulNBits", "QGemm", "QAttention"];
    op.starts_with("QLinear") || others.contains(&op)
}

/// Operators whose output shapes depend on input values.
pub const SHAPED_BY_VALUES: [&str; 4] = ["NonZero", "NonMaxSuppression", "Unique", "Compress"];

/// Whether `alpha` or `beta` of a Gemm is not 1.
pub fn is_scaled(node: &NodeProto) -> bool {
    ["alpha", "beta"].iter().any(|name| float(node, name).is_some_and(|value| value != 1.0))
}

/// Operators that multiply their input by a weight.
pub const PRODUCTS: [&str; 4] = ["Conv", "ConvTranspose", "Gemm", "MatMul"];

/// Returns the multiply-adds of a convolution, a matrix product, an Einsum, an attention or a recurrent operator, by
/// the shapes of tensors; 0 for other nodes. `None` if a shape is unknown.
pub fn multiply_adds(node: &NodeProto, shape: impl Fn(&str) -> Option<Vec<usize>>) -> Option<usize> {
    let size = |dims: &[usize]| dims.iter().product::<usize>();
    let input = |i: usize| node.input.get(i).and_then(|name| shape(name));
    let output = || node.output.first().and_then(|name| shape(name));
    let per_value = |weight: &[usize]| size(weight.get(1..).unwrap_or_default());
    match node.op_type() {
        "Conv" | "DeformConv" => Some(size(&output()?) * per_value(&input(1)?)),
        "ConvTranspose" => Some(size(&input(0)?) * per_value(&input(1)?)),
        "MatMul" | "Gemm" => {
            let first = input(0)?;
            let axis = axis_position(reduction_axis(node, 0), first.len());
            Some(size(&output()?) * first.get(axis)?)
        }
        "Einsum" if node.input.len() > 1 => {
            let Equation { inputs, .. } = Equation::of(node)?;
            let mut sizes = BTreeMap::new();
            for (i, letters) in inputs.iter().enumerate() {
                sizes.extend(letters.iter().copied().zip(input(i)?));
            }
            Some(sizes.values().product())
        }
        // Each step of each sample multiplies its input and the previous state by all their weights.
        "LSTM" | "GRU" | "RNN" => {
            let steps = input(0)?.iter().take(2).product::<usize>();
            Some(steps * (size(&input(1)?) + size(&input(2)?)))
        }
        "Attention" | "MultiHeadAttention" | "GroupQueryAttention" => attention(node, input),
        _ => Some(0),
    }
}

/// Returns the multiply-adds of an operator that computes attention of all heads, masked positions included, by the
/// shapes of its inputs. `None` if a shape is unknown.
fn attention(node: &NodeProto, input: impl Fn(usize) -> Option<Vec<usize>>) -> Option<usize> {
    let is_given = |i: usize| node.input.get(i).is_some_and(|name| !name.is_empty());
    let heads = |name: &str| usize::try_from(int(node, name, 0)).ok().filter(|n| *n > 0);
    // Positions in the cache, before those of the key.
    let past = |i: usize, axis: usize| if is_given(i) { input(i)?.get(axis).copied() } else { Some(0) };
    let first = input(0)?;
    let (batch, length, width) = (*first.first()?, *first.get(1)?, *first.last()?);
    // Each query is multiplied by each key, and each of the products by a value.
    let product = |n_queries: usize, n_keys: usize, widths: usize| Some(n_queries * n_keys * widths);
    match node.op_type() {
        "Attention" if is_standard(node) => {
            let (key, value) = (input(1)?, input(2)?);
            let n_keys = key.get(key.len().checked_sub(2)?)? + past(4, 2)?;
            if let [batch, n_heads, length, width] = first[..] {
                return product(batch * n_heads * length, n_keys, width + value.last()?);
            }
            let (n_heads, of_value) = (heads("q_num_heads")?, heads("kv_num_heads")?);
            product(batch * length, n_keys, width + n_heads * (value.last()? / of_value))
        }
        // The projection of the input to queries, keys and values is a part of the operator.
        "Attention" => {
            let columns = *input(1)?.last()?;
            let sizes: Vec<usize> = match attribute(node, "qkv_hidden_sizes") {
                Some(sizes) => sizes.ints.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<_>>()?,
                None => vec![columns / 3; 3],
            };
            let widths = sizes.first()? + sizes.get(2)?;
            Some(batch * length * width * columns + product(batch * length, length + past(4, 3)?, widths)?)
        }
        "MultiHeadAttention" => {
            let n_heads = heads("num_heads")?;
            // Queries, keys and values of one tensor have the shape [batch, length, heads, 3, width].
            if first.len() == 5 {
                return product(batch * length, length + past(6, 2)?, 2 * n_heads * width);
            }
            let key = input(1)?;
            let n_keys = key.get(if key.len() == 4 { 2 } else { 1 })? + past(6, 2)?;
            let of_value = match (key.len(), is_given(2)) {
                // Keys and values of one tensor have the shape [batch, length, heads, 2, width].
                (5, _) | (_, false) => width,
                _ => match input(2)?[..] {
                    [_, _, width] => width,
                    [_, n_heads, _, width] => n_heads * width,
                    _ => return None,
                },
            };
            product(batch * length, n_keys, width + of_value)
        }
        _ => {
            let (n_heads, of_key) = (heads("num_heads")?, heads("kv_num_heads")?);
            // Without a key, the first input holds keys and values as well.
            let (n_keys, width) = match is_given(1) {
                true => (*input(1)?.get(1)?, width),
                false => (length, width / (n_heads + 2 * of_key) * n_heads),
            };
            product(batch * length, n_keys + past(3, 2)?, 2 * width)
        }
    }
}

/// The equation of an Einsum, without an ellipsis and without a letter twice in one tensor.
pub struct Equation {
    /// Letters of each operand.
    pub inputs: Vec<Vec<char>>,
    /// Letters of the output.
    pub output: Vec<char>,
}

impl Equation {
    /// Returns the equation of an Einsum; `None` for other operators and other forms of equations.
    pub fn of(node: &NodeProto) -> Option<Equation> {
        let attribute = node.attribute.iter().find(|attribute| attribute.name() == "equation")?;
        let text: String = std::str::from_utf8(attribute.s.as_ref()?).ok()?.chars().filter(|c| *c != ' ').collect();
        let (operands, output) = text.split_once("->").map_or((&text[..], None), |(a, b)| (a, Some(b)));
        let inputs: Vec<Vec<char>> = operands.split(',').map(|letters| letters.chars().collect()).collect();
        let all: BTreeMap<char, usize> = inputs.iter().flatten().fold(BTreeMap::new(), |mut counts, letter| {
            *counts.entry(*letter).or_default() += 1;
            counts
        });
        // An equation without an output means the letters that occur once, in alphabetical order.
        let once = || all.iter().filter(|(_, n)| **n == 1).map(|(letter, _)| *letter).collect();
        let output: Vec<char> = output.map_or_else(once, |output| output.chars().collect());
        let is_once = |letters: &Vec<char>| {
            let distinct: BTreeSet<&char> = letters.iter().collect();
            distinct.len() == letters.len()
        };
        let is_plain = all.keys().all(char::is_ascii_alphabetic)
            && inputs.iter().chain([&output]).all(is_once)
            && output.iter().all(|letter| all.contains_key(letter));
        (node.op_type() == "Einsum" && is_plain).then_some(Equation { inputs, output })
    }
}

/// Returns the axis of the output channels in the weight at `input_idx`. A negative axis counts from the last.
pub fn output_axis(node: &NodeProto, input_idx: usize) -> i64 {
    match (node.op_type(), input_idx) {
        ("ConvTranspose", _) => 1,
        ("Gemm", 1) => i64::from(int(node, "transB", 0) == 0),
        ("Gemm", _) => i64::from(int(node, "transA", 0) != 0),
        ("MatMul", 1) => -1,
        ("MatMul", _) => -2,
        _ => 0,
    }
}

/// Returns the axis of columns of a MatMul operand if the operand is a matrix and the second one. Integer kernels
/// support per-channel scales only there.
pub fn columns(input_idx: usize, rank: usize) -> Option<usize> {
    (input_idx == 1 && rank == 2).then_some(1)
}

/// Returns the axis of the weight at `input_idx` that the operator sums over. A negative axis counts from the last. In
/// a convolution's weight it is the axis of the input channels.
pub fn reduction_axis(node: &NodeProto, input_idx: usize) -> i64 {
    // It is the other axis of the first two or the last two.
    match output_axis(node, input_idx) {
        axis if axis < 0 => -3 - axis,
        axis => 1 - axis,
    }
}

/// Returns `axis` of a tensor with `rank` dimensions, counted from the first and clamped to existing axes.
pub fn axis_position(axis: i64, rank: usize) -> usize {
    from_first(axis, rank).clamp(0, rank.max(1) as i64 - 1) as usize
}

/// Returns `axis` of a tensor with `rank` dimensions, counted from the first. An axis out of range is not corrected.
pub fn from_first(axis: i64, rank: usize) -> i64 {
    if axis < 0 { axis + rank as i64 } else { axis }
}
