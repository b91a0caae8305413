//! Models with open dimensions for targets that take none.

use crate::support::command::{mqq, run};
use crate::support::{GraphBuilder, repository};
use mqq::backends;
use mqq::diag::explain;
use mqq::onnx::inputs::Shapes;
use mqq::onnx::proto::{Dimension, ModelProto, TensorShapeProto, ValueInfoProto};
use mqq::onnx::{self, tensor};
use mqq::prepare::{PreparedGraph, prepare_file};
use mqq::scheme::Scheme;
use std::fs;
use tempfile::TempDir;

fn set_shape(value: &mut ValueInfoProto, dims: &[&str]) {
    let dim = |text: &&str| match text.parse() {
        Ok(n) => Dimension { dim_value: Some(n), ..Default::default() },
        Err(_) => Dimension { dim_param: Some(text.to_string()), ..Default::default() },
    };
    let tensor = value.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
    tensor.shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
}

fn dims(value: &ValueInfoProto) -> Vec<i64> {
    let shape = value.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().shape.as_ref();
    shape.unwrap().dim.iter().map(|dim| dim.dim_value.unwrap_or(-1)).collect()
}

/// Two images `[N, 3, H, W]` and `[N, 3, H, W]`, their sum through a Conv, flattened by a Reshape to `target`.
fn two_inputs(target: &[i64]) -> ModelProto {
    let mut g = GraphBuilder::new(13);
    g.input("a", &[]);
    g.input("b", &[]);
    g.op("Add", &["a", "b"], "sum");
    g.conv("sum", 3, 4, 3, 1, "c");
    let target = tensor::from_i64("target", &[target.len()], target).unwrap();
    g.tensor(target);
    g.op("Reshape", &["c", "target"], "y");
    let mut model = g.output("y").build();
    let graph = model.graph.as_mut().unwrap();
    let mut c = graph.input[0].clone();
    c.name = Some("c".into());
    set_shape(&mut c, &["N", "4", "?h", "?w"]);
    graph.value_info.push(c);
    set_shape(&mut graph.input[0], &["N", "3", "H", "W"]);
    set_shape(&mut graph.input[1], &["N", "3", "H", "W"]);
    set_shape(&mut graph.output[0], &["N", "?"]);
    model
}

fn prepared(model: &ModelProto, shapes: &[(&str, &[usize])]) -> Result<PreparedGraph, String> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.onnx");
    onnx::save(model, &path).unwrap();
    let shapes: Shapes = shapes.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect();
    let scheme = Scheme { static_shapes: true, ..backends::resolve("onnxruntime").unwrap() };
    prepare_file(&path, &scheme, &[], &shapes).map_err(|error| explain(&error))
}

#[test]
fn what_is_given_for_one_input_holds_wherever_its_dimensions_stand() {
    let prepared = prepared(&two_inputs(&[0, -1]), &[("b", &[2, 3, 8, 6])]).unwrap();
    let fixed = prepared.fixed_shapes();
    let graph = prepared.model.graph.unwrap();
    assert_eq!(dims(&graph.input[0]), [2, 3, 8, 6]);
    assert_eq!(dims(&graph.input[1]), [2, 3, 8, 6]);
    assert_eq!(dims(&graph.value_info[0]), [2, 4, 8, 6]);
    assert_eq!(dims(&graph.output[0]), [2, 4 * 8 * 6]);
    assert_eq!(
        fixed,
        ["input `a`: shape [N, 3, H, W] is now [2, 3, 8, 6]", "input `b`: shape [N, 3, H, W] is now [2, 3, 8, 6]",]
    );
    let values = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
    let shapes = values.map(|value| format!("{value:?}"));
    shapes.for_each(|text| assert!(!text.contains("dim_param: Some"), "{text}"));
}

#[test]
fn an_open_batch_is_1_and_other_open_dimensions_are_asked_for() {
    let mut model = two_inputs(&[1, -1]);
    let message = prepared(&model, &[]).err().unwrap();
    assert!(message.contains("input `a` has the shape [?, 3, ?, ?]"), "{message}");
    assert!(message.contains("hint: fix them, for instance --shape a=1x3x224x224 --shape b=1x3x224x224"), "{message}");
    for input in &mut model.graph.as_mut().unwrap().input {
        set_shape(input, &["N", "3", "8", "8"]);
    }
    let prepared = prepared(&model, &[]).unwrap();
    assert_eq!(prepared.fixed_shapes().len(), 2);
    assert_eq!(dims(&prepared.model.graph.unwrap().output[0]), [1, 256]);
}

#[test]
fn contradictions_are_errors() {
    let model = two_inputs(&[0, -1]);
    let message = prepared(&model, &[("a", &[2, 3, 8, 8]), ("b", &[4, 3, 8, 8])]).err().unwrap();
    assert!(message.contains("dimension `N` is 4 for input `b` and 2 for `a`"), "{message}");
    // A Reshape to another batch is no model for these shapes.
    let other = two_inputs(&[1, 256]);
    let prepared = prepared(&other, &[("a", &[2, 3, 8, 8])]).unwrap();
    assert!(prepared.parsed.is_err());
}

#[test]
fn models_without_open_dimensions_and_other_tables_stay_as_they_are() {
    let scheme = backends::resolve("onnxruntime").unwrap();
    let fixture = repository("fixtures/digits_cnn.onnx");
    let left = prepare_file(&fixture, &scheme, &[], &Shapes::default()).unwrap();
    assert!(left.fixed_shapes().is_empty());
    assert_eq!(dims(&left.model.graph.unwrap().input[0])[0], -1);
    let mut fixed = two_inputs(&[0, -1]);
    for input in &mut fixed.graph.as_mut().unwrap().input {
        set_shape(input, &["2", "3", "8", "8"]);
    }
    assert!(prepared(&fixed, &[]).unwrap().fixed_shapes().is_empty());
}

#[test]
fn the_written_model_is_static_and_export_gives_the_same_graph() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let calibrate = |backend: &str, extra: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", backend]);
        command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess", "half"]);
        command.args(["--limit", "16", "--emit", "deploy", "-o"]).arg(at("q.onnx")).args(extra);
        run(&mut command).done()
    };
    let graph = |name: &str| onnx::load(&at(name)).unwrap().graph.unwrap();
    let ran = calibrate("qnn-htp", &[]);
    assert_eq!(ran.stderr, "");
    assert!(ran.stdout.contains("shapes     input `input`: shape ["), "{}", ran.stdout);
    assert_eq!(dims(&graph("q.onnx").input[0]), [1, 3, 32, 32]);
    assert_eq!(dims(&graph("q.onnx").output[0]), [1, 10]);
    let mut command = mqq();
    command.arg("export").arg(at("q.json")).args(["--format", "deploy", "--model"]);
    command.arg(repository("fixtures/digits_cnn.onnx")).arg("-o").arg(at("again.onnx"));
    run(&mut command).done();
    assert!(fs::read(at("q.deploy.onnx")).unwrap() == fs::read(at("again.onnx")).unwrap());
    assert_eq!(dims(&graph("again.onnx").input[0]), [1, 3, 32, 32]);

    calibrate("tensorrt", &[]);
    assert_eq!(dims(&graph("q.onnx").input[0])[0], -1);
    calibrate("tensorrt", &["--static-shapes", "--shape", "input=4x3x32x32"]);
    assert_eq!(dims(&graph("q.onnx").input[0]), [4, 3, 32, 32]);
    assert_eq!(dims(&graph("q.onnx").output[0]), [4, 10]);
}
