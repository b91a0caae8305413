//! Equalized channels: every kind of chain keeps its float outputs, bit for bit where factors are powers of two;
//! everything else is left alone with the reason, and an ill-conditioned network is quantized as well as the one
//! that it came from.

mod chains;
mod channels;
mod inserted;
use crate::support::command::{mqq, run};
use crate::support::{repository, seen_and_outputs, value_info};
use chains::{CHAINS, DECLINED, built};
use mqq::equalize::{EqualizationGroup, Skipped, find};
use mqq::onnx;
use mqq::onnx::edit::apply;
use mqq::onnx::proto::ModelProto;
use mqq::prepare::prepare;
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

fn spaces(model: &ModelProto) -> (Vec<EqualizationGroup>, Vec<Skipped>) {
    find(model.graph.as_ref().unwrap(), &value_info(model))
}

/// Powers of two that look random.
fn factors(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|c| f32::from([-3i8, 2, 0, 4, -1, 1][(c * 5 + seed * 7) % 6]).exp2()).collect()
}

/// Factors of any size that look random.
fn any_factors(n: usize, seed: usize) -> Vec<f32> {
    factors(n, seed).iter().enumerate().map(|(c, by)| by * 1.19f32.powi(c as i32 % 4)).collect()
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|a| a.to_bits()).eq(b.iter().map(|b| b.to_bits()))
}

/// Noise 100 dB below the signal.
fn same_to_rounding(a: &[f32], b: &[f32]) -> bool {
    let power = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let noise = power(&mut a.iter().zip(b).map(|(a, b)| a - b));
    a.len() == b.len() && noise <= 1e-10 * power(&mut a.iter().copied())
}

/// Scales every group and expects other weights. Gives `same` the results of the network and of the scaled one for some
/// inputs: the outputs, and the groups' tensors, scaled alike.
fn expect_same(
    (name, model): (&str, &ModelProto),
    n_spaces: usize,
    factors: fn(usize, usize) -> Vec<f32>,
    same: fn(&[f32], &[f32]) -> bool,
) {
    let (spaces, declined) = spaces(model);
    assert_eq!(spaces.len(), n_spaces, "{name}: {declined:?}");
    let (mut scaled, mut units) = (model.clone(), BTreeMap::new());
    for (at, space) in spaces.iter().enumerate() {
        let factors = factors(space.n, at);
        apply(scaled.graph.as_mut().unwrap(), &space.edits(&factors).unwrap()).unwrap();
        let tensors = space.tensors.iter();
        units.extend(tensors.map(|(name, at)| (name.clone(), at.scaling(&factors))));
    }
    assert!(scaled != *model, "{name}");
    let watched: Vec<String> = units.keys().cloned().collect();
    for seed in 0..3 {
        let (seen, outputs) = seen_and_outputs(model, &watched, seed);
        let (seen_scaled, outputs_scaled) = seen_and_outputs(&scaled, &watched, seed);
        assert_eq!(outputs.len(), outputs_scaled.len());
        assert!(outputs.iter().zip(&outputs_scaled).all(|(a, b)| same(a, b)), "{name}");
        let mut converted = Vec::new();
        for (((shape, values), scaled), units) in seen.iter().zip(&seen_scaled).zip(units.values()) {
            units.apply(shape, values, &mut converted);
            assert!(same(&converted, &scaled.1), "{name}");
        }
    }
}

fn expect_same_of_all(factors: fn(usize, usize) -> Vec<f32>, same: fn(&[f32], &[f32]) -> bool) {
    for (name, n_spaces, chain) in CHAINS {
        expect_same((name, &built(*chain)), *n_spaces, factors, same);
    }
    for fixture in ["fixtures/digits_cnn.onnx", "fixtures/digits_old.onnx"] {
        let mut model = onnx::load_whole(&repository(fixture)).unwrap().model;
        prepare(&mut model, 13).unwrap();
        let n_spaces = spaces(&model).0.len();
        assert!(n_spaces > 1);
        expect_same((fixture, &model), n_spaces, factors, same);
    }
}

#[test]
fn powers_of_two_keep_float_outputs_bit_for_bit() {
    expect_same_of_all(factors, same_bits);
}

#[test]
fn other_factors_keep_float_outputs_to_rounding() {
    expect_same_of_all(any_factors, same_to_rounding);
}

#[test]
fn what_is_not_exact_is_left_alone_with_the_reason() {
    for (reason, chain) in DECLINED {
        let (_, declined) = spaces(&built(*chain));
        let reasons: Vec<String> = declined.iter().map(|d| d.reason.to_string()).collect();
        assert!(reasons.iter().any(|found| found.starts_with(reason)), "{reason}: {reasons:?}");
    }
}

fn calibrate(model: &Path, backend: &str, output: &Path, extra: &[&str]) -> serde_json::Value {
    let mut command = mqq();
    command.arg("calibrate").arg(model).args(["-b", backend, "--json"]);
    command.arg("--data").arg(repository("calib_data/calib")).args(["--preprocess", "half"]);
    let ran = run(command.arg("-o").arg(output).args(extra)).done();
    let report = ran.json();
    report["results"][0]["summary"].clone()
}

/// The bundled model with channels taken apart by factors of 2^-4 to 2^4: the same function, far harder to quantize.
fn ill_conditioned(path: &Path) {
    let mut model = onnx::load_whole(&repository("fixtures/digits_cnn.onnx")).unwrap().model;
    prepare(&mut model, 13).unwrap();
    let (spaces, _) = spaces(&model);
    for space in &spaces {
        let factors: Vec<f32> = (0..space.n).map(|c| ((c * 5 % 9) as f32 - 4.0).exp2()).collect();
        apply(model.graph.as_mut().unwrap(), &space.edits(&factors).unwrap()).unwrap();
    }
    std::fs::write(path, model.encode_to_vec()).unwrap();
}

#[test]
fn an_ill_conditioned_network_is_as_good_as_the_one_that_it_came_from() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("ill.onnx");
    ill_conditioned(&model);
    // Steps that are powers of two give less way.
    for (backend, margin) in [("tensorrt", 0.5), ("onnxruntime-vnni", 0.5), ("xint8", 3.0)] {
        let output = folder.path().join("out.onnx");
        let db = |model: &Path| {
            let summary = calibrate(model, backend, &output, &["--effort", "2"]);
            let equalized = &summary["methods"][0];
            assert_eq!(equalized["method"], "equalize");
            let db = |at: usize| equalized["judged"]["sqnr_db"][at].as_f64().unwrap();
            (db(0), summary["tuning"]["judged"]["sqnr_db"][1].as_f64().unwrap())
        };
        let (plain, plain_after) = db(&repository("fixtures/digits_cnn.onnx"));
        let (ill, ill_after) = db(&model);
        assert!(ill < plain - 6.0, "{backend}: {ill} against {plain} dB");
        assert!(ill_after > plain - margin, "{backend}: {ill} -> {ill_after}, from {plain} dB");
        assert!(ill_after > plain_after - 1.5 - margin, "{backend}: {ill_after}, {plain_after} dB");
    }
}

#[test]
fn equalized_models_are_the_same_for_any_number_of_threads_and_on_export() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("ill.onnx");
    ill_conditioned(&model);
    let bytes = |threads: &str| {
        let output = folder.path().join(format!("{threads}.onnx"));
        let extra = ["--effort", "2", "--threads", threads, "--emit", "deploy,openvino-fq"];
        let summary = calibrate(&model, "tensorrt", &output, &extra);
        assert_eq!(summary["methods"][0]["accepted"], true);
        ["onnx", "json", "deploy.onnx", "openvino.onnx"]
            .map(|suffix| std::fs::read(output.with_extension(suffix)).unwrap())
    };
    let written = bytes("1");
    assert!(written == bytes("2"));
    let sidecar = folder.path().join("1.json");
    let facts: serde_json::Value = serde_json::from_slice(&written[1]).unwrap();
    let edits = facts["edits"].as_array().unwrap();
    let is_scaled = |edit: &serde_json::Value| {
        let factors = edit["scale_channels"]["factors"].as_array().map(Vec::as_slice).unwrap_or_default();
        factors.iter().any(|factor| factor.as_f64().unwrap() != 1.0)
    };
    assert!(edits.iter().any(is_scaled) && edits.iter().any(|edit| edit["replace_bias"].is_object()), "{edits:?}");
    let notes = facts["methods"][0]["notes"].to_string();
    assert!(notes.contains("channel scales of") && notes.contains("an input of the network"), "{notes}");
    for (format, expected) in [("deploy", &written[2]), ("openvino-fq", &written[3])] {
        let exported = folder.path().join("exported");
        let mut command = mqq();
        command.arg("export").arg(&sidecar).args(["--format", format, "-o"]).arg(&exported);
        run(command.arg("--model").arg(&model)).done();
        assert!(std::fs::read(&exported).unwrap() == *expected, "{format}");
    }
    // Its ranges are for scaled tensors, which the plain model does not have.
    let mut command = mqq();
    command.arg("calibrate").arg(&model).args(["-b", "tensorrt", "--ranges-from"]).arg(&sidecar);
    let ran = run(command.arg("-o").arg(folder.path().join("again.onnx")));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("equalized"), "{}", ran.stderr);
}
