//! TIDL's quantization parameters, `advanced_options:quant_params_proto_path`: `TIDLNetQuantParams` in protobuf's text
//! form (TexasInstruments/edgeai-tidl-tools, docs, "Quantization Proto"). TIDL does not calibrate if every layer has a
//! range. It accepts symmetric grids only.

use super::PLAIN;
use crate::export::{Format, SidecarIndex};
use crate::onnx::proto::GraphProto;
use crate::onnx::tensor;
use crate::sidecar::{Encoding, NodeRecord};
use anyhow::{Context, Result, ensure};
use std::fmt::Write;

/// One layer per input and node, named after its output. Ranges are `±q_max * scale`, and scales are steps per real
/// unit. The values of biases are written too, which needs the model.
pub(super) const FORMAT: Format = Format {
    name: "tidl-quant-params",
    description: "TIDL's quantization parameters: protobuf text, range per layer; needs the model",
    suffix: "tidl.prototxt",
    needs_model: true,
    write,
    ..PLAIN
};

fn write(index: &SidecarIndex) -> Result<Vec<u8>> {
    let graph = index.model()?.graph()?;
    let mut layers = Vec::new();
    for input in &index.sidecar.graph.inputs {
        let encoding = index.activation(input).with_context(|| missing(input))?;
        layers.push(layer(encoding, Some("TIDL_DataLayer"), String::new())?);
    }
    for node in index.nodes() {
        if is_fused(index, node) {
            continue;
        }
        let output = index
            .output_of(node)
            .with_context(|| missing(node.outputs.first().map_or(node.name.as_str(), String::as_str)))?;
        layers.push(layer(output, layer_type(&node.op_type), params(index, graph, node)?)?);
    }
    let mut text = format!("num_layers: {}\nquant_type: SYMMETRIC\ncalib_type: PERTENSOR\n", layers.len());
    text.extend(layers);
    Ok(text.into_bytes())
}

fn missing(tensor: &str) -> String {
    format!(
        "tensor `{tensor}`: is not quantized, expected a range: TIDL skips its own calibration only if every layer has a range"
    )
}

/// Whether `node` is a Relu or Clip that is fused with the node before it.
fn is_fused(index: &SidecarIndex, node: &NodeRecord) -> bool {
    let before = node.inputs.first().and_then(|input| index.producer(input));
    let own = node.outputs.first().and_then(|output| index.activation(output));
    let fused = before.and_then(|before| index.output_of(before));
    matches!(node.op_type.as_str(), "Relu" | "Clip")
        && own.is_some_and(|own| fused.is_some_and(|fused| fused.name == own.name))
}

fn layer(output: &Encoding, layer_type: Option<&str>, params: String) -> Result<String> {
    let mut text = format!("layers {{\n  layer_name: \"{}\"\n", output.name.escape_default());
    if let Some(layer_type) = layer_type {
        writeln!(text, "  layer_type: \"{layer_type}\"")?;
    }
    writeln!(text, "  bit_depth: {}", output.storage().0 / 8)?;
    text.push_str(&tensor_params("outputs", output)?);
    text.push_str(&params);
    text.push_str("}\n");
    Ok(text)
}

/// Returns the message `TidlTensorQuantParams` of a per-tensor grid.
fn tensor_params(field: &str, encoding: &Encoding) -> Result<String> {
    let (scale, zero_point) = encoding.per_tensor()?;
    let (bits, signed) = encoding.storage();
    ensure!(
        zero_point == 0 && (signed || encoding.symmetric),
        "tensor `{}`: is {} with zero point {zero_point}, expected a symmetric type",
        encoding.name,
        encoding.output_dtype
    );
    let max = f64::from(encoding.q_range[1]) * scale;
    let min = if signed { -max } else { 0.0 };
    // TIDL's element types: unsigned and signed char, unsigned and signed short.
    let element_type = u32::from(signed) + if bits > 8 { 2 } else { 0 };
    Ok(format!(
        "  {field} {{\n    min: {min}\n    max: {max}\n    size: 1\n    element_type: {element_type}\n    scale: {}\n    zero_point: 0\n  }}\n",
        1.0 / scale
    ))
}

fn params(index: &SidecarIndex, graph: &GraphProto, node: &NodeRecord) -> Result<String> {
    let Some(weight) = index.weight_of(node) else { return Ok(String::new()) };
    let mut text = tensor_params("weights", weight)?;
    let Some(bias) = node.inputs.get(2).filter(|bias| !bias.is_empty()) else { return Ok(text) };
    let initializer = graph.initializer_named(bias);
    let initializer = initializer.with_context(|| format!("tensor `{bias}`: is not a constant of the model"))?;
    let values = tensor::f32_values(initializer).with_context(|| format!("initializer `{bias}`"))?;
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let amax = f64::from(min.abs().max(max.abs()));
    let scale = if amax > 0.0 { 127.0 / amax } else { 1.0 };
    write!(
        text,
        "  bias {{\n    min: {min}\n    max: {max}\n    size: {}\n    element_type: 1\n    scale: {scale}\n    zero_point: 0\n",
        values.len()
    )?;
    for value in values {
        writeln!(text, "    value: {}", f64::from(value))?;
    }
    text.push_str("  }\n");
    Ok(text)
}

/// Returns TIDL's layer type for an ONNX operator, if there is one.
fn layer_type(op_type: &str) -> Option<&'static str> {
    Some(match op_type {
        "Conv" => "TIDL_ConvolutionLayer",
        "ConvTranspose" => "TIDL_Deconv2DLayer",
        "Gemm" | "MatMul" => "TIDL_InnerProductLayer",
        "MaxPool" | "AveragePool" | "GlobalAveragePool" => "TIDL_PoolingLayer",
        "Relu" => "TIDL_ReLULayer",
        "PRelu" => "TIDL_PReLULayer",
        "Add" | "Mul" => "TIDL_EltWiseLayer",
        "Softmax" => "TIDL_SoftMaxLayer",
        "Concat" => "TIDL_ConcatLayer",
        "Slice" => "TIDL_SliceLayer",
        "Flatten" => "TIDL_FlattenLayer",
        "Resize" => "TIDL_ResizeLayer",
        _ => return None,
    })
}
