//! Tensors of a quantized model that stand for those of its float model.

use crate::support::{Attr, GraphBuilder};
use mqq::matching::{MatchKind, as_qdq, isolate_layers, matching};
use mqq::onnx::node::int;
use mqq::onnx::proto::ModelProto;
use mqq::onnx::tensor::{DataType, from_integers};
use std::collections::BTreeMap;

/// Counterparts by float tensor: the value that is compared, and whether it was found by its name.
fn pairs(float: &ModelProto, quantized: &ModelProto) -> BTreeMap<String, (String, bool)> {
    let found = matching(float, quantized).unwrap();
    let pair = |it: &mqq::matching::TensorMatch| (it.tensor.clone(), (it.read.clone(), it.kind == MatchKind::Name));
    found.tensors.iter().map(pair).collect()
}

fn quantized_by(g: &mut GraphBuilder, from: &str, to: &str) -> String {
    let (scale, zero_point) = (format!("{from}_scale"), format!("{from}_zp"));
    g.values(&scale, &[], &[0.125]);
    g.tensor(from_integers(&zero_point, DataType::Uint8, &[], &[128]).unwrap());
    let integers = g.op("QuantizeLinear", &[from, &scale, &zero_point], &format!("{from}_q"));
    g.op("DequantizeLinear", &[&integers, &scale, &zero_point], to)
}

/// Conv, BatchNormalization, Relu, and a second Conv.
fn float() -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 8, 8]);
    g.conv("x", 3, 4, 3, 1, "conv");
    let [scale, bias, mean] = ["bn.scale", "bn.bias", "bn.mean"].map(|name| g.weight(name, &[4]));
    g.values("bn.var", &[4], &[1.0; 4]);
    g.ops(&format!("bn = BatchNormalization conv {scale} {bias} {mean} bn.var; relu = Relu bn"));
    g.conv("relu", 4, 5, 3, 1, "y");
    g.output("y");
    g.build()
}

#[test]
fn tensors_match_by_name_through_quantize_linear() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 8, 8]);
    quantized_by(&mut g, "x", "x_dq");
    // Folded; the Relu is done by the range, so that the Conv has its name.
    g.conv("x_dq", 3, 4, 3, 1, "relu");
    quantized_by(&mut g, "relu", "relu_dq");
    g.conv("relu_dq", 4, 5, 3, 1, "y_in");
    quantized_by(&mut g, "y_in", "y");
    g.output("y");
    let quantized = g.build();
    let found = matching(&float(), &quantized).unwrap();
    let named = |name: &str| (name.to_string(), true);
    let expected = [("x", named("x_dq")), ("relu", named("relu_dq")), ("y", named("y"))];
    assert_eq!(pairs(&float(), &quantized), expected.map(|(tensor, pair)| (tensor.to_string(), pair)).into());
    assert_eq!(found.unmatched, ["conv", "bn"]);
    let relu = found.tensors.iter().find(|it| it.tensor == "relu").unwrap();
    assert_eq!((relu.root.as_str(), relu.layer.as_deref()), ("relu", Some("Conv_conv")));
    assert_eq!(relu.operators, ["Conv", "BatchNormalization", "Relu"]);
    let grid = relu.grid.unwrap();
    assert_eq!((grid.scale, grid.ends), (0.125, [-16.0, 15.875]));
}

#[test]
fn a_removed_relu_moves_the_counterpart_to_its_result() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 8, 8]);
    // Named after the Conv, whose BatchNormalization and Relu are gone.
    g.conv("x", 3, 4, 3, 1, "conv");
    quantized_by(&mut g, "conv", "conv_dq");
    g.conv("conv_dq", 4, 5, 3, 1, "y");
    g.output("y");
    let found = pairs(&float(), &g.build());
    assert_eq!(found["relu"].0, "conv_dq");
    assert!(!found.contains_key("conv") && !found.contains_key("bn"));
}

#[test]
fn other_names_match_by_structure_and_twins_do_not() {
    let branches = |names: [&str; 5], widths: [usize; 2]| {
        let [x, left, right, sum, y] = names;
        let mut g = GraphBuilder::new(17);
        g.input(x, &[1, 3, 8, 8]);
        for (name, c) in [left, right].into_iter().zip(widths) {
            g.conv(x, 3, c, 3, 1, name);
        }
        g.op_with("Concat", &[left, right], sum, &[("axis", Attr::Int(1))]);
        g.op("Sigmoid", &[sum], y);
        g.output(y);
        g.build()
    };
    let names = ["x", "left", "right", "sum", "y"];
    let others = ["a", "b", "c", "d", "e"];
    let tensors = |found: BTreeMap<String, (String, bool)>| found.into_keys().collect::<Vec<_>>();
    // Weights of other shapes tell the branches apart.
    let found = pairs(&branches(names, [4, 5]), &branches(others, [4, 5]));
    let structure = |name: &str| (name.to_string(), false);
    let expected = names.into_iter().zip(others).map(|(a, b)| (a.to_string(), structure(b)));
    assert_eq!(found, expected.collect());
    // Of the same shapes there is no telling.
    assert_eq!(tensors(pairs(&branches(names, [4, 4]), &branches(others, [4, 4]))), ["x", "y"]);
}

/// QLinearConv, QLinearAdd and QLinearGlobalAveragePool, each with tensors of their own names.
fn qoperators() -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 8, 8]);
    g.values("s", &[], &[0.0625]);
    g.tensor(from_integers("z", DataType::Uint8, &[], &[128]).unwrap());
    g.op("QuantizeLinear", &["x", "s", "z"], "xq");
    let weights: Vec<i32> = (0..36).map(|i| i * 7 % 41 - 20).collect();
    g.tensor(from_integers("w", DataType::Int8, &[3, 3, 2, 2], &weights).unwrap());
    g.values("ws", &[3], &[0.01, 0.02, 0.03]);
    g.tensor(from_integers("wz", DataType::Int8, &[3], &[0; 3]).unwrap());
    g.tensor(from_integers("b", DataType::Int32, &[3], &[100, -200, 50]).unwrap());
    let attributes = [("pads", Attr::Ints(vec![0, 0, 1, 1]))];
    g.op_with("QLinearConv", &["xq", "s", "z", "w", "ws", "wz", "s", "z", "b"], "cq", &attributes);
    g.ops("aq = QLinearAdd xq s z cq s z s z; pq = QLinearGlobalAveragePool aq s z s z; y = DequantizeLinear pq s z");
    g.output("y");
    g.build()
}

#[test]
fn operators_on_integers_become_qdq_with_the_same_result() {
    let expanded = as_qdq(qoperators());
    let graph = expanded.model.graph.as_ref().unwrap();
    let count = |op_type: &str| graph.node.iter().filter(|node| node.op_type() == op_type).count();
    assert!(graph.node.iter().all(|node| !node.op_type().starts_with("QLinear")));
    assert_eq!([count("Conv"), count("Add"), count("GlobalAveragePool"), count("QuantizeLinear")], [1, 1, 1, 4]);
    assert_eq!(expanded.integers["cq_DequantizeLinear"], "cq");
    // By hand: the integers of ONNX's definition.
    let got = &crate::support::outputs(&expanded.model, 1)[0];
    let x: Vec<f32> = (0..192).map(|i| ((i * 37 + 11) % 101) as f32 / 40.0 - 1.2).collect();
    let quantize = |value: f64| ((value / 0.0625).round_ties_even() + 128.0).clamp(0.0, 255.0);
    let real = |value: f64| (quantize(value) - 128.0) * 0.0625;
    let at = |c: usize, i: usize, j: usize| if i < 8 && j < 8 { real(f64::from(x[64 * c + 8 * i + j])) } else { 0.0 };
    for (o, got) in got.iter().enumerate() {
        let mut sum = 0.0;
        for (i, j) in (0..64).map(|at| (at / 8, at % 8)) {
            let mut value = [100.0, -200.0, 50.0][o] * 0.0625 * [0.01, 0.02, 0.03][o];
            for k in 0..12 {
                let weight = ((12 * o + k) * 7 % 41) as f64 - 20.0;
                value += at(k / 4, i + k / 2 % 2, j + k % 2) * weight * [0.01, 0.02, 0.03][o];
            }
            sum += real(at(o, i, j) + real(value));
        }
        let expected = real(sum / 64.0);
        assert!((f64::from(*got) - expected).abs() < 0.07, "channel {o}: {got}, expected {expected}");
    }
}

#[test]
fn layers_on_their_own_read_the_float_tensors() {
    let quantized = as_qdq(qoperators()).model;
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 8, 8]);
    let w = g.weight("w", &[3, 3, 2, 2]);
    g.op_with("Conv", &["x", &w], "c", &[("pads", Attr::Ints(vec![0, 0, 1, 1]))]);
    g.ops("a = Add x c; y = GlobalAveragePool a");
    g.output("y");
    let found = matching(&g.build(), &quantized).unwrap();
    assert!(found.unmatched.is_empty(), "{found:?}");
    let alone = isolate_layers(&quantized, &found.tensors.iter().map(Some).collect::<Vec<_>>()).unwrap();
    let graph = alone.model.graph.as_ref().unwrap();
    let reads = |op_type: &str| {
        let node = graph.node.iter().find(|node| node.op_type() == op_type).unwrap();
        node.input.iter().filter(|name| name.ends_with("_float")).count()
    };
    assert_eq!([reads("Conv"), reads("Add"), reads("GlobalAveragePool")], [1, 2, 1]);
    let of_float: Vec<&str> = alone.inputs.iter().map(|(_, at)| found.tensors[*at].tensor.as_str()).collect();
    assert_eq!(of_float, ["x", "c", "a"]);
    // The input itself is quantized as it is.
    assert_eq!(alone.own_inputs, [0]);
}

/// A MaxPool of integers whose type only the attribute of their QuantizeLinear gives.
#[test]
fn integers_of_a_layer_on_its_own_have_their_type() {
    let pool = [("kernel_shape", Attr::Ints(vec![2, 2]))];
    let model = |is_quantized: bool| {
        let mut g = GraphBuilder::new(21);
        g.input("x", &[1, 3, 8, 8]);
        g.conv("x", 3, 4, 3, 1, "c");
        if is_quantized {
            g.values("s", &[], &[0.125]);
            g.op_with("QuantizeLinear", &["c", "s"], "c_q", &[("output_dtype", Attr::Int(DataType::Int8 as i64))]);
            g.op_with("MaxPool", &["c_q"], "p_q", &pool);
            g.op("DequantizeLinear", &["p_q", "s"], "y");
        } else {
            g.op_with("MaxPool", &["c"], "y", &pool);
        }
        g.output("y");
        g.build()
    };
    let quantized = model(true);
    let found = matching(&model(false), &quantized).unwrap();
    let alone = isolate_layers(&quantized, &found.tensors.iter().map(Some).collect::<Vec<_>>()).unwrap();
    let nodes = &alone.model.graph.as_ref().unwrap().node;
    let made = nodes.iter().find(|node| node.op_type() == "QuantizeLinear" && node.input[0] == "c_float").unwrap();
    assert_eq!(int(made, "output_dtype", 0), DataType::Int8 as i64);
}
