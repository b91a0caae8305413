//! Bad input: one clear error that names the smallest place, and nothing left behind.

use crate::support::{GraphBuilder, repository};
use assert_cmd::Command;
use mqq::onnx;
use mqq::onnx::proto::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Stderr of a run that must fail with exit code 1 and leave no result.
fn fails(model: &Path, data: &[&Path], extra: &[&str]) -> String {
    let out = TempDir::new().unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("mqq"));
    command.arg("calibrate").arg(model).args(["-b", "tensorrt", "--out-dir"]).arg(out.path());
    data.iter().for_each(|path| {
        command.arg("--data").arg(path);
    });
    let output = command.args(extra).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(stderr.starts_with("error: ") && !stderr.contains("panick"), "{stderr}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "{stderr}");
    stderr
}

fn images() -> PathBuf {
    repository("calib_data/calib")
}

fn digits() -> PathBuf {
    repository("fixtures/digits_cnn.onnx")
}

fn save(model: &ModelProto, folder: &TempDir, name: &str) -> PathBuf {
    let path = folder.path().join(name);
    onnx::save(model, &path).unwrap();
    path
}

#[test]
fn files_that_are_no_models() {
    let folder = TempDir::new().unwrap();
    let good = fs::read(digits()).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let cases = [
        (folder.path().join("missing.onnx"), "No such file"),
        (write("empty.onnx", b""), "is empty"),
        (write("text.onnx", b"just some words, and no model at all\n"), "not an ONNX model"),
        (write("half.onnx", &good[..good.len() / 2]), "not an ONNX model"),
        (write("noise.onnx", &noise), "not an ONNX model"),
        (folder.path().to_path_buf(), "is a directory"),
    ];
    for (path, expected) in cases {
        let error = fails(&path, &[&images()], &[]);
        assert!(error.contains(expected), "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn every_cut_of_a_model_is_an_error_or_a_model() {
    let good = fs::read(digits()).unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("cut.onnx");
    for end in (0..good.len()).step_by(good.len() / 60) {
        fs::write(&path, &good[..end]).unwrap();
        let _ = onnx::load(&path).map(|model| mqq::prepare::check_float(&model));
    }
}

#[test]
fn models_that_cannot_be_quantized() {
    let folder = TempDir::new().unwrap();
    let conv = |change: &dyn Fn(&mut ModelProto), name: &str| {
        let mut g = GraphBuilder::new(13);
        g.input("x", &[1, 3, 32, 32]);
        g.conv("x", 3, 16, 3, 1, "y");
        g.output("y");
        let mut model = g.build();
        change(&mut model);
        save(&model, &folder, name)
    };
    let node = |op: &str, domain: &str| NodeProto {
        name: Some(format!("odd_{op}")),
        op_type: Some(op.into()),
        domain: Some(domain.into()),
        input: vec!["x".into()],
        output: vec![format!("{op}_out")],
        ..Default::default()
    };
    let training = || NodeProto {
        attribute: vec![AttributeProto {
            name: Some("training_mode".into()),
            r#type: Some(2),
            i: Some(1),
            ..Default::default()
        }],
        ..node("BatchNormalization", "")
    };
    let add = |model: &mut ModelProto, nodes: &[NodeProto]| {
        model.graph.as_mut().unwrap().node.extend_from_slice(nodes);
    };
    let nan = |model: &mut ModelProto| {
        let graph = model.graph.as_mut().unwrap();
        let mut values = vec![0.5f32; 16 * 3 * 9];
        values[7] = f32::NAN;
        graph.initializer[0] = onnx::tensor::from_f32("y.weight", &[16, 3, 3, 3], &values).unwrap();
    };
    let cases: Vec<(PathBuf, Vec<&str>)> = vec![
        (conv(&|m| m.opset_import[0].version = Some(1), "opset1.onnx"), vec!["opset is 1", "7"]),
        (conv(&|m| m.opset_import.clear(), "no_opset.onnx"), vec!["imports no ONNX opset"]),
        (
            conv(&|m| add(m, &[node("QuantizeLinear", "")]), "quantized.onnx"),
            vec!["already quantized", "1 QuantizeLinear"],
        ),
        (
            conv(&|m| add(m, &[node("Warp", "odd.domain"), node("Weft", "odd.domain")]), "custom.onnx"),
            vec!["Warp", "Weft", "odd_Warp"],
        ),
        (
            conv(&|m| add(m, &[training()]), "training.onnx"),
            vec!["`odd_BatchNormalization`", "training mode", "hint: "],
        ),
        (conv(&nan, "nan.onnx"), vec!["`y.weight`", "1 of 432 values", "hint: "]),
        (conv(&|m| m.graph.as_mut().unwrap().initializer[0].data_type = Some(10), "half.onnx"), vec!["float16"]),
        (conv(&|m| m.graph.as_mut().unwrap().node[0].input[0] = "nowhere".into(), "gap.onnx"), vec!["nowhere"]),
        (
            conv(
                &|m| {
                    m.opset_import[0].version = Some(9);
                    let empty = NodeProto { input: vec![], output: vec![], ..node("Identity", "") };
                    add(m, &[empty]);
                },
                "empty_identity.onnx",
            ),
            vec!["empty_identity.onnx"],
        ),
        (
            conv(
                &|m| {
                    let tensor = &mut m.graph.as_mut().unwrap().initializer[0];
                    tensor.raw_data = None;
                    tensor.data_location = Some(1);
                    tensor.external_data = vec![StringStringEntryProto {
                        key: Some("location".into()),
                        value: Some("../../etc/passwd".into()),
                    }];
                },
                "escape.onnx",
            ),
            vec!["`y.weight`", "../../etc/passwd"],
        ),
    ];
    for (path, expected) in cases {
        let error = fails(&path, &[&images()], &[]);
        for part in expected {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn data_that_does_not_fit() {
    let folder = TempDir::new().unwrap();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let mixed = folder.path().join("mixed");
    fs::create_dir(&mixed).unwrap();
    fs::copy(images().join(first_image()), mixed.join("a.png")).unwrap();
    fs::write(mixed.join("b.png"), "no image").unwrap();
    let wrong = folder.path().join("wrong.npy");
    write_npy(&wrong, &[2, 3, 16, 16]);
    let cases: Vec<(PathBuf, Vec<&str>)> = vec![
        (empty, vec!["empty"]),
        (folder.path().join("missing"), vec!["missing", "does not exist"]),
        (mixed.clone(), vec!["b.png", "--skip-bad-data"]),
        (wrong, vec!["wrong.npy", "[2, 3, 16, 16]", "[1, 3, 32, 32]"]),
    ];
    for (data, expected) in cases {
        let error = fails(&digits(), &[&data], &["--preprocess", "half"]);
        for part in expected {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    let out = TempDir::new().unwrap();
    let output = Command::new(assert_cmd::cargo::cargo_bin!("mqq"))
        .arg("calibrate")
        .arg(digits())
        .args(["-b", "tensorrt", "--skip-bad-data", "--preprocess", "half", "--out-dir"])
        .arg(out.path())
        .arg("--data")
        .arg(mixed)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("warning: ") && stderr.contains("b.png"), "{stderr}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 2);
}

#[test]
fn activations_that_are_not_finite_are_counted_and_named() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 3, 32, 32]);
    g.conv("x", 3, 16, 3, 1, "a");
    g.op("Sqrt", &["a"], "roots");
    g.conv("roots", 16, 16, 3, 1, "y");
    g.output("y");
    let model = save(&g.build(), &folder, "roots.onnx");
    let output = Command::new(assert_cmd::cargo::cargo_bin!("mqq"))
        .arg("calibrate")
        .arg(model)
        .args(["-b", "tensorrt", "--preprocess", "half", "--out-dir"])
        .arg(folder.path())
        .arg("--data")
        .arg(images())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("tensor `roots`: ") && stderr.contains("are NaN or infinite"), "{stderr}");
    let sidecar = fs::read_to_string(folder.path().join("roots.tensorrt.json")).unwrap();
    let sidecar: serde_json::Value = serde_json::from_str(&sidecar).unwrap();
    let roots = sidecar["activation_encodings"].as_array().unwrap().iter();
    let roots = roots.clone().find(|encoding| encoding["name"] == "roots").unwrap();
    assert!(roots["n_non_finite"].as_u64().unwrap() > 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_nothing() {
    let error = onnx::save(&onnx::load(&digits()).unwrap(), Path::new("/proc/model.onnx"));
    assert!(format!("{:#}", error.unwrap_err()).contains("/proc/model.onnx"));
}

fn first_image() -> String {
    let mut names: Vec<String> =
        fs::read_dir(images()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.swap_remove(0)
}

/// Zeros, float32, version 1.0 of the format.
fn write_npy(path: &Path, shape: &[usize]) {
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", dims.join(", "));
    let padded = format!("{header:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((padded.len() as u16).to_le_bytes());
    bytes.extend(padded.as_bytes());
    bytes.resize(bytes.len() + 4 * shape.iter().product::<usize>(), 0);
    fs::write(path, bytes).unwrap();
}

/// Weights that are no more than denormal numbers, of a channel and of a whole layer: their own scales, or
/// those of their biases, would be no normal numbers.
#[test]
fn weights_of_next_to_nothing_have_scales() {
    let folder = TempDir::new().unwrap();
    let mut model = onnx::load_whole(&digits()).unwrap().model;
    let graph = model.graph.as_mut().unwrap();
    let convs = graph.initializer.iter_mut().filter(|tensor| tensor.dims.len() == 4).take(2);
    for (layer, tensor) in convs.enumerate() {
        let mut values = onnx::tensor::f32_values(tensor).unwrap();
        let n = if layer == 0 { values.len() / tensor.dims[0] as usize } else { values.len() };
        values[..n].iter_mut().for_each(|value| *value *= 1e-38);
        let shape = onnx::tensor::shape(tensor).unwrap();
        *tensor = onnx::tensor::from_f32(tensor.name(), &shape, &values).unwrap();
    }
    let path = save(&model, &folder, "nothing.onnx");
    for backend in ["tensorrt", "onnxruntime", "xint8", "openvino"] {
        let output = folder.path().join("out.onnx");
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("mqq"));
        command.arg("calibrate").arg(&path).args(["-b", backend, "--preprocess", "half"]);
        let ran = command.arg("--data").arg(images()).arg("-o").arg(&output).output().unwrap();
        let stderr = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(0), "{backend}: {stderr}");
    }
}
