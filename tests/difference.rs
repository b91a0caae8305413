//! Differences of two quantized networks.

use crate::support::command::{mqq, run};
use crate::support::{GraphBuilder, noise, repository, write_npy};
use mqq::difference::{ConstantValues, Parameters, QuantizedNetwork, QuantizedNode, RemovableNode, differences};
use mqq::onnx::proto::ModelProto;
use prost::Message;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn network(nodes: &[(&str, &str, bool)], tensors: &[(&str, &str, &[f32], i32)]) -> QuantizedNetwork {
    let node = |&(name, op_type, is_quantized): &(&str, &str, bool)| {
        (name.to_string(), QuantizedNode { op_type: op_type.to_string(), is_quantized })
    };
    let tensor = |&(name, dtype, scales, zero_point): &(&str, &str, &[f32], i32)| {
        let parameters =
            Parameters { dtype: dtype.to_string(), scales: scales.to_vec(), zero_points: vec![zero_point] };
        (name.to_string(), parameters)
    };
    let (nodes, tensors) = (nodes.iter().map(node).collect(), tensors.iter().map(tensor).collect());
    QuantizedNetwork { nodes, tensors, ..Default::default() }
}

#[test]
fn every_kind_of_difference_is_found() {
    let a = network(
        &[("conv", "Conv", true), ("add", "Add", true), ("bn", "BatchNormalization", false)],
        &[
            ("x", "int8", &[0.5], 0),
            ("same", "int8", &[1.0], 3),
            ("w", "int8", &[1.0, 2.0], 0),
            ("t", "uint8", &[1.0], 0),
        ],
    );
    let b = network(
        &[("conv", "Conv", true), ("add", "Add", false), ("relu", "Relu", false)],
        &[
            ("x", "int8", &[0.25], 1),
            ("same", "int8", &[1.0], 3),
            ("w", "int8", &[1.0, 8.0], 0),
            ("u", "int8", &[1.0], 0),
        ],
    );
    let found = differences(&a, &b);
    assert_eq!((found.n_same, found.is_empty()), (1, false));
    assert_eq!((&found.quantized_only.a[..], found.quantized_only.b.len()), (&["add".to_string()][..], 0));
    assert_eq!((&found.nodes_only.a[0], &found.nodes_only.b[0]), (&"bn".to_string(), &"relu".to_string()));
    assert_eq!((&found.tensors_only.a[0], &found.tensors_only.b[0]), (&"t".to_string(), &"u".to_string()));
    // The largest factor first, in either direction.
    let moved: Vec<(&str, f64, [usize; 2])> =
        found.scales.iter().map(|it| (it.tensor.as_str(), it.factor, it.n_channels)).collect();
    assert_eq!(moved, [("w", 4.0, [1, 2]), ("x", 0.5, [1, 1])]);
    assert_eq!(found.scales[1].zero_points, [0, 1]);
    let add = found.operators.iter().find(|it| it.op_type == "Add").unwrap();
    assert_eq!((add.n_nodes, add.n_quantized), ([1, 1], [1, 0]));
    assert!(differences(&a, &a).is_empty());
}

#[test]
fn another_type_or_granularity_is_a_difference_of_types() {
    let of = |dtype: &str, scales: &[f32]| network(&[], &[("w", dtype, scales, 0)]);
    let types =
        |a: &QuantizedNetwork, b: &QuantizedNetwork| differences(a, b).types.first().map(|it| it.types.join(" -> "));
    assert_eq!(types(&of("int8", &[1.0]), &of("uint8", &[1.0])).unwrap(), "int8 -> uint8");
    assert_eq!(types(&of("int8", &[1.0]), &of("int8", &[1.0, 2.0])).unwrap(), "int8 -> int8 per channel");
    assert_eq!(types(&of("int8", &[1.0]), &of("int8", &[2.0])), None);
}

#[test]
fn a_model_quantizes_in_front_of_nodes_that_were_removed() {
    let of = |tensors: &[(&str, f32)]| {
        let tensors: Vec<_> = tensors.iter().map(|(name, scale)| (*name, "uint8", [*scale])).collect();
        let tensors: Vec<(&str, &str, &[f32], i32)> =
            tensors.iter().map(|(name, dtype, scale)| (*name, *dtype, &scale[..], 0)).collect();
        network(&[], &tensors)
    };
    let mut sidecar = of(&[("relu", 0.5), ("t", 1.0)]);
    let removable = RemovableNode { node: "act".to_string(), in_front: "conv".to_string() };
    sidecar.removable.insert("relu".to_string(), removable);
    for other in [of(&[("conv", 0.5), ("t", 1.0)]), of(&[("relu", 0.5), ("t", 1.0)])] {
        assert!(differences(&sidecar, &other).is_empty() && differences(&other, &sidecar).is_empty());
    }
    // Where the other quantizes both, the names are what they are.
    assert_eq!(differences(&sidecar, &of(&[("conv", 0.5), ("relu", 0.5), ("t", 1.0)])).tensors_only.b, ["conv"]);
}

#[test]
fn of_two_models_one_may_have_removed_a_node() {
    let of = |nodes: &[(&str, &str, bool)], tensor: &str| {
        let mut of = network(nodes, &[(tensor, "uint8", &[0.5], 0)]);
        let removable = RemovableNode { node: "act".to_string(), in_front: "conv".to_string() };
        of.removable.extend((!nodes.is_empty()).then_some(("relu".to_string(), removable)));
        of
    };
    let node = ("act", "Relu", false);
    let (kept, removed) = (of(&[node], "relu"), of(&[], "conv"));
    let found = differences(&kept, &removed);
    assert_eq!(
        (found.n_same, found.tensors_only.is_empty(), &found.nodes_only.a[..]),
        (1, true, &["act".to_string()][..])
    );
    assert!(differences(&removed, &kept).tensors_only.is_empty());
    // Both have the node, and quantize on other sides of it.
    let found = differences(&kept, &of(&[node], "conv"));
    assert_eq!((&found.tensors_only.a[0], &found.tensors_only.b[0]), (&"relu".to_string(), &"conv".to_string()));
}

#[test]
fn a_model_and_its_sidecar_say_the_same_where_nodes_are_removed_or_have_no_name() {
    let folder = TempDir::new().unwrap();
    let mut graph = GraphBuilder::new(17);
    let x = graph.input("x", &[1, 3, 8, 8]);
    let a = graph.conv(&x, 3, 4, 3, 1, "a");
    let a = graph.op("Relu", &[&a], "r");
    let half = graph.values("half", &[], &[0.5]);
    let a = graph.op("Mul", &[&a, &half], "m");
    let y = graph.conv(&a, 4, 4, 1, 1, "y");
    graph.output(&y);
    let mut unnamed = graph.build();
    unnamed.graph.as_mut().unwrap().node.iter_mut().for_each(|node| node.name = None);
    for (name, model) in [("named", graph.build()), ("unnamed", unnamed)] {
        let at = |name: &str| folder.path().join(name);
        fs::write(at(&format!("{name}.onnx")), model.encode_to_vec()).unwrap();
        write_npy(&at("x.npy"), &[16, 3, 8, 8], &noise(16 * 192, 2));
        for backend in ["qnn-htp", "tflite", "onnxruntime", "openvino"] {
            let mut command = mqq();
            command.current_dir(folder.path()).args(["calibrate", &format!("{name}.onnx"), "-b", backend]);
            run(command.args(["--data", "x.npy", "--effort", "0"])).done();
            let [model, sidecar] = ["onnx", "json"].map(|extension| format!("{name}.{backend}.{extension}"));
            let mut command = mqq();
            command.current_dir(folder.path()).args(["diff", &model, &sidecar, "--fail-on-difference"]);
            let ran = run(&mut command);
            assert_eq!(ran.code, 0, "{}", ran.stdout);
        }
    }
}

/// Calibrates the bundled model into a folder.
fn calibrated(folder: &Path, name: &str, options: &[&str]) -> [std::path::PathBuf; 2] {
    let out = folder.join(name);
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["--effort", "0", "--quiet"]);
    command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess", "half", "--out-dir"]).arg(&out);
    run(command.args(options)).done();
    ["onnx", "json"].map(|extension| out.join(format!("digits_cnn.onnxruntime.{extension}")))
}

#[test]
fn models_and_sidecars_are_compared_in_any_mix() {
    let folder = TempDir::new().unwrap();
    let [model, sidecar] = calibrated(folder.path(), "one", &["--backend", "onnxruntime"]);
    let max = ["--backend", "onnxruntime", "--observer", "max", "--exclude", "/branch_1/branch_1.0/Conv"];
    let [other, other_sidecar] = calibrated(folder.path(), "other", &max);
    let diff = |a: &Path, b: &Path| -> (i32, Value) {
        let ran = run(mqq().arg("diff").args([a, b]).args(["--json", "--fail-on-difference"]));
        (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}{}", ran.stdout, ran.stderr)))
    };
    // A model and its own sidecar say the same.
    let (code, same) = diff(&model, &sidecar);
    assert_eq!(code, 0, "{same:#}");
    assert!(same["n_same"].as_u64().unwrap() > 25, "{same:#}");
    let (code, of_models) = diff(&model, &other);
    assert_eq!(code, 3);
    assert_eq!(of_models["quantized_only"]["a"], serde_json::json!(["/branch_1/branch_1.0/Conv"]));
    assert!(!of_models["scales"].as_array().unwrap().is_empty());
    let factors: Vec<f64> =
        of_models["scales"].as_array().unwrap().iter().map(|it| it["factor"].as_f64().unwrap().ln().abs()).collect();
    assert!(factors.windows(2).all(|pair| pair[0] >= pair[1]), "{factors:?}");
    for (a, b) in [(&sidecar, &other_sidecar), (&model, &other_sidecar)] {
        let (_, mixed) = diff(a, b);
        for key in ["quantized_only", "scales", "types", "tensors_only", "n_same"] {
            assert_eq!(mixed[key], of_models[key], "{key}");
        }
    }
    let ran = run(mqq().arg("diff").args([&model, &other])).done();
    assert!(
        ran.stdout.contains("\nquantized in the first only: 1 node\n  /branch_1/branch_1.0/Conv\n"),
        "{}",
        ran.stdout
    );
}

#[test]
fn constants_with_other_values_are_differences() {
    let of = |hash: u64, data_type: i32, scale: f32| {
        let mut of = network(&[("conv", "Conv", true)], &[("conv weight", "int8", &[scale], 0)]);
        let values = ConstantValues { data_type, shape: vec![4, 3, 3, 3], hash };
        of.values = [("conv weight".to_string(), values)].into();
        of
    };
    let one = of(1, 3, 0.5);
    assert_eq!(differences(&one, &of(2, 3, 0.5)).values, ["conv weight"]);
    assert!(differences(&one, &of(1, 3, 0.5)).is_empty());
    // The scale or the type differs already.
    assert!(differences(&one, &of(2, 3, 0.25)).values.is_empty() && differences(&one, &of(2, 1, 0.5)).is_empty());

    let folder = TempDir::new().unwrap();
    let [model, sidecar] = calibrated(folder.path(), "one", &["--backend", "onnxruntime"]);
    let mut changed = ModelProto::decode(&fs::read(&model).unwrap()[..]).unwrap();
    let initializers = &mut changed.graph.as_mut().unwrap().initializer;
    let weight = initializers.iter_mut().find(|it| matches!(it.data_type(), 2 | 3) && it.dims.len() == 4).unwrap();
    let mut bytes = weight.raw_data.take().unwrap().to_vec();
    bytes[0] ^= 1;
    weight.raw_data = Some(bytes.into());
    let other = folder.path().join("other.onnx");
    fs::write(&other, changed.encode_to_vec()).unwrap();
    let ran = run(mqq().arg("diff").args([&model, &other]).arg("--fail-on-difference"));
    assert_eq!(ran.code, 3, "{}", ran.stdout);
    assert!(ran.stdout.contains("\nother values: 1 tensor\n  ") && ran.stdout.contains(" weight\n"), "{}", ran.stdout);
    let ran = run(mqq().arg("diff").args([&sidecar, &other]).arg("--fail-on-difference"));
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert!(ran.stdout.contains("values of weights and biases are not compared, because a sidecar has none"));
}

#[test]
fn a_float_model_is_refused() {
    let float = repository("fixtures/digits_cnn.onnx");
    let ran = run(mqq().arg("diff").args([&float, &float]));
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("has no quantized tensor, expected a quantized model or a sidecar"), "{}", ran.stderr);
}
