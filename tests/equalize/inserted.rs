//! Channel scales by inserted Muls, where no node can take them up.

use super::{calibrate, factors, same_bits};
use crate::support::command::{mqq, run};
use crate::support::{Attr, GraphBuilder, noise, outputs, repository, value_info};
use mqq::backends;
use mqq::equalize::{groups_of_inserted, insertable, with_inserted};
use mqq::onnx::edit::{InsertedMul, edited};
use mqq::onnx::proto::ModelProto;
use mqq::place::{Placement, Selection, place};
use prost::Message;
use std::path::Path;
use tempfile::TempDir;

const N: usize = 16;

/// How far channel `c` reaches.
fn reach(c: usize) -> f32 {
    ((c * 5 % 9) as f32 - 4.0).exp2()
}

/// A convolution whose channels reach unlike, SiLU, and a depthwise convolution with a Relu behind it.
fn silu_network() -> ModelProto {
    network(|g| _ = g.op("Relu", &["b"], "r"))
}

/// The same with SiLU behind both convolutions.
fn gated_network() -> ModelProto {
    network(|g| {
        g.ops("t = Sigmoid b; r = Mul b t");
    })
}

/// The same with something else behind the depthwise convolution.
fn network(behind: fn(&mut GraphBuilder)) -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 32, 32]);
    let wide = noise(N * 27, 1);
    let wide: Vec<f32> = wide.iter().enumerate().map(|(i, w)| w * 2.0 * reach(i / 27)).collect();
    g.values("first", &[N, 3, 3, 3], &wide);
    g.op_with("Conv", &["x", "first"], "a", &[("pads", Attr::Ints(vec![1; 4]))]);
    g.ops("s = Sigmoid a; gated = Mul a s");
    let narrow = noise(N * 9, 2);
    let narrow: Vec<f32> = narrow.iter().enumerate().map(|(i, w)| w / reach(i / 9)).collect();
    g.values("depthwise", &[N, 1, 3, 3], &narrow);
    g.op_with("Conv", &["gated", "depthwise"], "b", &[("group", Attr::Int(N as i64))]);
    behind(&mut g);
    g.conv("r", N, 4, 1, 1, "y");
    g.output("y").build()
}

fn placed(model: &ModelProto, selection: &Selection) -> Placement {
    let scheme = backends::resolve("tensorrt").unwrap();
    place(model.graph.as_ref().unwrap(), &with_inserted(value_info(model), &[]), &scheme, selection)
}

#[test]
fn a_mul_takes_scales_where_no_other_node_can_and_keeps_float_outputs_bit_for_bit() {
    let model = silu_network();
    let known = value_info(&model);
    let placement = placed(&model, &Selection::default());
    let muls = insertable(model.graph.as_ref().unwrap(), &known, &placement);
    let readers: Vec<(&str, &[String])> = muls.iter().map(|mul| (mul.tensor.as_str(), &mul.readers[..])).collect();
    assert_eq!(readers, [("gated", &["b".to_string()][..])]);
    let known = with_inserted(known, &muls);
    let (with_muls, groups) = groups_of_inserted(&model, &known, &muls).unwrap();
    let of_mul: Vec<_> = groups.iter().filter(|group| group.tensors.contains_key(&muls[0].output)).collect();
    let [group] = of_mul.as_slice() else { panic!("{groups:?}") };
    let scaled = edited(&with_muls, &group.edits(&factors(N, 0)).unwrap()).unwrap();
    assert!(scaled != with_muls);
    let names = muls.iter().flat_map(InsertedMul::names).cloned().collect();
    let of_scaled = place(
        scaled.graph.as_ref().unwrap(),
        &known,
        &backends::resolve("tensorrt").unwrap(),
        &Selection { scaling: names, ..Selection::default() },
    );
    let tensors = |placement: &Placement| placement.activations.iter().map(|q| q.tensor.clone()).collect::<Vec<_>>();
    assert_eq!(tensors(&placement), ["x", "gated", "r"]);
    assert_eq!(tensors(&of_scaled), ["x", "gated_scaled", "r"]);
    for seed in 0..3 {
        let (plain, scaled) = (outputs(&model, seed), outputs(&scaled, seed));
        assert!(plain.iter().zip(&scaled).all(|(a, b)| same_bits(a, b)));
    }
}

/// Outcomes of the methods in a run with `insert-scales`.
fn inserted(model: &Path, output: &Path, extra: &[&str]) -> serde_json::Value {
    let extra = [&["--methods", "insert-scales"], extra].concat();
    calibrate(model, "tensorrt", output, &extra)["methods"].clone()
}

#[test]
fn inserted_scales_pay_are_written_and_made_again() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("silu.onnx");
    std::fs::write(&model, silu_network().encode_to_vec()).unwrap();
    let output = folder.path().join("one.onnx");
    let outcome = inserted(&model, &output, &["--threads", "1", "--emit", "deploy"])[0].clone();
    assert_eq!(outcome["accepted"], true, "{outcome}");
    let db = |at: usize| outcome["judged"]["sqnr_db"][at].as_f64().unwrap();
    assert!(db(1) > db(0) + 6.0, "{outcome}");
    assert_eq!(outcome["details"][0], "1 Mul inserted, 16,384 multiplications per sample; chosen on 32 samples");
    let written = ["onnx", "json", "deploy.onnx"].map(|suffix| std::fs::read(output.with_extension(suffix)).unwrap());
    let graph = ModelProto::decode(&written[0][..]).unwrap().graph.unwrap();
    let muls = graph.node.iter().filter(|node| node.name() == "gated_scaled");
    assert_eq!(muls.map(|node| node.op_type()).collect::<Vec<_>>(), ["Mul"]);
    let sidecar: serde_json::Value = serde_json::from_slice(&written[1]).unwrap();
    assert_eq!(sidecar["edits"][0]["insert_mul"]["readers"][0], "b");
    // The same bytes on two threads, and by an export from the sidecar.
    let again = folder.path().join("two.onnx");
    inserted(&model, &again, &["--threads", "2", "--emit", "deploy"]);
    assert!(std::fs::read(&again).unwrap() == written[0]);
    let mut text = mqq();
    text.arg("calibrate").arg(&model).args(["-b", "tensorrt", "--methods", "insert-scales", "--preprocess", "half"]);
    text.arg("--data").arg(repository("calib_data/calib")).arg("-o").arg(folder.path().join("text.onnx"));
    let ran = run(&mut text);
    assert!(ran.stdout.contains("1 Mul (inserted to scale channels)"), "{}", ran.stdout);
    let exported = folder.path().join("exported.onnx");
    let mut command = mqq();
    command.arg("export").arg(output.with_extension("json")).args(["--format", "deploy", "-o"]).arg(&exported);
    run(command.arg("--model").arg(&model)).done();
    assert!(std::fs::read(&exported).unwrap() == written[2]);
}

#[test]
fn nothing_is_inserted_where_that_is_forbidden_or_the_table_takes_none() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("silu.onnx");
    std::fs::write(&model, silu_network().encode_to_vec()).unwrap();
    let output = folder.path().join("out.onnx");
    assert_eq!(inserted(&model, &output, &["--no-insert"]), serde_json::json!([]));
    let summary = calibrate(&model, "qnn-htp", &output, &["--methods", "insert-scales"]);
    assert_eq!(summary["methods"], serde_json::json!([]));
}

#[test]
fn first_layers_whose_quantized_outputs_a_gate_reads_stay_float() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("silu.onnx");
    std::fs::write(&model, gated_network().encode_to_vec()).unwrap();
    let output = folder.path().join("out.onnx");
    let run = |backend: &str, extra: &[&str]| {
        let extra = [&["--methods", "keep-first"], extra].concat();
        let summary = calibrate(&model, backend, &output, &extra);
        let model = ModelProto::decode(&std::fs::read(&output).unwrap()[..]).unwrap();
        let first = model.graph.unwrap().node.into_iter().find(|node| node.name() == "Conv_a").unwrap();
        (summary["methods"].clone(), first.input[0] == "x")
    };
    let (methods, is_float) = run("onnxruntime", &[]);
    assert!(is_float && methods[1]["accepted"] == true, "{methods}");
    assert_eq!((&methods[0]["variant"], &methods[1]["variant"]), (&"Conv_a".into(), &"Conv_a, Conv_b".into()));
    let db = |at: usize| methods[1]["judged"]["sqnr_db"][at].as_f64().unwrap();
    assert!(db(1) > db(0) + 3.0, "{methods}");
    // No gate reads a quantized output there; and precisions that a goal chooses are its own.
    for (backend, extra) in [("tensorrt", &[][..]), ("onnxruntime", &["--keep-float", "0"])] {
        let (methods, is_float) = run(backend, extra);
        assert_eq!((methods, is_float), (serde_json::json!([]), false), "{backend}");
    }
}

#[test]
fn first_layers_get_wider_types_between_conversions_on_a_target_without_float() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("silu.onnx");
    std::fs::write(&model, gated_network().encode_to_vec()).unwrap();
    let output = folder.path().join("one.onnx");
    let run_once = |backend: &str, output: &Path, extra: &[&str]| {
        let extra = [&["--methods", "keep-first", "--emit", "deploy"], extra].concat();
        calibrate(&model, backend, output, &extra)["methods"].clone()
    };
    let methods = run_once("qnn-htp", &output, &["--threads", "1"]);
    assert_eq!(
        (&methods[1]["variant"], &methods[1]["accepted"]),
        (&"Conv_a, Conv_b".into(), &true.into()),
        "{methods}"
    );
    assert_eq!(methods[1]["details"][0], "2 layers in a region of wider types, 2 conversions at its borders");
    let db = |at: usize| methods[1]["judged"]["sqnr_db"][at].as_f64().unwrap();
    assert!(db(1) > db(0) + 3.0, "{methods}");
    let written = ["onnx", "json", "deploy.onnx"].map(|suffix| std::fs::read(output.with_extension(suffix)).unwrap());
    let quantized = ModelProto::decode(&written[0][..]).unwrap();
    assert_eq!(quantized.opset_import[0].version(), 21);
    let graph = quantized.graph.unwrap();
    let of_type = |op_type: &str| graph.node.iter().filter(|node| node.op_type() == op_type).collect::<Vec<_>>();
    assert!(of_type("Identity").is_empty());
    let dequantized = |tensor: &String| of_type("DequantizeLinear").iter().any(|node| node.output[0] == *tensor);
    let conversions: Vec<_> =
        of_type("QuantizeLinear").iter().filter(|node| dequantized(&node.input[0])).map(|node| node.name()).collect();
    assert_eq!(conversions, ["x_converted_QuantizeLinear", "r_converted_QuantizeLinear"]);
    let data_type = |tensor: &str| {
        let name = format!("{tensor}_zero_point");
        graph.initializer.iter().find(|stored| *stored.name() == name).unwrap().data_type()
    };
    let types: Vec<i32> = ["x", "x_converted", "a", "gated", "r", "r_converted", "y"].map(data_type).to_vec();
    assert_eq!(types, [2, 4, 4, 4, 4, 2, 2]);
    let sidecar: serde_json::Value = serde_json::from_slice(&written[1]).unwrap();
    let copy = serde_json::json!({"insert_copy": {"tensor": "r", "output": "r_converted", "readers": ["y"]}});
    assert!(sidecar["edits"].as_array().unwrap().contains(&copy), "{}", sidecar["edits"]);
    // The same bytes on two threads, and by an export from the sidecar.
    let again = folder.path().join("two.onnx");
    run_once("qnn-htp", &again, &["--threads", "2"]);
    assert!(std::fs::read(&again).unwrap() == written[0]);
    let exported = folder.path().join("exported.onnx");
    let mut command = mqq();
    command.arg("export").arg(output.with_extension("json")).args(["--format", "deploy", "-o"]).arg(&exported);
    run(command.arg("--model").arg(&model)).done();
    assert!(std::fs::read(&exported).unwrap() == written[2]);
    // Only in a table with a region.
    assert_eq!(run_once("qnn-htp", &again, &["--set", "wider=null", "--set", "region=null"]), serde_json::json!([]));
    assert_eq!(run_once("tflite", &again, &[]), serde_json::json!([]));
}
