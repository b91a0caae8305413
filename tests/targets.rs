//! Several backends in one run: the results of single runs, from one pass over the data.

use crate::support::command::{Ran, mqq, run};
use crate::support::{noise, repository, write_npy};
use assert_cmd::Command;
use mqq::onnx::proto::Dimension;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// With a moving average, a table of fixed shapes, one of dynamic quantization, and one that looks at channels.
const BACKENDS: [&str; 5] = ["tensorrt", "openvino", "qnn-htp", "mqbench-tensorrt", "onnxruntime-dynamic"];

fn calibrate(backends: &str, folder: &Path, extra: &[&str]) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", backends, "--preprocess", "half"]);
    command
        .arg("--data")
        .arg(repository("calib_data/calib"))
        .args(["--limit", "37", "--out-dir"])
        .arg(folder)
        .args(extra);
    command
}

fn done(command: &mut Command) -> Ran {
    let ran = run(command);
    assert_eq!(ran.code, 0, "{command:?}: {}", ran.stderr);
    ran
}

fn results(folder: &Path, backend: &str) -> [Vec<u8>; 2] {
    ["onnx", "json"].map(|ending| fs::read(folder.join(format!("digits_cnn.{backend}.{ending}"))).unwrap())
}

#[test]
fn several_backends_give_the_results_of_single_runs() {
    // Wrong pixel values, for the warning in the sidecar.
    for extra in [&["--effort", "0"][..], &["--methods", "bias", "--scale", "1"]] {
        let (single, several) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let ran = done(&mut calibrate(&BACKENDS.join(","), several.path(), extra));
        for backend in BACKENDS {
            done(&mut calibrate(backend, single.path(), extra));
            assert!(results(single.path(), backend) == results(several.path(), backend), "{backend} {extra:?}");
        }
        let table: Vec<&str> = ran.stdout.lines().skip_while(|line| !line.contains(" status ")).collect();
        assert_eq!(table.len(), 1 + BACKENDS.len(), "{}", ran.stdout);
        for (line, backend) in table[1..].iter().zip(BACKENDS) {
            assert!(
                line.starts_with(&format!("  {backend} ")) && line.contains(" ok ") && line.contains(" kB"),
                "{line}"
            );
        }
        assert!(table[1].contains(" %") && table[1].ends_with("Gemm"), "{}", table[1]);
        assert_eq!(table[0].contains("overlap"), extra.contains(&"--methods"), "{}", table[0]);
    }
}

#[test]
fn the_report_has_all_backends() {
    let folder = TempDir::new().unwrap();
    let ran = done(&mut calibrate("trt,ov", folder.path(), &["--effort", "0", "--json"]));
    let report = ran.json();
    assert_eq!(report["backend"], "tensorrt,openvino");
    for (result, backend) in report["results"].as_array().unwrap().iter().zip(["tensorrt", "openvino"]) {
        assert_eq!(result["backend"], backend);
        let output = folder.path().join(format!("digits_cnn.{backend}.onnx"));
        assert_eq!(result["n_bytes"], fs::metadata(output).unwrap().len());
        assert!(result["summary"]["float_operators"].is_object());
    }
}

/// Pictures of two sizes, which a backend of fixed shapes cannot take and which are not collected for several backends.
#[test]
fn a_backend_that_fails_does_not_stop_the_others() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut model = mqq::onnx::load_whole(&repository("fixtures/digits_cnn.onnx")).unwrap().model;
    let input = model.graph.as_mut().unwrap().input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
    for (dimension, name) in input.shape.as_mut().unwrap().dim[2..].iter_mut().zip(["height", "width"]) {
        *dimension = Dimension { dim_param: Some(name.to_string()), ..Dimension::default() };
    }
    mqq::onnx::save(&model, &at("digits_cnn.onnx")).unwrap();
    fs::create_dir(at("data")).unwrap();
    for (i, size) in [32, 40, 32, 40].into_iter().enumerate() {
        write_npy(&at(&format!("data/{i}.npy")), &[1, 3, size, size], &noise(3 * size * size, i as u32));
    }
    let calibrate = |backends: &str, out: &str| {
        let mut command = mqq();
        command.arg("calibrate").arg(at("digits_cnn.onnx")).args(["-b", backends, "--effort", "0"]);
        run(command.arg("--data").arg(at("data")).arg("--out-dir").arg(at(out)))
    };
    ["tensorrt", "openvino"].iter().for_each(|backend| assert_eq!(calibrate(backend, "single").code, 0));
    for order in ["qnn-htp,tensorrt,openvino", "tensorrt,openvino,qnn-htp"] {
        let ran = calibrate(order, "out");
        assert_eq!((ran.code, ran.stderr.matches("error: ").count()), (1, 1), "{}", ran.stderr);
        for backend in ["tensorrt", "openvino"] {
            assert!(results(&at("single"), backend) == results(&at("out"), backend), "{backend}");
        }
        assert!(!at("out/digits_cnn.qnn-htp.onnx").exists());
        assert!(ran.stdout.contains("  qnn-htp   failed"), "{}", ran.stdout);
        fs::remove_dir_all(at("out")).unwrap();
    }
}

/// The data are read once for all backends, so that an error of the data is one error.
#[test]
fn an_error_of_the_data_ends_the_shared_pass() {
    let folder = TempDir::new().unwrap();
    let sample = |i: u32| folder.path().join(format!("{i}.npy"));
    (0..4).for_each(|i| write_npy(&sample(i), &[1, 3, 32, 32], &noise(3 * 32 * 32, i)));
    fs::OpenOptions::new().write(true).open(sample(3)).unwrap().set_len(200).unwrap();
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tensorrt,openvino"]);
    let ran = run(command.args(["--effort", "0"]).arg("--data").arg(folder.path()).arg("--out-dir").arg(folder.path()));
    assert_eq!((ran.code, ran.stderr.matches("error: ").count()), (1, 1), "{}", ran.stderr);
    assert!(ran.stderr.contains("3.npy`: holds 72 bytes of data, expected 12288"), "{}", ran.stderr);
}

#[test]
fn solve_takes_several_backends() {
    let folder = TempDir::new().unwrap();
    let [full, solved] = ["full", "solved"].map(|name| folder.path().join(name));
    let statistics = folder.path().join("s.mqqs");
    let statistics = statistics.to_str().unwrap();
    done(&mut calibrate("tensorrt,openvino", &full, &["--effort", "0", "--save-stats", statistics]));
    let mut solve = mqq();
    solve.arg("solve").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tensorrt,openvino", "-s", statistics]);
    done(solve.arg("--out-dir").arg(&solved));
    for backend in ["tensorrt", "openvino"] {
        assert!(results(&full, backend) == results(&solved, backend), "{backend}");
    }
}

#[test]
fn several_backends_need_names_of_their_own() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("m.onnx");
    let fails = |backends: &str, extra: &[&str], text: &str| {
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", backends]).args(extra);
        let ran = run(command.arg("--data").arg(repository("calib_data/calib")));
        assert!(ran.code == 2 && ran.stderr.contains(text), "{}: {}", ran.code, ran.stderr);
    };
    fails("tensorrt,trt", &[], "--backend names `tensorrt` twice, expected different backends");
    fails("tensorrt,openvino", &["-o", output.to_str().unwrap()], "--output names one file, but there are 2 backends");
    fails("tensorrt,openvino", &["--report", "r.html"], "--report names one file, but there are 2 backends");
    fails("tensorrt,openvin", &[], "backend `openvin` is unknown");
    let ran = run(mqq().arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")));
    assert!(ran.code == 2 && ran.stderr.contains("--backend <NAME|FILE,…>"), "{}", ran.stderr);
}
