//! A model that keeps every rule, and edits that break one.

use crate::support::{Attr, GraphBuilder};
use mqq::onnx::proto::*;
use mqq::onnx::tensor;

pub fn linear(g: &mut GraphBuilder, op_type: &str, tensor: &str, from: &str, axis: Option<i64>) {
    let suffix = if op_type == "QuantizeLinear" { "q" } else { "dq" };
    let (scale, zero_point) = (format!("{tensor}_scale"), format!("{tensor}_zp"));
    let attributes: Vec<_> = axis.iter().map(|axis| ("axis", Attr::Int(*axis))).collect();
    let output = format!("{tensor}_{suffix}");
    g.op_with(op_type, &[from, &scale, &zero_point], &output, &attributes);
}

pub fn pair(g: &mut GraphBuilder, tensor: &str, scale: f32) {
    g.values(&format!("{tensor}_scale"), &[], &[scale]);
    g.tensor(tensor::from_integers(&format!("{tensor}_zp"), tensor::DataType::Int8, &[], &[0]).unwrap());
    linear(g, "QuantizeLinear", tensor, tensor, None);
    linear(g, "DequantizeLinear", tensor, &format!("{tensor}_q"), None);
}

/// Conv (int8 per channel, int32 bias), Relu, MaxPool, Softmax, every tensor quantized in powers of two.
pub fn good() -> ModelProto {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 16, 8, 8]);
    pair(&mut g, "x", 0.5);
    let scales: Vec<f32> = (0..16).map(|i| 2f32.powi(-(i % 4))).collect();
    let ints: Vec<i32> = (0..16 * 16).map(|i| i % 255 - 127).collect();
    g.tensor(tensor::from_integers("w_q", tensor::DataType::Int8, &[16, 16, 1, 1], &ints).unwrap());
    g.values("w_scale", &[16], &scales);
    g.tensor(tensor::from_integers("w_zp", tensor::DataType::Int8, &[16], &[0; 16]).unwrap());
    linear(&mut g, "DequantizeLinear", "w", "w_q", Some(0));
    g.tensor(tensor::from_integers("b_q", tensor::DataType::Int32, &[16], &[7; 16]).unwrap());
    g.values("b_scale", &[16], &scales.iter().map(|s| 0.5 * s).collect::<Vec<_>>());
    g.tensor(tensor::from_integers("b_zp", tensor::DataType::Int32, &[16], &[0; 16]).unwrap());
    linear(&mut g, "DequantizeLinear", "b", "b_q", Some(0));
    g.ops("c = Conv x_dq w_dq b_dq; r = Relu c");
    pair(&mut g, "r", 0.25);
    g.op_with("MaxPool", &["r_dq"], "p", &[("kernel_shape", Attr::Ints(vec![2, 2]))]);
    pair(&mut g, "p", 0.25);
    g.op("Softmax", &["p_dq"], "s");
    pair(&mut g, "s", 1.0 / 128.0);
    g.output("s_dq");
    g.build()
}

pub fn graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.as_mut().unwrap()
}

pub fn node<'a>(model: &'a mut ModelProto, output: &str) -> &'a mut NodeProto {
    graph(model).node.iter_mut().find(|node| node.output[0] == output).unwrap()
}

pub fn replace(model: &mut ModelProto, new: TensorProto) {
    let old = graph(model).initializer.iter_mut().find(|t| t.name() == new.name());
    *old.unwrap() = new;
}

pub fn set_scale(model: &mut ModelProto, name: &str, values: &[f32]) {
    let shape: &[usize] = if values.len() == 1 { &[] } else { &[values.len()] };
    replace(model, tensor::from_f32(name, shape, values).unwrap());
}

/// The same integers and zero points of tensor `t` as another type, whose bits differ.
pub fn set_type(model: &mut ModelProto, t: &str, data_type: i32) {
    for name in [format!("{t}_q"), format!("{t}_zp")] {
        let found = graph(model).initializer.iter_mut().find(|tensor| tensor.name() == name);
        if let Some(tensor) = found {
            tensor.data_type = Some(data_type);
        }
    }
}

pub fn insert(model: &mut ModelProto, op_type: &str, before: &str, input: usize) {
    let graph = graph(model);
    let at = graph.node.iter().position(|node| node.output[0] == before).unwrap();
    let from = std::mem::replace(&mut graph.node[at].input[input], "inserted".into());
    let new = NodeProto {
        op_type: Some(op_type.into()),
        input: vec![from],
        output: vec!["inserted".into()],
        ..Default::default()
    };
    graph.node.insert(at, new);
}

/// Adds a MatMulNBits of 40 rows and 16 columns in blocks of 32, with codes and scales of these shapes.
pub fn nbits(model: &mut ModelProto, codes: &[usize], scales: &[usize]) {
    let n = |shape: &[usize]| shape.iter().product::<usize>();
    let codes = tensor::from_integers("codes", tensor::DataType::Uint8, codes, &vec![7; n(codes)]).unwrap();
    let scales = tensor::from_f32("scales", scales, &vec![1.0; n(scales)]).unwrap();
    graph(model).initializer.extend([codes, scales]);
    let mut product = mqq::onnx::node::make("MatMulNBits", "product", &["s_dq", "codes", "scales"], "product");
    product.domain = Some("com.microsoft".into());
    let attributes = [("K", 40), ("N", 16), ("bits", 4), ("block_size", 32)];
    attributes.iter().for_each(|(name, value)| mqq::onnx::node::set_int(&mut product, name, *value));
    graph(model).node.push(product);
    let contrib = OperatorSetIdProto { domain: Some("com.microsoft".into()), version: Some(1) };
    model.opset_import.push(contrib);
}

/// Adds the nodes of a dynamic product of `s_dq` and the weight `w_q`.
pub fn dynamic(model: &mut ModelProto) {
    let make = |op: &str, inputs: &[&str], output: &str| mqq::onnx::node::make(op, output, inputs, output);
    let mut quantize = make("DynamicQuantizeLinear", &["s_dq"], "d_q");
    quantize.output.extend(["d_scale".to_string(), "d_zp".to_string()]);
    graph(model).node.extend([
        quantize,
        make("MatMulInteger", &["d_q", "w_q", "d_zp"], "accumulated"),
        make("Cast", &["accumulated"], "cast"),
        make("Mul", &["d_scale", "w_scale"], "scales"),
        make("Mul", &["cast", "scales"], "product"),
    ]);
}
