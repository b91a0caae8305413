//! Precision of single layers: the layers that a goal chooses, the files that are written, and those that are not where
//! the goal is missed.

use crate::support::command::{Ran, mqq, run};
use crate::support::{GraphBuilder, noise, repository, write_npy};
use mqq::onnx;
use mqq::onnx::proto::{GraphProto, ModelProto};
use mqq::sidecar::Sidecar;
use prost::Message;
use serde_json::Value as Json;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FIXTURE: &str = "fixtures/digits_cnn.onnx";

/// `mqq calibrate` of the bundled model to `output`.
fn calibrate(backend: &str, output: &Path, extra: &[&str]) -> Ran {
    let mut command = mqq();
    command.arg("calibrate").arg(repository(FIXTURE)).args(["-b", backend, "--json"]);
    command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess", "half"]);
    run(command.arg("-o").arg(output).args(extra))
}

/// A run that succeeds: the path of the model, what `--json` says of the choice, the sidecar.
fn done(folder: &TempDir, name: &str, backend: &str, extra: &[&str]) -> (PathBuf, Json, Json) {
    let output = folder.path().join(format!("{name}.onnx"));
    let ran = calibrate(backend, &output, extra);
    assert_eq!(ran.code, 0, "{backend} {extra:?}: {}", ran.stderr);
    let report: Json = ran.json();
    let sidecar = fs::read_to_string(output.with_extension("json")).unwrap();
    let sidecar: Json = serde_json::from_str(&sidecar).unwrap();
    let mixed = report["results"][0]["summary"]["mixed_precision"].clone();
    assert_eq!(mixed, sidecar["mixed_precision"], "stdout and sidecar differ");
    (output, mixed, sidecar)
}

fn graph(path: &Path) -> GraphProto {
    onnx::load_whole(path).unwrap().model.graph.unwrap()
}

fn number(value: &Json) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn texts<'j>(list: &'j Json, key: &str) -> Vec<&'j str> {
    list.as_array().unwrap().iter().map(|entry| entry[key].as_str().unwrap()).collect()
}

/// The operator that makes the weight of the node of this name.
fn weight_from(graph: &GraphProto, name: &str) -> String {
    let node = graph.node.iter().find(|node| node.name() == name).unwrap();
    let producer = graph.node.iter().find(|other| other.output.contains(&node.input[1]));
    producer.map_or("none".into(), |producer| producer.op_type().to_string())
}

#[test]
fn the_chosen_layers_are_written_as_if_they_had_been_excluded() {
    let folder = TempDir::new().unwrap();
    for (backend, effort) in [("tensorrt", "0"), ("onnxruntime", "0"), ("openvino", "0")] {
        let extra = ["--effort", effort, "--keep-float", "2"];
        let (kept, mixed, sidecar) = done(&folder, "kept", backend, &extra);
        let names = texts(&mixed["layers"], "layer");
        assert_eq!(names.len(), 2, "{backend}: {mixed}");
        let mut extra = vec!["--effort", effort];
        names.iter().for_each(|name| extra.extend(["--exclude", *name]));
        let (excluded, none, _) = done(&folder, "excluded", backend, &extra);
        assert!(none.is_null());
        assert!(fs::read(&kept).unwrap() == fs::read(&excluded).unwrap(), "{backend}: {names:?}");
        let (plain, ..) = done(&folder, "plain", backend, &["--effort", effort]);
        let floats = sidecar["float_nodes"].as_array().unwrap();
        for name in &names {
            assert_eq!(weight_from(&graph(&plain), name), "DequantizeLinear", "{backend}: {name}");
            assert_ne!(weight_from(&graph(&kept), name), "DequantizeLinear", "{backend}: {name}");
            let float = floats.iter().find(|float| float["node"] == *name).unwrap();
            assert_eq!(float["rule"], "mixed_precision");
            let start = "kept float by --keep-float 2: quantizing only this layer leaves an SQNR of ";
            assert!(float["reason"].as_str().unwrap().starts_with(start), "{float}");
        }
    }
}

#[test]
fn measuring_alone_changes_nothing_and_ranks_every_layer() {
    let folder = TempDir::new().unwrap();
    let (measured, mixed, sidecar) = done(&folder, "measured", "tensorrt", &["--keep-float", "0"]);
    let (plain, ..) = done(&folder, "plain", "tensorrt", &[]);
    assert!(fs::read(&measured).unwrap() == fs::read(&plain).unwrap());
    assert_eq!(mixed["curve"].as_array().unwrap().len(), 1);
    // The key that schema 2.0 had is read.
    let text = sidecar.to_string();
    let version = sidecar["schema_version"].to_string();
    let earlier = text.replace("\"n_held_out\"", "\"n_judges\"").replace(&version, "\"2.0\"");
    assert!(earlier.contains("\"schema_version\":\"2.0\""), "{earlier}");
    let n_held_out = |text: &str| Sidecar::from_json(text).unwrap().mixed_precision.unwrap().n_held_out;
    assert!(earlier != text && n_held_out(&earlier) == n_held_out(&text));
    let sensitivity = mixed["sensitivity"].as_array().unwrap();
    let alone: Vec<f64> = sensitivity.iter().map(|layer| number(&layer["sqnr_db"])).collect();
    assert!(alone.is_sorted(), "{alone:?}");
    // One layer is less noise than all of them.
    assert!(alone[0] > number(&mixed["curve"][0]["sqnr_db"]) - 1.0, "{mixed}");
    let names = texts(&mixed["sensitivity"], "layer");
    for encoding in sidecar["param_encodings"].as_array().unwrap() {
        for consumer in encoding["consumers"].as_array().unwrap() {
            assert!(names.contains(&consumer.as_str().unwrap()), "{consumer} was not ranked");
        }
    }
}

#[test]
fn the_curve_begins_with_the_plain_plan_and_rises() {
    let folder = TempDir::new().unwrap();
    let (_, measured, _) = done(&folder, "measured", "onnxruntime", &["--keep-float", "0"]);
    let (_, mixed, _) = done(&folder, "kept", "onnxruntime", &["--keep-float", "5"]);
    let curve = mixed["curve"].as_array().unwrap();
    assert_eq!(curve.len(), 6);
    assert_eq!(curve[0], measured["curve"][0]);
    assert!(curve[0].get("layer").is_none());
    for (n, pair) in curve.windows(2).enumerate() {
        let db = [number(&pair[0]["sqnr_db"]), number(&pair[1]["sqnr_db"])];
        assert!(db[1] > db[0] - 0.5, "{n}: {db:?}");
        assert_eq!(pair[1]["n_layers"], n + 1);
        assert!(number(&pair[1]["weight_bits"]) >= number(&pair[0]["weight_bits"]));
    }
    assert!(number(&curve[5]["sqnr_db"]) > number(&curve[0]["sqnr_db"]) + 4.0, "{curve:?}");
    assert_eq!(texts(&mixed["layers"], "layer"), texts(&Json::from(&curve[1..]), "layer"));
    // The first choice is the most sensitive layer.
    assert_eq!(mixed["layers"][0]["layer"], mixed["sensitivity"][0]["layer"]);
}

#[test]
fn a_target_is_reached_by_the_model_that_is_written() {
    let folder = TempDir::new().unwrap();
    for (effort, target) in [("0", "34"), ("1", "38")] {
        let extra = ["--effort", effort, "--target-sqnr", target];
        let (output, mixed, _) = done(&folder, "out", "tensorrt", &extra);
        let target: f64 = target.parse().unwrap();
        assert!(mixed["met"] == true && number(&mixed["sqnr_db"]) >= target, "{mixed}");
        assert_eq!(mixed["goal"]["target-sqnr"], target);
        let curve = mixed["curve"].as_array().unwrap();
        assert!(curve.len() > 1 && number(&curve[curve.len() - 2]["sqnr_db"]) < target, "{mixed}");
        // On images that calibration has not seen, with half a dB for the difference.
        let mut compare = mqq();
        compare.arg("compare").arg(repository(FIXTURE)).arg(&output);
        compare.arg("--data").arg(repository("calib_data/eval")).args(["--preprocess", "half"]);
        let ran = run(compare.args(["--min-sqnr", &(target - 1.0).to_string()]));
        assert_eq!(ran.code, 0, "effort {effort}: {} {}", ran.stdout, ran.stderr);
    }
}

#[test]
fn a_goal_that_is_reached_already_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let (plain, ..) = done(&folder, "plain", "tensorrt", &[]);
    for goal in [["--target-sqnr", "5"], ["--max-drop", "50"], ["--bits-budget", "8.36"]] {
        let (output, mixed, _) = done(&folder, "out", "tensorrt", &goal);
        assert!(mixed["layers"].as_array().unwrap().is_empty(), "{mixed}");
        assert!(fs::read(&output).unwrap() == fs::read(&plain).unwrap(), "{goal:?}");
    }
}

#[test]
fn a_goal_that_cannot_be_reached_is_a_gate_that_writes_nothing() {
    // With what they come to instead, in dB.
    let cases = [
        // Nothing but a model without quantized layers would reach it.
        ("tensorrt", ["--target-sqnr", "190"], "--target-sqnr 190 was not reached", 57.8),
        ("onnxruntime", ["--target-sqnr", "120"], "--target-sqnr 120 was not reached", 56.5),
        ("tensorrt", ["--target", "cosine=1"], "--target cosine=1 was not reached; the best result is ", 50.0),
        ("onnxruntime", ["--bits-budget", "2"], "--bits-budget 2 was not reached: ", 30.9),
        ("tensorrt", ["--bits-budget", "4"], "--bits-budget 4 was not reached: ", 20.0),
    ];
    for (backend, goal, expected, db) in cases {
        let folder = TempDir::new().unwrap();
        let ran = calibrate(backend, &folder.path().join("out.onnx"), &goal);
        assert_eq!(ran.code, 3, "{backend} {goal:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        assert!(ran.stderr.contains(" in another precision; nothing was written"), "{}", ran.stderr);
        assert!(ran.stderr.contains("\nhint: relax the goal or raise --effort; "), "{}", ran.stderr);
        if goal[0] == "--target" {
            assert!(
                ran.stderr.contains("result is cosine 0.") || ran.stderr.contains("result is cosine 1."),
                "{}",
                ran.stderr
            );
        }
        if goal[0] == "--bits-budget" {
            let reason = format!("backend `{backend}` has no weights of {} bits or fewer", goal[1]);
            assert!(ran.stderr.contains(&reason), "{}", ran.stderr);
        }
        let explained = ran.stderr.contains(" bits per weight (float weights count as 32) on ");
        assert_eq!(explained, !ran.stderr.contains(" 4.00 bits per weight"), "{}", ran.stderr);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let report: Json = ran.json();
        let result = &report["results"][0];
        assert_eq!((&result["status"], result.get("output")), (&"missed".into(), None));
        let mixed = &result["mixed_precision"];
        assert!(mixed["met"] == false && number(&mixed["sqnr_db"]) > db - 2.0, "{mixed}");
        assert!(!mixed["curve"].as_array().unwrap().is_empty());
    }
}

#[test]
fn choices_are_the_same_for_any_number_of_threads() {
    let folder = TempDir::new().unwrap();
    for goal in [["--target-sqnr", "37"], ["--bits-budget", "6"], ["--max-drop", "0"]] {
        let bytes = |threads: &str| {
            let extra = [goal[0], goal[1], "--threads", threads];
            let (output, ..) = done(&folder, threads, "onnxruntime", &extra);
            (fs::read(&output).unwrap(), fs::read(output.with_extension("json")).unwrap())
        };
        assert!(bytes("1") == bytes("2"), "{goal:?}");
    }
}

#[test]
fn a_budget_narrows_weights_and_spends_what_is_left() {
    let folder = TempDir::new().unwrap();
    let bits = |sidecar: &Json| -> Vec<u64> {
        let encodings = sidecar["param_encodings"].as_array().unwrap();
        let weights = encodings.iter().filter(|e| e["output_dtype"] != "int32");
        weights.map(|e| e["bits"].as_u64().unwrap()).collect()
    };
    let (narrow, narrow_mixed, sidecar) =
        done(&folder, "narrow", "onnxruntime", &["--bits-budget", "6", "--effort", "0"]);
    let spent = number(&narrow_mixed["weight_bits"]);
    assert!(spent <= 6.0 && spent > 5.0, "{narrow_mixed}");
    assert!(bits(&sidecar).contains(&4) && bits(&sidecar).contains(&8), "{:?}", bits(&sidecar));
    assert_eq!(sidecar["model"]["opset"][1], 21);
    let int4 = graph(&narrow).initializer.iter().filter(|t| t.data_type() == 22).count();
    assert!(int4 >= bits(&sidecar).iter().filter(|&&bits| bits == 4).count());
    // All in 4 bits is worse than a choice of 6 on average.
    let (_, least, _) = done(&folder, "least", "onnxruntime", &["--bits-budget", "4.3", "--effort", "0"]);
    let db = |mixed: &Json| number(&mixed["curve"].as_array().unwrap().last().unwrap()["sqnr_db"]);
    assert!(db(&narrow_mixed) > db(&least) + 1.0, "{} {}", db(&narrow_mixed), db(&least));
    // Where only float is wider, what a budget leaves goes to the layers that gain most by it.
    let (_, wide, sidecar) = done(&folder, "wide", "tensorrt", &["--bits-budget", "12"]);
    assert!(number(&wide["weight_bits"]) <= 12.0 && number(&wide["weight_bits"]) > 8.36, "{wide}");
    assert!(bits(&sidecar).iter().all(|&bits| bits == 8));
    assert!(texts(&wide["layers"], "precision").iter().all(|name| *name == "float"));
}

#[test]
fn layers_are_raised_to_16_bits_where_there_is_no_float_or_they_are_asked_for() {
    for choice in [["--set", "mixed.float=null"], ["--raise-to", "int16"]] {
        let folder = TempDir::new().unwrap();
        let extra = ["--target-sqnr", "31", "--effort", "0", choice[0], choice[1]];
        let (output, mixed, sidecar) = done(&folder, "out", "onnxruntime", &extra);
        let chosen = texts(&mixed["layers"], "layer");
        assert!(!chosen.is_empty(), "{mixed}");
        assert!(texts(&mixed["layers"], "precision").iter().all(|name| *name == "int16"));
        let encodings = sidecar["activation_encodings"].as_array().unwrap();
        let bits = |encoding: &Json| encoding["bits"].as_u64().unwrap();
        for name in &chosen {
            let read = encodings
                .iter()
                .filter(|encoding| encoding["consumers"].as_array().unwrap().iter().any(|consumer| consumer == name));
            let read: Vec<u64> = read.map(bits).collect();
            assert!(!read.is_empty() && read.iter().all(|&bits| bits == 16), "{name}: {read:?}");
        }
        assert!(encodings.iter().any(|encoding| bits(encoding) == 8), "{encodings:?}");
        // Tensors of one grid are raised together.
        for encoding in encodings {
            for other in encoding["shared_with"].as_array().into_iter().flatten() {
                let other = encodings.iter().find(|e| e["name"] == *other).unwrap();
                assert_eq!(bits(encoding), bits(other), "{}", encoding["name"]);
            }
        }
        let rules: Vec<&Json> = sidecar["float_nodes"].as_array().unwrap().iter().map(|float| &float["rule"]).collect();
        assert!(rules.iter().all(|rule| **rule != "mixed_precision"), "{rules:?}");
        let ran = run(mqq().arg("check").arg(&output).args(["-b", "onnxruntime"]));
        assert_eq!(ran.code, 0, "{}", ran.stdout);
    }
}

#[test]
fn what_cannot_work_is_an_error_of_usage_before_the_data_is_read() {
    let folder = TempDir::new().unwrap();
    let cases: &[(&str, &[&str], &str)] = &[
        ("tensorrt", &["--keep-float", "-1"], "expected a whole number, 0 or more"),
        ("tensorrt", &["--keep-float", "1", "--target-sqnr", "30"], "cannot be used with"),
        ("tensorrt", &["--max-drop", "1", "--bits-budget", "6"], "cannot be used with"),
        ("tensorrt", &["--raise-to", "float"], "--raise-to"),
        ("tensorrt", &["--target-sqnr", "30", "--raise-to", "flaot"], "did you mean `float`?"),
        ("tensorrt", &["--keep-float", "1", "--raise-to", "float"], "expected --target, --target-sqnr"),
        (
            "tensorrt",
            &["--target", "top1=50"],
            "hint: `agreement` compares with the float model; `mqq compare --labels`",
        ),
        ("tensorrt", &["--target", "coco-map=0.5"], "--target: metric `coco-map` needs labels, expected one without"),
        ("tensorrt", &["--target-sqnr", "nan"], "`nan` is not a number"),
        ("tensorrt", &["--max-drop", "302/3"], "expected 0 to 100 percent"),
        ("tensorrt", &["--bits-budget", "few"], "`few` is not a number, expected one or a fraction such as 1/255"),
        ("tensorrt", &["--max-drop", "-1"], "expected 0 to 100 percent"),
        ("tensorrt", &["--max-drop", "101"], "expected 0 to 100 percent"),
        ("tensorrt", &["--bits-budget", "0.5"], "expected 1 to 32 bits"),
        (
            "onnxruntime",
            &["--keep-float", "1", "--set", "mixed.float=null"],
            "has no float precision, expected one of: int16, int4",
        ),
        (
            "onnxruntime",
            &["--bits-budget", "6", "--set", "mixed={int16: {activation: act16}}"],
            "has no precision for weights alone",
        ),
        ("qnn-htp", &["--keep-float", "1"], "has no key `mixed`"),
        ("tflitemicro", &["--keep-float", "1"], "has no key `mixed`"),
    ];
    for (backend, extra, expected) in cases {
        let mut command = mqq();
        command.arg("calibrate").arg(repository(FIXTURE)).args(["-b", backend]);
        command.args(["--data", "no such folder", "-o"]).arg(folder.path().join("out.onnx"));
        let ran = run(command.args(*extra));
        assert_eq!(ran.code, 2, "{backend} {extra:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{extra:?}: {}", ran.stderr);
    }
    let ranges = folder.path().join("plain.onnx");
    assert_eq!(calibrate("tensorrt", &ranges, &[]).code, 0);
    let mut command = mqq();
    command.arg("calibrate").arg(repository(FIXTURE)).args(["-b", "tensorrt", "--keep-float", "1"]);
    command.arg("--ranges-from").arg(ranges.with_extension("json"));
    let ran = run(command.arg("-o").arg(folder.path().join("out.onnx")));
    assert!(ran.code == 2 && ran.stderr.contains("--keep-float needs --data"), "{}", ran.stderr);
}

#[test]
fn a_goal_of_another_task_names_the_option() {
    let folder = TempDir::new().unwrap();
    let ran = calibrate("tensorrt", &folder.path().join("out.onnx"), &["--target", "f1=0.9"]);
    let expected = "or the metric of --target) does not fit the network: no built-in head of task detect fits ";
    assert!(ran.code == 1 && ran.stderr.contains(expected), "{}", ran.stderr);
}

/// Three convolutions; the second, depthwise, reads channels of which one reaches 400 times as far as the others.
fn with_one_bad_layer() -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 16, 12, 12]);
    g.conv("x", 16, 16, 3, 1, "a");
    let reach = |factor: f32| (0..16).map(|c| if c == 3 { factor } else { 1.0 }).collect::<Vec<f32>>();
    g.values("far", &[1, 16, 1, 1], &reach(400.0));
    g.values("near", &[1, 16, 1, 1], &reach(1.0 / 400.0));
    g.ops("reaching = Mul a far; gate = Sigmoid reaching; gated = Mul reaching gate");
    g.conv("gated", 16, 16, 3, 16, "b");
    g.op("Mul", &["b", "near"], "back");
    g.conv("back", 16, 32, 3, 1, "c");
    g.op("Relu", &["c"], "r");
    g.conv("r", 32, 32, 3, 1, "y");
    g.output("y").build()
}

/// A folder with a model and 20 samples of 12 x 12 values in each of `n_channels` channels.
fn with_samples(model: &ModelProto, n_channels: usize) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("float.onnx"), model.encode_to_vec()).unwrap();
    for sample in 0..20 {
        let path = folder.path().join(format!("{sample:02}.npy"));
        write_npy(&path, &[1, n_channels, 12, 12], &noise(n_channels * 12 * 12, sample));
    }
    folder
}

/// The run, what `--json` says of it, the sidecar and the bytes of the model that is written.
fn quantized(folder: &TempDir, backend: &str, extra: &[&str]) -> (Ran, Json, Json, Vec<u8>) {
    let (model, output) = (folder.path().join("float.onnx"), folder.path().join("quantized.onnx"));
    let mut command = mqq();
    command.arg("calibrate").arg(model).args(["-b", backend, "--json"]).args(extra);
    let ran = run(command.arg("--data").arg(folder.path().join("*.npy")).arg("-o").arg(&output));
    let report: Json = ran.json();
    let sidecar: Json = serde_json::from_slice(&fs::read(output.with_extension("json")).unwrap()).unwrap();
    (ran, report["results"][0]["summary"].clone(), sidecar, fs::read(output).unwrap())
}

#[test]
fn a_layer_that_makes_most_of_the_error_stays_float_without_being_asked_for() {
    let folder = with_samples(&with_one_bad_layer(), 16);
    let quantize = |extra: &[&str]| {
        let (ran, summary, sidecar, bytes) = quantized(&folder, "tensorrt", &[&["--no-insert"], extra].concat());
        assert_eq!(ran.code, 0, "{extra:?}: {}", ran.stderr);
        let methods = summary["methods"].as_array().unwrap().clone();
        let rescued = methods.into_iter().find(|method| method["method"] == "rescue");
        let float = sidecar["float_nodes"].as_array().unwrap().clone();
        let float: Vec<Json> = float.into_iter().filter(|node| node["rule"] == "mixed_precision").collect();
        (rescued, float, bytes)
    };
    let (rescued, float, bytes) = quantize(&["--threads", "1"]);
    let rescued = rescued.unwrap();
    assert!(rescued["accepted"] == true, "{rescued}");
    assert!(texts(&Json::from(float.clone()), "node") == ["Conv_b"], "{float:?}");
    assert!(float[0]["reason"].as_str().unwrap().starts_with("kept float by rescue: "), "{float:?}");
    let figures = [0, 1].map(|at| number(&rescued["judged"]["figures"][at]));
    assert!(figures[1] > figures[0] + 0.2, "{rescued}");
    assert!(rescued["details"][0].as_str().unwrap().contains("% of the multiply-adds"), "{rescued}");
    assert!(quantize(&["--threads", "2"]).2 == bytes);
    // Not asked for, too dear, and of no need.
    for extra in [["--rescue", "0"], ["--rescue", "0.01"], ["--methods", "bias"]] {
        let (rescued, float, _) = quantize(&extra);
        assert!(float.is_empty() && rescued.is_none_or(|rescued| rescued["accepted"] == false), "{extra:?}: {float:?}");
    }
    // A table without float gives the layer its widest types.
    let wider = [
        "--set",
        "mixed={wide: {activation: act16}}",
        "--set",
        "min_opset=21",
        "--set",
        "types.act16={bits: 16, signed: true, symmetry: symmetric, granularity: per_tensor}",
        "--set",
        "check=[]",
    ];
    let (rescued, float, _) = quantize(&wider);
    let details = rescued.unwrap()["details"][0].as_str().unwrap().to_string();
    assert!(details.starts_with("`Conv_b` wide: overlap") && float.is_empty(), "{details} {float:?}");
    let output = folder.path().join("digits.onnx");
    let ran = calibrate("tensorrt", &output, &[]);
    assert!(ran.code == 0 && !ran.stdout.contains("\"rescue\""), "{}", ran.stdout);
    let ran = calibrate("tensorrt", &output, &["--rescue", "101"]);
    assert!(ran.code == 2 && ran.stderr.contains("0 to 100 percent"), "{}", ran.stderr);
}

/// Three convolutions; of the second one's outputs, which a Sigmoid reads, one channel reaches 400 times as far as the others.
fn with_one_bad_gate() -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 8, 12, 12]);
    g.conv("x", 8, 8, 3, 1, "a");
    g.op("Relu", &["a"], "ra");
    let weight: Vec<f32> =
        noise(8 * 8, 5).iter().enumerate().map(|(i, w)| if i / 8 == 3 { 400.0 * w } else { *w }).collect();
    g.values("weight", &[8, 8, 1, 1], &weight);
    g.ops("b = Conv ra weight; gate = Sigmoid b");
    g.conv("gate", 8, 16, 3, 1, "c");
    g.op("Relu", &["c"], "y");
    g.output("y").build()
}

#[test]
fn a_rescued_layer_takes_the_gate_behind_it_along() {
    let folder = with_samples(&with_one_bad_gate(), 8);
    let (ran, summary, sidecar, _) = quantized(&folder, "rknn", &["--no-insert", "--rescue", "50"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let methods = summary["methods"].as_array().unwrap();
    let rescued = methods.iter().find(|method| method["method"] == "rescue").unwrap();
    let figures = [0, 1].map(|at| number(&rescued["judged"]["figures"][at]));
    assert!(rescued["accepted"] == true && figures[1] > figures[0] + 0.1, "{rescued}");
    let float = sidecar["float_nodes"].as_array().unwrap();
    let float: Vec<&Json> = float.iter().filter(|node| node["rule"] == "mixed_precision").collect();
    let names: Vec<&str> = float.iter().map(|node| node["node"].as_str().unwrap()).collect();
    assert_eq!(names, ["Conv_b", "Sigmoid_gate"], "{rescued}");
}

/// Values within a few units of 2000 between two convolutions: 8 bits have steps of 8 there.
fn broken_by_8_bits() -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 8, 12, 12]);
    g.conv("x", 8, 8, 3, 1, "a");
    g.values("offset", &[1, 1, 1, 1], &[2000.0]);
    g.ops("positive = Relu a; far = Add positive offset; back = Sub far offset");
    g.conv("back", 8, 8, 3, 1, "y");
    g.output("y").build()
}

#[test]
fn a_network_that_8_bits_break_gets_the_table_of_wider_types() {
    let folder = with_samples(&broken_by_8_bits(), 8);
    let quantize = |backend: &str, extra: &[&str]| {
        let (ran, summary, sidecar, bytes) = quantized(&folder, backend, extra);
        (ran, summary, sidecar["scheme"]["backend"].as_str().unwrap().to_string(), bytes)
    };
    let (_, _, _, wide) = quantize("qnn-htp-a16", &[]);
    for (backend, wider) in [("qnn-htp", "qnn-htp-a16"), ("tflite", "tflite-16x8"), ("xint8", "xint8-a16")] {
        let (ran, summary, table, bytes) = quantize(backend, &[]);
        assert_eq!((ran.code, table.as_str(), summary["table"].as_str()), (0, wider, Some(wider)), "{}", ran.stderr);
        let reason = format!("`{backend}` destroys the accuracy (overlap 0.");
        let warning = ran.stderr.lines().find(|line| line.contains(&reason));
        let warning = warning.unwrap_or_else(|| panic!("{}", ran.stderr));
        assert!(warning.contains(&format!("--rescue 0 keeps `{backend}`")), "{warning}");
        assert!(wider != "qnn-htp-a16" || bytes == wide);
        let output = folder.path().join("quantized.onnx");
        assert_eq!(run(mqq().arg("check").arg(output).args(["-b", backend])).code, 0);
    }
    // Not asked for, nothing measured, or no such table: 8 bits, and where it is known that they break it, a warning.
    for extra in [&["--rescue", "0"][..], &["--effort", "0"], &["--set", "wider=null"]] {
        let (ran, summary, table, _) = quantize("qnn-htp", extra);
        assert!(ran.code == 0 && table == "qnn-htp" && summary.get("table").is_none(), "{extra:?}: {}", ran.stderr);
        let warns = ran.stderr.contains("the quantized outputs are far from the float ones");
        assert_eq!(warns, extra[0] != "--effort", "{extra:?}: {}", ran.stderr);
    }
    assert_eq!(quantize("qnn-htp", &["--strict"]).0.code, 3);
}
