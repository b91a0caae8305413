//! QuantizeLinear and DequantizeLinear in the engine, panics during a run, and graphs of many nodes or large weights.

use crate::support::{Attr, GraphBuilder, seen_and_outputs};
use anyhow::Result;
use mqq::data::{Array, Values};
use mqq::engine::Parsed;
use mqq::onnx::inputs::Shapes;
use mqq::onnx::proto::ModelProto;
use mqq::onnx::tensor::{self, DataType};

/// The output of a model for an input.
fn run(model: &ModelProto, x: &[f32]) -> Result<Vec<f32>> {
    let engine = Parsed::new(model, &Shapes::new())?.build(&[])?;
    let x = Array { shape: engine.inputs()[0].shape.clone(), values: Values::F32(x.to_vec()) };
    let outputs = engine.session()?.run(&[x], &mut |_, _, _| Ok(()))?;
    match &outputs[0].values {
        Values::F32(values) => Ok(values.clone()),
        other => panic!("expected float32, found {other:?}"),
    }
}

/// x -> QuantizeLinear -> DequantizeLinear -> y, with unsigned integers of 4 bits.
fn pair(shape: &[i64], scales: &[f32], zero_points: &[i32]) -> ModelProto {
    let dims = |n: usize| if n == 1 { vec![] } else { vec![n] };
    let mut g = GraphBuilder::new(21);
    g.input("x", shape);
    g.values("scale", &dims(scales.len()), scales);
    g.tensor(tensor::from_integers("zero", DataType::Uint4, &dims(zero_points.len()), zero_points).unwrap());
    g.ops("q = QuantizeLinear x scale zero; y = DequantizeLinear q scale zero");
    g.output("y");
    g.build()
}

#[test]
fn scales_and_zero_points_are_as_many() {
    let error = run(&pair(&[1, 2], &[1.0, 2.0], &[0]), &[1.0, 2.0]).unwrap_err();
    assert!(format!("{error:#}").contains("2 scales and 1 zero points"), "{error:#}");
    assert!(run(&pair(&[1, 2], &[], &[]), &[1.0, 2.0]).is_err());
}

#[test]
fn values_are_divided_rounded_half_to_even_and_saturated() {
    let x = [0.25, 0.75, -0.25, -1e9, 1e9, f32::INFINITY, 6.0, f32::NAN];
    let y = run(&pair(&[8], &[0.5], &[3]), &x).unwrap();
    // The integers are 3, 5, 3, 0, 15, 15, 15 and, of NaN, the lowest.
    assert_eq!(y, [0.0, 1.0, 0.0, -1.5, 6.0, 6.0, 6.0, -1.5]);
}

#[test]
fn the_lowest_integer_of_32_bits_less_its_zero_point_does_not_wrap() {
    let mut g = GraphBuilder::new(21);
    g.input("x", &[1]);
    g.tensor(tensor::from_integers("q", DataType::Int32, &[1], &[i32::MIN]).unwrap());
    g.values("scale", &[], &[1.0]);
    g.tensor(tensor::from_integers("zero", DataType::Int32, &[], &[1]).unwrap());
    g.ops("w = DequantizeLinear q scale zero; y = Add x w");
    g.output("y");
    assert!(run(&g.build(), &[0.0]).unwrap()[0] < -2e9);
}

#[test]
fn a_panic_in_a_run_becomes_an_error() {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[2]);
    g.ops("a = Relu x; y = Neg a");
    g.output("y");
    let engine = Parsed::new(&g.build(), &Shapes::new()).unwrap().build(&["a".to_string()]).unwrap();
    let x = Array { shape: vec![2], values: Values::F32(vec![1.0, -1.0]) };
    let error = engine.session().unwrap().run(&[x], &mut |_, _, _| panic!("index {} out of range", 7)).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("node `Relu_a"), "{error}");
    assert!(error.ends_with(": the engine cannot run this node with these inputs, shapes or attributes"), "{error}");
}

#[test]
fn equal_nodes_that_are_all_read_run() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 1, 13]);
    g.ops("a = Flatten x; b = Flatten x");
    for (name, value) in [("scale", 2.0), ("bias", 0.5), ("mean", 0.0), ("var", 1.0)] {
        g.values(name, &[13], &[value; 13]);
    }
    let normal = [("epsilon", Attr::Float(0.0))];
    g.op_with("BatchNormalization", &["b", "scale", "bias", "mean", "var"], "c", &normal);
    g.op("Flatten", &["x"], "d");
    for name in ["a", "c", "d"] {
        g.output(name);
    }
    let model = g.build();
    for watched in [&[][..], &["a"], &["b"], &["b", "c"], &["a", "b", "c", "d"]] {
        let watched: Vec<String> = watched.iter().map(ToString::to_string).collect();
        let (_, outputs) = seen_and_outputs(&model, &watched, 1);
        let expected: Vec<f32> = outputs[0].iter().map(|x| 2.0 * x + 0.5).collect();
        assert_eq!(outputs[1], expected, "{watched:?}");
        assert_eq!(outputs[2], outputs[0], "{watched:?}");
    }
}

#[test]
fn a_batch_normalization_without_a_channel_axis_is_an_error() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[4]);
    for name in ["scale", "bias", "mean", "var"] {
        g.values(name, &[4], &[1.0; 4]);
    }
    g.op("BatchNormalization", &["x", "scale", "bias", "mean", "var"], "y");
    g.output("y");
    let error = run(&g.build(), &[0.0; 4]).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("BatchNormalization_y") && error.contains("the input has the rank 1, expected 2"),
        "{error}"
    );
}

/// A layer normalization in single nodes, which the engine fuses where nobody looks inside: its bits are the same whatever
/// is observed.
#[test]
fn values_do_not_depend_on_what_else_is_observed() {
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", &[4, 32]);
    let w = g.weight("w", &[32, 48]);
    let a = g.op("MatMul", &[&x, &w], "a");
    let mean = g.op_with("ReduceMean", &[&a], "mean", &[("axes", Attr::Ints(vec![-1]))]);
    let d = g.op("Sub", &[&a, &mean], "d");
    let squares = g.op("Mul", &[&d, &d], "squares");
    let variance = g.op_with("ReduceMean", &[&squares], "variance", &[("axes", Attr::Ints(vec![-1]))]);
    let epsilon = g.values("epsilon", &[1], &[1e-5]);
    let sum = g.op("Add", &[&variance, &epsilon], "sum");
    let root = g.op("Sqrt", &[&sum], "root");
    let normal = g.op("Div", &[&d, &root], "normal");
    let scale = g.weight("scale", &[48]);
    let y = g.op("Mul", &[&normal, &scale], "y");
    g.output(&y);
    let model = g.build();
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<String>>();
    let all = names(&["y", "x", "a", "mean", "d", "squares", "variance", "sum", "root", "normal"]);
    let (seen, _) = seen_and_outputs(&model, &all, 3);
    for observed in [&["y"][..], &["y", "a"], &["y", "d"], &["y", "normal", "variance"]] {
        let (some, _) = seen_and_outputs(&model, &names(observed), 3);
        assert!(some[0] == seen[0], "{observed:?}");
    }
}

/// Blocks of four nodes; each reads the block before and one far behind it, and a shape that is computed once.
fn blocks(n: usize) -> ModelProto {
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", &[2, 8]);
    let half = g.values("half", &[1], &[0.5]);
    let shape = g.op("Shape", &[&x], "shape");
    let mut last = vec![x];
    for i in 0..n {
        let product = g.op("Mul", &[&last[i], &half], &format!("product{i}"));
        let sum = g.op("Add", &[&product, &last[i.saturating_sub(90)]], &format!("sum{i}"));
        let reshaped = g.op("Reshape", &[&sum, &shape], &format!("reshaped{i}"));
        let negative = if i % 3 == 0 { "Neg" } else { "Relu" };
        last.push(g.op(negative, &[&reshaped], &format!("y{i}")));
    }
    g.output(&last[n]);
    g.build()
}

#[test]
fn a_large_graph_has_the_values_of_its_definition() {
    let n = 300;
    let watched: Vec<String> = std::iter::once("x".to_string()).chain((0..n).map(|i| format!("y{i}"))).collect();
    let (seen, outputs) = seen_and_outputs(&blocks(n), &watched, 5);
    for i in 0..n {
        let far = &seen[i.saturating_sub(90)].1;
        let sums = seen[i].1.iter().zip(far).map(|(x, far)| x * 0.5 + far);
        let expected: Vec<f32> = sums.map(|sum| if i % 3 == 0 { -sum } else { sum.max(0.0) }).collect();
        assert_eq!(seen[i + 1], (vec![2, 8], expected), "block {i}");
    }
    assert_eq!(outputs[0], seen[n].1);
}

/// The model with its float32 initializers as lists of numbers, not as raw bytes.
fn with_lists(mut model: ModelProto) -> ModelProto {
    for tensor in &mut model.graph.as_mut().unwrap().initializer {
        (tensor.float_data, tensor.raw_data) = (tensor::f32_values(tensor).unwrap(), None);
    }
    model
}

/// Weights of 1 MiB, two of them equal, and one that is an output. Lists of numbers are parsed with the model.
#[test]
fn a_large_weight_gives_the_same_bits_as_one_that_is_parsed_with_the_model() {
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", &[2, 512]);
    let first = g.weight("first", &[512, 512]);
    let values = tensor::f32_values(&g.build().graph.unwrap().initializer[0]).unwrap();
    let equal = g.values("equal", &[512, 512], &values);
    let a = g.op("MatMul", &[&x, &first], "a");
    let b = g.op("MatMul", &[&a, &equal], "b");
    let turned = g.op("Transpose", &[&first], "turned");
    let c = g.op("MatMul", &[&b, &turned], "c");
    g.output(&c).output(&first);
    let model = g.build();
    let watched = ["a", "b", "c"].map(str::to_string);
    let (seen, outputs) = seen_and_outputs(&model, &watched, 3);
    assert_eq!(seen_and_outputs(&with_lists(model.clone()), &watched, 3), (seen, outputs.clone()));
    assert_eq!(outputs[1], values);
    let shapes = Parsed::new(&model, &Shapes::new()).unwrap().value_info().unwrap();
    for (name, shape) in [("first", [512, 512]), ("turned", [512, 512]), ("c", [2, 512])] {
        assert_eq!(shapes.shape(name), Some(&shape[..]), "{name}");
    }
}

/// Weights of 144 MiB, which are packed in pieces.
#[test]
fn a_graph_of_many_weights_has_the_values_of_its_definition() {
    const SIDE: usize = 2048;
    let mut g = GraphBuilder::new(17);
    let mut last = g.input("x", &[1, SIDE as i64]);
    for i in 0..9 {
        let weight = g.weight(&format!("w{i}"), &[SIDE, SIDE]);
        last = g.op("MatMul", &[&last, &weight], &format!("y{i}"));
    }
    g.output(&last);
    let model = g.build();
    let watched: Vec<String> = std::iter::once("x".to_string()).chain((0..9).map(|i| format!("y{i}"))).collect();
    let (seen, outputs) = seen_and_outputs(&model, &watched, 5);
    for (i, stored) in model.graph.unwrap().initializer.iter().enumerate() {
        let weight = tensor::f32_values(stored).unwrap();
        let mut sums = vec![0f64; SIDE];
        for (x, row) in seen[i].1.iter().zip(weight.chunks(SIDE)) {
            sums.iter_mut().zip(row).for_each(|(sum, w)| *sum += f64::from(*x) * f64::from(*w));
        }
        let size = sums.iter().fold(0f64, |size, sum| size.max(sum.abs()));
        let near = |(found, sum): (&f32, &f64)| (f64::from(*found) - sum).abs() < 1e-4 * size;
        assert!(seen[i + 1].1.iter().zip(&sums).all(near), "layer {i}");
    }
    assert_eq!(outputs[0], seen[9].1);
}

/// Masks of positions are terms of the engine's symbolic sizes, which it would join anew from node to node.
#[test]
fn many_masks_of_computed_positions_are_built_and_run() {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 4]);
    g.op_with("ReduceMax", &["x"], "largest", &[("keepdims", Attr::Int(0))]);
    g.op_with("Cast", &["largest"], "n", &[("to", Attr::Int(7))]);
    g.tensor(tensor::from_i64("from", &[], &[0]).unwrap());
    g.tensor(tensor::from_i64("step", &[], &[1]).unwrap());
    g.op("Range", &["from", "n", "step"], "positions");
    g.op_with("Cast", &["positions"], "t0", &[("to", Attr::Int(1))]);
    g.scalars(&[("half", 0.5), ("none", 0.0)]);
    let mut sum = "t0".to_string();
    for i in 0..16 {
        g.tensor(tensor::from_i64(&format!("k{i}"), &[], &[i]).unwrap());
        g.op("Greater", &["positions", &format!("k{i}")], &format!("mask{i}"));
        let kept = g.op("Where", &[&format!("mask{i}"), &format!("t{i}"), "none"], &format!("kept{i}"));
        g.op("Mul", &[&format!("t{i}"), "half"], &format!("t{}", i + 1));
        sum = g.op("Add", &[&sum, &kept], &format!("sum{i}"));
    }
    g.output(&sum);
    let y = run(&g.build(), &[1.0, 2.0, 3.0, 4.0]).unwrap();
    // Position p is kept by the masks 0 to p - 1, and halved from each to the next.
    assert_eq!(y, [0.0, 1.0 + 1.0, 2.0 + 2.0 + 1.0, 3.0 + 3.0 + 1.5 + 0.75]);
}
