//! Layers as matrix products, and biases by them.

use crate::support::{Attr, attribute, noise};
use mqq::engine::Value;
use mqq::onnx::proto::{ModelProto, NodeProto, OperatorSetIdProto};
use mqq::onnx::tensor;
use mqq::simulate::{ActivationBounds, NamedValue, NodeRunner, OneNodeModel, OutChannels, SingleNode};
use mqq::tune::methods::bias_calibration::calibration;
use mqq::tune::weights::layer::LayerProduct;
use std::sync::Arc;

pub fn node(op_type: &str, ints: &[(&str, &[i64])], int: &[(&str, i64)]) -> NodeProto {
    let lists = ints.iter().map(|(name, values)| attribute(name, &Attr::Ints(values.to_vec())));
    let numbers = int.iter().map(|(name, value)| attribute(name, &Attr::Int(*value)));
    let attribute = lists.chain(numbers).collect();
    NodeProto { op_type: Some(op_type.into()), attribute, ..Default::default() }
}

pub fn product(layer: &LayerProduct, w: &[f32], x: &Value, y: &Value) -> Vec<f32> {
    let mut out = vec![0f32; y.shape().iter().product()];
    let per_group = layer.n_out / layer.groups;
    for group in 0..layer.groups {
        let positions: Vec<usize> = (0..layer.n_positions(y)).collect();
        let patches = layer.patches(x, y, group, &positions);
        for (p, patch) in patches.chunks(layer.n_in).enumerate() {
            for o in group * per_group..(group + 1) * per_group {
                let weight = |k: usize| w[layer.at(o, k)];
                let sum: f32 = patch.iter().enumerate().map(|(k, v)| v * weight(k)).sum();
                out[layer.out_at(y, o, p)] = sum;
            }
        }
    }
    out
}

/// A layer's patches and rows give what the engine's own operator gives.
#[test]
fn patches_times_rows_are_the_operator() {
    type Case = (NodeProto, &'static [usize], &'static [usize]);
    let cases: [Case; 9] = [
        (node("Conv", &[("pads", &[1, 1, 1, 1])], &[]), &[4, 3, 3, 3], &[2, 3, 7, 6]),
        (node("Conv", &[("strides", &[2, 1]), ("dilations", &[1, 2])], &[]), &[4, 3, 3, 2], &[1, 3, 9, 8]),
        (node("Conv", &[("pads", &[0, 1, 2, 1])], &[("group", 2)]), &[6, 2, 3, 3], &[1, 4, 6, 6]),
        (node("Conv", &[("pads", &[2, 0])], &[("group", 4)]), &[4, 1, 3], &[2, 4, 9]),
        (node("ConvTranspose", &[("strides", &[2, 3]), ("pads", &[1, 0, 0, 2])], &[]), &[3, 4, 3, 2], &[2, 3, 5, 4]),
        (
            node("ConvTranspose", &[("strides", &[2, 2]), ("dilations", &[1, 2])], &[("group", 2)]),
            &[4, 3, 2, 2],
            &[1, 4, 4, 5],
        ),
        (node("Gemm", &[], &[("transB", 1)]), &[5, 8], &[3, 8]),
        (node("Gemm", &[], &[]), &[8, 5], &[3, 8]),
        (node("MatMul", &[], &[]), &[8, 5], &[2, 3, 8]),
    ];
    for (mut node, weight_shape, input_shape) in cases {
        node.input = vec!["x".into(), "w".into()];
        node.output = vec!["y".into()];
        let w = noise(weight_shape.iter().product(), 3);
        let x = Value::from_f32(input_shape, noise(input_shape.iter().product(), 5)).unwrap();
        let opset = OperatorSetIdProto { version: Some(13), ..Default::default() };
        let model = ModelProto { ir_version: Some(8), opset_import: vec![opset], ..Default::default() };
        let constant = tensor::from_f32("w", weight_shape, &w).unwrap();
        let input = NamedValue { name: "x", value: &x };
        let step = NodeRunner::of(&OneNodeModel::new(&model, &node, vec![constant], &[input]), &[]).unwrap();
        let step = SingleNode::of_groups(vec![Some(Arc::new(step))]);
        let y = step.run(&[0], |_| vec![x.clone()]).unwrap()[0][0].clone();
        let layer = LayerProduct::of(&node, weight_shape, &x).unwrap();
        let ours = product(&layer, &w, &x, &y);
        for (a, b) in ours.iter().zip(y.f32s().unwrap()) {
            assert!((a - b).abs() < 1e-5, "{node:?}: {a} {b}");
        }
    }
}

/// b <- b + 0.01 (mean(x) - mean(FQ(x))), sample after sample, behind a Relu, on a grid of integers.
#[test]
fn bias_calibration_moves_by_a_part_of_the_grids_error() {
    let channels = OutChannels { n_out: 2, planes: false };
    let sample = || Value::from_f32(&[2, 2], vec![0.3, 1.8, 0.1, -4.0]).unwrap();
    let relu = ActivationBounds { low: 0.0, high: f32::INFINITY };
    let by = calibration(&channels, [sample(), sample()].iter(), relu, f32::round_ties_even);
    // 0.3 and 0.1 become 0; 1.8 becomes 2, and -4 never comes to the grid.
    let first = [0.01 * 0.2, 0.01 * -0.1];
    let second = [first[0] + 0.01 * (0.2 + first[0]), first[1] + 0.01 * (-0.2 + first[1]) / 2.0];
    for (found, expected) in by.iter().zip(second) {
        assert!((found - expected).abs() < 1e-6, "{by:?}");
    }
}
