//! Channel scales for the layers of transformers.

use crate::support::command::{mqq, run};
use crate::support::{Attr, GraphBuilder, noise, outputs, repository, write_npy};
use mqq::onnx::edit::{ModelEdit, edited};
use mqq::onnx::proto::ModelProto;
use prost::Message;
use std::collections::BTreeSet;
use std::path::Path;
use tempfile::TempDir;

const WIDTH: usize = 32;
const TOKENS: usize = 12;

/// A linear layer.
fn linear(g: &mut GraphBuilder, x: &str, [n_in, n_out]: [usize; 2], y: &str) {
    let (weight, bias) = (g.weight(&format!("{y}_w"), &[n_in, n_out]), g.weight(&format!("{y}_b"), &[n_out]));
    g.op("MatMul", &[x, &weight], &format!("{y}_product"));
    g.op("Add", &[&format!("{y}_product"), &bias], y);
}

/// A layer normalization of which two channels reach 40 times as far as the others, and another lies at `offset`.
fn norm(g: &mut GraphBuilder, x: &str, y: &str, offset: f32) {
    let gain: Vec<f32> = (0..WIDTH).map(|c| if c % 15 == 4 { 40.0 } else { 1.0 }).collect();
    let bias: Vec<f32> = (0..WIDTH).map(|c| if c % 5 == 1 { offset } else { 0.0 }).collect();
    let [gain_name, bias_name] = ["gain", "bias"].map(|part| format!("{y}_{part}"));
    g.values(&gain_name, &[WIDTH], &gain);
    g.values(&bias_name, &[WIDTH], &bias);
    g.op_with("LayerNormalization", &[x, &gain_name, &bias_name], y, &[("axis", Attr::Int(-1))]);
}

/// Two blocks of a perceptron with a residual Add; the normalization stands in front of the perceptron alone (`pre`), or in
/// front of both.
fn network(pre: bool, offset: f32) -> ModelProto {
    let mut g = GraphBuilder::new(20);
    g.input("x", &[1, TOKENS as i64, WIDTH as i64]);
    let mut x = "x".to_string();
    for block in ["1", "2"] {
        let name = |part: &str| format!("{part}{block}");
        norm(&mut g, &x, &name("n"), offset);
        linear(&mut g, &name("n"), [WIDTH, 2 * WIDTH], &name("up"));
        g.op("Gelu", &[&name("up")], &name("g"));
        linear(&mut g, &name("g"), [2 * WIDTH, WIDTH], &name("down"));
        let residual = if pre { x } else { name("n") };
        g.op("Add", &[&residual, &name("down")], &name("r"));
        x = name("r");
    }
    linear(&mut g, &x, [WIDTH, 8], "y");
    g.output("y").build()
}

/// Writes pseudo-random values for a sample.
fn write_sample(folder: &Path, sample: u32) {
    write_npy(&folder.join(format!("{sample:02}.npy")), &[1, TOKENS, WIDTH], &noise(TOKENS * WIDTH, sample));
}

/// Runs `methods` on 20 samples. Returns their outcomes, and the bytes of model and sidecar.
fn smoothed(folder: &Path, model: &ModelProto, methods: &str, threads: &str) -> (Vec<serde_json::Value>, [Vec<u8>; 2]) {
    smoothed_for("onnxruntime", folder, model, methods, threads)
}

/// The same for a backend.
fn smoothed_for(
    backend: &str,
    folder: &Path,
    model: &ModelProto,
    methods: &str,
    threads: &str,
) -> (Vec<serde_json::Value>, [Vec<u8>; 2]) {
    let (path, output) = (folder.join("float.onnx"), folder.join(format!("{threads}.onnx")));
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    for sample in 0..20 {
        write_sample(folder, sample);
    }
    let mut command = mqq();
    command.arg("calibrate").arg(&path).args(["-b", backend, "--json", "--methods", methods, "--threads", threads]);
    let ran = run(command.arg("--data").arg(folder.join("*.npy")).arg("-o").arg(&output)).done();
    let report = ran.json();
    let methods = report["results"][0]["summary"]["methods"].as_array().unwrap().clone();
    (methods, ["onnx", "json"].map(|suffix| std::fs::read(output.with_extension(suffix)).unwrap()))
}

#[test]
fn one_exponent_is_chosen_and_pays() {
    // Behind GELU there is a Mul; in front of the others where the normalization feeds a residual Add that leads to another one.
    let n_muls = 3;
    for pre in [true, false] {
        let folder = TempDir::new().unwrap();
        let (methods, [bytes, sidecar]) = smoothed(folder.path(), &network(pre, 0.0), "smooth", "1");
        let exponents: BTreeSet<&str> = methods.iter().map(|method| method["variant"].as_str().unwrap()).collect();
        assert!(
            exponents.len() == 3 && exponents.contains("alpha 0.7") && exponents.contains("alpha 0.85"),
            "{exponents:?}"
        );
        let accepted: Vec<_> = methods.iter().filter(|method| method["accepted"] == true).collect();
        let [accepted] = accepted.as_slice() else { panic!("{methods:?}") };
        let db = |at: usize| accepted["judged"]["sqnr_db"][at].as_f64().unwrap();
        assert!(db(1) > db(0) + 3.0, "{accepted}");
        let graph = ModelProto::decode(&bytes[..]).unwrap().graph.unwrap();
        let muls = graph.node.iter().filter(|node| node.op_type() == "Mul").count();
        assert_eq!(muls, n_muls, "{pre}: {accepted}");
        let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
        let edits = sidecar["edits"].as_array().unwrap();
        assert_eq!(edits.iter().filter(|edit| edit["insert_mul"].is_object()).count(), n_muls);
        let (_, again) = smoothed(folder.path(), &network(pre, 0.0), "smooth", "2");
        assert!(again[0] == bytes, "{pre}");
    }
}

/// The biases of the layers add back the offsets that normalizations and inserted Adds subtract.
#[test]
fn channels_are_shifted_where_biases_take_it() {
    // In front of the same layers as Muls.
    let n_adds = 3;
    for pre in [true, false] {
        let folder = TempDir::new().unwrap();
        let model = network(pre, 200.0);
        let (methods, [bytes, sidecar]) = smoothed(folder.path(), &model, "smooth,local-bias", "1");
        let accepted = methods.iter().find(|method| method["accepted"] == true).unwrap();
        let variant = accepted["variant"].as_str().unwrap();
        let plain = variant.strip_suffix(" with shift").unwrap();
        assert!(plain.starts_with("alpha 0."), "{accepted}");
        let rejected = methods.iter().find(|method| method["reason"] == format!("{variant} gains more"));
        assert!(rejected.is_some_and(|it| it["variant"].as_str().unwrap().starts_with("alpha 0.")), "{methods:?}");
        let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
        let edits = sidecar["edits"].as_array().unwrap();
        let adds = edits.iter().filter(|edit| edit["insert_mul"]["add"].is_object()).count();
        let graph = ModelProto::decode(&bytes[..]).unwrap().graph.unwrap();
        let inserted = graph.node.iter().filter(|node| node.op_type() == "Add" && node.name().ends_with("_scaled"));
        assert_eq!([adds, inserted.count()], [n_adds; 2], "{pre}: {edits:?}");
        let edits: Vec<ModelEdit> = serde_json::from_value(sidecar["edits"].clone()).unwrap();
        let is_bias = |edit: &ModelEdit| matches!(edit, ModelEdit::ReplaceBias(_));
        let exact: Vec<ModelEdit> = edits.into_iter().filter(|edit| !is_bias(edit)).collect();
        let [float, shifted] = [&model, &edited(&model, &exact).unwrap()].map(|model| outputs(model, 3));
        let largest = float[0].iter().fold(0f32, |max, v| max.max(v.abs()));
        for (a, b) in float[0].iter().zip(&shifted[0]) {
            assert!((a - b).abs() < 1e-4 * largest, "{pre}: {a} {b}");
        }
        let (_, again) = smoothed(folder.path(), &model, "smooth,local-bias", "2");
        assert!(again[0] == bytes, "{pre}");
        let (alone, _) = smoothed(folder.path(), &model, "smooth", "1");
        assert!(alone.iter().all(|method| !method["variant"].as_str().unwrap().contains("shift")), "{alone:?}");
    }
}

/// Of few samples, half give the ranges of channels and the others choose the exponent; all accept it, and shifts.
#[test]
fn samples_that_choose_the_exponent_gave_no_ranges() {
    let folder = TempDir::new().unwrap();
    let judges = |n: u32| {
        (20..n).for_each(|sample| write_sample(folder.path(), sample));
        let (methods, _) = smoothed(folder.path(), &network(true, 200.0), "smooth,local-bias", "1");
        let of = |is_shifted: bool| -> BTreeSet<u64> {
            let smooth = methods.iter().filter(|method| method["method"] == "smooth");
            let variants = smooth.filter(|it| it["variant"].as_str().unwrap().ends_with("with shift") == is_shifted);
            variants.map(|it| it["judged"]["n_samples"].as_u64().unwrap()).collect()
        };
        [of(false), of(true)]
    };
    assert_eq!(judges(20), [BTreeSet::from([10, 20]), BTreeSet::from([20])]);
    assert_eq!(judges(64), [BTreeSet::from([32]), BTreeSet::from([32])]);
}

/// The bias of a layer that the next one reads directly is asked for by both: one of them takes it.
#[test]
fn a_bias_takes_one_offset() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, TOKENS as i64, WIDTH as i64]);
    norm(&mut g, "x", "n", 200.0);
    linear(&mut g, "n", [WIDTH, WIDTH], "a");
    linear(&mut g, "a", [WIDTH, 8], "y");
    let model = g.output("y").build();
    (20..64).for_each(|sample| write_sample(folder.path(), sample));
    let (methods, [_, sidecar]) = smoothed(folder.path(), &model, "smooth,local-bias", "1");
    assert!(methods.iter().any(|method| method["variant"].as_str().is_some_and(|it| it.ends_with(" with shift"))));
    let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
    let edits: Vec<ModelEdit> = serde_json::from_value(sidecar["edits"].clone()).unwrap();
    let exact: Vec<ModelEdit> = edits.into_iter().filter(|edit| !matches!(edit, ModelEdit::ReplaceBias(_))).collect();
    assert!(exact.iter().any(|edit| matches!(edit, ModelEdit::ReplaceValues(_))), "{methods:?}");
    let [float, shifted] = [&model, &edited(&model, &exact).unwrap()].map(|model| outputs(model, 3));
    let largest = float[0].iter().fold(0f32, |max, v| max.max(v.abs()));
    assert!(float[0].iter().zip(&shifted[0]).all(|(a, b)| (a - b).abs() < 1e-4 * largest));
}

#[test]
fn layers_of_no_transformer_are_left_alone() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, TOKENS as i64, WIDTH as i64]);
    linear(&mut g, "x", [WIDTH, WIDTH], "a");
    g.op("Relu", &["a"], "r");
    linear(&mut g, "r", [WIDTH, 8], "y");
    let (methods, _) = smoothed(folder.path(), &g.output("y").build(), "smooth", "1");
    assert!(methods.is_empty(), "{methods:?}");
}

/// Where an inserted Mul reads integers of 16 bits, scales make up for rows of a weight that reach differently.
#[test]
fn rows_of_weights_are_made_alike_where_activations_have_16_bits() {
    let mut g = GraphBuilder::new(21);
    g.input("x", &[1, TOKENS as i64, WIDTH as i64]);
    norm(&mut g, "x", "n", 0.0);
    let rows: Vec<f32> = (0..WIDTH).map(|row| if row == 3 { 50.0 } else { 1.0 }).collect();
    let weight =
        noise(WIDTH * WIDTH, 7).iter().enumerate().map(|(i, value)| value * rows[i / WIDTH]).collect::<Vec<_>>();
    g.values("up_w", &[WIDTH, WIDTH], &weight);
    g.ops("up = MatMul n up_w; g = Gelu up");
    linear(&mut g, "g", [WIDTH, WIDTH], "down");
    g.op("Add", &["n", "down"], "y");
    let model = g.output("y").build();
    let folder = TempDir::new().unwrap();
    let (methods, [bytes, _]) = smoothed_for("qnn-htp-a16", folder.path(), &model, "smooth", "1");
    let exponents: Vec<&str> = methods.iter().map(|method| method["variant"].as_str().unwrap()).collect();
    assert!(matches!(exponents[..], ["alpha 0.25", "alpha 0.5", ..]), "{exponents:?}");
    let accepted = methods.iter().find(|method| method["accepted"] == true).unwrap();
    let db = |at: usize| accepted["judged"]["sqnr_db"][at].as_f64().unwrap();
    assert!(db(1) > db(0) + 6.0, "{methods:?}");
    let graph = ModelProto::decode(&bytes[..]).unwrap().graph.unwrap();
    let muls: Vec<_> = graph.node.iter().filter(|node| node.op_type() == "Mul").collect();
    assert!(!muls.is_empty() && muls.iter().all(|mul| mul.input.iter().all(|name| name.ends_with("DequantizeLinear"))));
}

/// Targets that compute on integers alone have a table of 16 bits for transformers.
#[test]
fn transformers_have_a_table_of_their_own_where_a_target_has_no_float() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("float.onnx");
    std::fs::write(&model, network(false, 0.0).encode_to_vec()).unwrap();
    let bits = |sidecar: &[u8]| {
        let sidecar: serde_json::Value = serde_json::from_slice(sidecar).unwrap();
        let activations = sidecar["activation_encodings"].as_array().unwrap().clone();
        let bits: BTreeSet<u64> = activations.iter().map(|one| one["bits"].as_u64().unwrap()).collect();
        (sidecar["scheme"]["backend"].as_str().unwrap().to_string(), bits)
    };
    for (backend, table) in [("qnn-htp", "qnn-htp-a16"), ("tflite", "tflite-16x8"), ("xint8", "xint8-a16")] {
        let (_, [_, sidecar]) = smoothed_for(backend, folder.path(), &network(false, 0.0), "none", "1");
        let (used, bits) = bits(&sidecar);
        assert_eq!(used, table);
        assert!(bits.contains(&16), "{backend}: {bits:?}");
        let shown = |command: &str, file: &Path| {
            let ran = run(mqq().arg(command).arg(file).args(["-b", backend, "--json"]));
            assert_eq!(ran.code, 0, "{backend}: {}{}", ran.stdout, ran.stderr);
            serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()
        };
        assert_eq!(shown("inspect", &model)["placement"]["table"], table);
        // The rules of a table with a region allow its types everywhere.
        let checked_by = shown("check", &folder.path().join("1.onnx"))["results"][0]["table"].clone();
        assert_eq!(checked_by, if backend == "qnn-htp" { serde_json::Value::Null } else { table.into() });
        assert!(shown("inspect", &repository("fixtures/digits_cnn.onnx"))["placement"].get("table").is_none());
    }
    let mut plain = mqq();
    plain.arg("calibrate").arg(&model).args(["-b", "qnn-htp", "--set", "wider=null", "--effort", "0", "--json"]);
    run(plain.arg("--data").arg(folder.path().join("*.npy")).arg("-o").arg(folder.path().join("8.onnx"))).done();
    let (used, bits) = bits(&std::fs::read(folder.path().join("8.json")).unwrap());
    assert_eq!((used.as_str(), bits), ("qnn-htp", BTreeSet::from([8])));
}
