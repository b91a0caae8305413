//! Bad input: one clear error that names the smallest place, and nothing left behind.

use crate::support::command::{Ran, mqq, run};
use crate::support::{self, Attr, GraphBuilder, repository, write_noise, write_npy};
use assert_cmd::Command;
use mqq::onnx;
use mqq::onnx::proto::*;
use prost::Message;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Stderr of a run that must fail with exit code 1 and leave no result.
fn fails(model: &Path, data: &[&Path], extra: &[&str]) -> String {
    let out = TempDir::new().unwrap();
    let mut command = mqq();
    command.arg("calibrate").arg(model).args(["-b", "tensorrt", "--out-dir"]).arg(out.path());
    for path in data {
        command.arg("--data").arg(path);
    }
    let Ran { code, stdout, stderr } = run(command.args(extra));
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.starts_with("error: ") && !stderr.contains("panick") && stderr.contains("\nhint: "), "{stderr}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "{stderr}");
    stderr
}

/// An attribute with an integer.
fn attribute(name: &str, value: i64) -> AttributeProto {
    support::attribute(name, &Attr::Int(value))
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
        (folder.path().join("missing.onnx"), "missing.onnx`: does not exist\nhint: check the path\n"),
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
fn inspect_names_operators_that_the_engine_lacks() {
    let folder = TempDir::new().unwrap();
    let model = |op: &str, is_open: bool| {
        let mut g = GraphBuilder::new(13);
        g.input("x", &[1, 3, 32, 32]);
        g.op(op, &["x"], "y");
        g.output("y");
        let mut model = g.build();
        model.opset_import.push(OperatorSetIdProto { domain: Some("odd.domain".into()), version: Some(1) });
        let graph = model.graph.as_mut().unwrap();
        if op != "Relu" {
            graph.node[0].domain = Some("odd.domain".into());
        }
        if is_open {
            let tensor = graph.input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
            tensor.shape.as_mut().unwrap().dim[2].dim_value = None;
        }
        save(&model, &folder, "model.onnx")
    };
    for is_open in [false, true] {
        for backend in [&[][..], &["-b", "tensorrt"]] {
            let ran = run(mqq().arg("inspect").arg(model("Warp", is_open)).args(backend));
            assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
            assert_eq!(ran.stdout.matches("cannot be calibrated: ").count(), 1, "{}", ran.stdout);
            assert!(ran.stdout.contains("Warp (1 node, first: `Warp_y`)"), "{}", ran.stdout);
        }
        let ran = run(mqq().arg("inspect").arg(model("Warp", is_open)).arg("--json"));
        let report = ran.json();
        assert!(report["engine_error"].as_str().unwrap().contains("Warp"), "{report}");
        // Samples may give the shape.
        for backend in [&[][..], &["-b", "tensorrt"]] {
            let ran = run(mqq().arg("inspect").arg(model("Relu", is_open)).args(backend));
            assert!(ran.code == 0 && !ran.stdout.contains("cannot be calibrated"), "{}", ran.stdout);
            let is_told =
                ran.stdout.contains("shapes are not known, so rules ") && ran.stdout.contains("; fix them, for ");
            assert_eq!(is_told, is_open && !backend.is_empty(), "{}", ran.stdout);
        }
        // A wrong --shape is no open shape.
        let ran = run(mqq().arg("inspect").arg(model("Relu", is_open)).args(["--shape", "z=1x3"]));
        assert!(
            ran.stdout.contains("cannot be calibrated: ") && ran.stdout.contains("the model has no input `z`"),
            "{}",
            ran.stdout
        );
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
        attribute: vec![attribute("training_mode", 1)],
        input: vec!["x".into(); 5],
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
        (conv(&|m| m.opset_import[0].version = Some(1), "opset1.onnx"), vec!["opset1.onnx`: opset is 1", "7"]),
        (conv(&|m| m.opset_import.clear(), "no_opset.onnx"), vec!["imports no ONNX opset"]),
        (
            conv(&|m| add(m, &[node("QuantizeLinear", "")]), "quantized.onnx"),
            vec!["already quantized", "1 QuantizeLinear"],
        ),
        (
            conv(
                &|m| {
                    m.opset_import.push(OperatorSetIdProto { domain: Some("odd.domain".into()), version: Some(1) });
                    add(m, &[node("Warp", "odd.domain"), node("Weft", "odd.domain")]);
                },
                "custom.onnx",
            ),
            vec!["Warp", "Weft", "odd_Warp"],
        ),
        (
            conv(
                &|m| {
                    m.opset_import[0].version = Some(15);
                    add(m, &[training()]);
                },
                "training.onnx",
            ),
            vec!["`odd_BatchNormalization`", "training mode", "hint: "],
        ),
        (conv(&nan, "nan.onnx"), vec!["`y.weight`", "1 of 432 values", "hint: "]),
        (
            conv(&|m| m.graph.as_mut().unwrap().initializer[0].data_type = Some(10), "half.onnx"),
            vec!["(Conv): weight `y.weight` is float16, expected a float32 model", "hint: "],
        ),
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
    write_noise(&wrong, &[2, 3, 16, 16], 1);
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
    let mut command = mqq();
    command.arg("calibrate").arg(digits()).args(["-b", "tensorrt", "--skip-bad-data", "--preprocess", "half"]);
    let stderr = run(command.arg("--out-dir").arg(out.path()).arg("--data").arg(mixed)).done().stderr;
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
    let mut command = mqq();
    command.arg("calibrate").arg(model).args(["-b", "tensorrt", "--preprocess", "half", "--out-dir"]);
    let stderr = run(command.arg(folder.path()).arg("--data").arg(images())).done().stderr;
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
        let mut command = mqq();
        command.arg("calibrate").arg(&path).args(["-b", backend, "--preprocess", "half"]);
        run(command.arg("--data").arg(images()).arg("-o").arg(&output)).done();
    }
}

/// A convolution, changed.
fn changed(change: impl FnOnce(&mut ModelProto)) -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 32, 32]);
    g.conv("x", 3, 16, 3, 1, "a");
    g.op("Relu", &["a"], "y");
    let mut model = g.output("y").build();
    change(&mut model);
    model
}

#[test]
fn what_onnx_refuses_is_refused_with_its_place() {
    let folder = TempDir::new().unwrap();
    let ints = |name: &str, ints: &[i64]| AttributeProto {
        r#type: Some(7),
        i: None,
        ints: ints.to_vec(),
        ..attribute(name, 0)
    };
    let second = |op_type: &str, inputs: &[&str], attribute: AttributeProto| {
        changed(|model| {
            let node = &mut model.graph.as_mut().unwrap().node[1];
            node.op_type = Some(op_type.into());
            node.input = inputs.iter().map(|input| input.to_string()).collect();
            node.attribute = vec![attribute];
        })
    };
    let with = |attributes: Vec<AttributeProto>| {
        changed(|model| model.graph.as_mut().unwrap().node[0].attribute.extend(attributes))
    };
    fn relu(model: &mut ModelProto) -> &mut NodeProto {
        &mut model.graph.as_mut().unwrap().node[1]
    }
    let sparse = |index: i64| {
        changed(|model| {
            let values = Some(onnx::tensor::from_f32("s", &[1], &[1.0]).unwrap());
            let indices = Some(onnx::tensor::from_i64("", &[1], &[index]).unwrap());
            model.graph.as_mut().unwrap().sparse_initializer.push(SparseTensorProto {
                values,
                indices,
                dims: vec![3, 3],
            });
        })
    };
    let twice = changed(|model| {
        let initializers = &mut model.graph.as_mut().unwrap().initializer;
        initializers.extend(initializers.first().cloned());
    });
    let opset = |domain: &str, version: i64| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    let cases = [
        (with(vec![attribute("grop", 1)]), "node `Conv_a` (Conv): attribute `grop` is unknown in operator set 17"),
        (with(vec![attribute("group", 1)]), "node `Conv_a` (Conv): attribute `group` is given twice"),
        (twice, "is given twice, expected one tensor of each name"),
        (
            with(vec![AttributeProto { name: Some("auto_pad".into()), ..attribute("", 1) }]),
            "attribute `auto_pad` is of type int, expected string",
        ),
        (
            with(vec![AttributeProto { f: Some(1.0), ..attribute("auto_pad", 1) }]),
            "attribute `auto_pad`: has values of the types float and int, expected one value",
        ),
        (
            changed(|model| relu(model).domain = Some("made.up".into())),
            "node `Relu_y` (Relu): the model does not import operator set `made.up`",
        ),
        (changed(|model| model.opset_import.push(opset("ai.onnx", 11))), "imports operator set `ai.onnx` twice"),
        (changed(|model| model.opset_import[0].version = Some(99)), "operator set is 99, expected at most 28"),
        (changed(|model| relu(model).input.push("x".into())), "node `Relu_y` (Relu): has 2 inputs, expected 1"),
        (changed(|model| relu(model).input[0].clear()), "node `Relu_y` (Relu): has 0 inputs, expected 1"),
        (changed(|model| relu(model).input[0] = "y".into()), "node `Relu_y`: no earlier node produces input `y`"),
        (
            changed(|model| model.graph.as_mut().unwrap().initializer[1].raw_data = Some(vec![0; 7].into())),
            "tensor `a.bias`: holds 7 bytes, expected 64 for its shape",
        ),
        (with(vec![ints("strides", &[1])]), "node `Conv_a` (Conv): strides has 1 value, expected 2"),
        (second("Transpose", &["a"], ints("perm", &[0, 1, 1, 2])), "perm is [0, 1, 1, 2], expected each axis once"),
        (
            changed(|model| relu(model).op_type = Some("Gelu".into())),
            "node `Relu_y` (Gelu): operator set is 17, expected 20 or later, which has this operator\nhint: export",
        ),
        (
            changed(|model| {
                let node = relu(model);
                (node.op_type, node.input) = (Some("Clip".into()), vec![String::new(), "a".into()]);
            }),
            "node `Relu_y` (Clip): input 0 is left out, expected a tensor",
        ),
        (
            changed(|model| {
                let node = relu(model);
                node.op_type = Some("AveragePool".into());
                node.attribute = vec![ints("kernel_shape", &[3, 2]), ints("pads", &[2, 1, 2, 2])];
            }),
            "(AveragePool): pads are [2, 1, 2, 2], expected from 0 to below kernel_shape, which is [3, 2]",
        ),
        (
            second("LSTM", &["a", "a.weight", "a.weight"], attribute("hidden_size", 7)),
            "hidden_size is 7, expected 3, the last size of R",
        ),
        (
            changed(|model| {
                let output = model.graph.as_mut().unwrap().output[0].r#type.as_mut().unwrap();
                output.tensor_type.as_mut().unwrap().elem_type = Some(7);
            }),
            "tensor `y`: is declared as int64, but node `Relu_y` (Relu) gives float32, expected the same type",
        ),
        (sparse(9), "sparse tensor `s`: index is 9, expected 0 to 8 for the shape [3, 3]"),
        (sparse(-1), "sparse tensor `s`: index is -1"),
    ];
    for (k, (model, expected)) in cases.iter().enumerate() {
        let path = save(model, &folder, &format!("{k}.onnx"));
        // Before the data are read.
        let bad = folder.path().join("bad.npy");
        fs::write(&bad, "none").unwrap();
        let error = fails(&path, &[&bad], &[]);
        assert!(error.contains(expected), "{error}\nexpected: {expected}");
    }
    assert!(onnx::check_valid(&sparse(8)).is_ok());
}

#[test]
fn nodes_may_have_the_names_of_inputs_and_constants() {
    let folder = TempDir::new().unwrap();
    let model = changed(|model| {
        let nodes = &mut model.graph.as_mut().unwrap().node;
        (nodes[0].name, nodes[1].name) = (Some("x".into()), Some("a.weight".into()));
    });
    let mut command = mqq_on("eval", &save(&model, &folder, "m.onnx"));
    run(command.arg("--data").arg(images()).args(["--preprocess", "half"])).done();
}

#[test]
fn data_of_a_single_value_are_a_warning() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("zeros.npy");
    write_npy(&data, &[16, 3, 32, 32], &[0.0; 16 * 3 * 32 * 32]);
    let mut command = mqq_on("calibrate", &digits());
    let ran = run(command.arg("--data").arg(&data).args(["--effort", "0", "--out-dir"]).arg(folder.path())).done();
    assert!(ran.stderr.contains("input `input` has the value 0 in all samples"), "{}", ran.stderr);
}

#[test]
fn yaml_may_begin_with_a_byte_order_mark() {
    let folder = TempDir::new().unwrap();
    let [table, preprocessing] = ["table.yaml", "pixels.yaml"].map(|name| folder.path().join(name));
    fs::write(&table, "\u{feff}extends: tensorrt\r\nname: mine\r\n").unwrap();
    fs::write(&preprocessing, "\u{feff}preset: half\nresize: exact\n").unwrap();
    let mut command = mqq();
    command.arg("calibrate").arg(digits()).arg("-b").arg(&table).arg("--preprocess").arg(&preprocessing);
    run(command.arg("--data").arg(images()).args(["--effort", "0", "--out-dir"]).arg(folder.path())).done();
}

#[test]
fn a_model_that_is_only_run_is_checked_too() {
    let folder = TempDir::new().unwrap();
    let evaluated = |change: fn(&mut GraphProto)| {
        let model = changed(|model| change(model.graph.as_mut().unwrap()));
        let mut command = mqq_on("eval", &save(&model, &folder, "m.onnx"));
        run(command.arg("--data").arg(images()).args(["--preprocess", "half"]))
    };
    let newer = evaluated(|graph| graph.node[1].op_type = Some("Gelu".into()));
    assert!(newer.code == 1 && newer.stderr.contains("(Gelu): operator set is 17, expected 20"), "{}", newer.stderr);
    let unmade = evaluated(|graph| graph.output[0].name = Some("nothing".into()));
    assert!(unmade.code == 1 && unmade.stderr.contains("output `nothing`: no node produces it"), "{}", unmade.stderr);
    // Valid: outputs that are left out at the end, and a constant of a rare type that nothing reads.
    evaluated(|graph| {
        let node = &mut graph.node[1];
        (node.op_type, node.output) = (Some("Dropout".into()), vec!["y".into(), String::new()]);
        let raw_data = Some(vec![0; 16].into());
        let name = Some("complex".into());
        graph.initializer.push(TensorProto {
            data_type: Some(15),
            name,
            dims: vec![1],
            raw_data,
            ..Default::default()
        });
    })
    .done();
}

#[test]
fn a_model_without_inputs_takes_no_data() {
    let folder = TempDir::new().unwrap();
    let model = changed(|model| {
        let graph = model.graph.as_mut().unwrap();
        graph.input.clear();
        graph.initializer.push(onnx::tensor::from_f32("x", &[1, 3, 32, 32], &[0.5; 3 * 32 * 32]).unwrap());
    });
    let ran = run(mqq_on("eval", &save(&model, &folder, "m.onnx")).arg("--data").arg(images()));
    let expected = format!("error: `{}`: the model has no input that takes data, expected", images().display());
    assert!(ran.code == 1 && ran.stderr.starts_with(&expected), "{}", ran.stderr);
}

#[test]
fn errors_of_the_engine_name_the_node() {
    let folder = TempDir::new().unwrap();
    let behind = |op: &str, inputs: &[&str], attributes: &[(&str, Attr)]| {
        let mut g = GraphBuilder::new(17);
        g.input("x", &[1, 3, 32, 32]);
        g.conv("x", 3, 16, 3, 1, "a");
        g.tensor(onnx::tensor::from_i64("far", &[1], &[500]).unwrap());
        g.tensor(onnx::tensor::from_i64("odd", &[2], &[7, -1]).unwrap());
        g.tensor(onnx::tensor::from_i64("huge", &[2], &[1 << 40, 1 << 20]).unwrap());
        g.tensor(onnx::tensor::from_i64("pads", &[8], &[0, 0, 1 << 20, 1 << 20, 0, 0, 0, 0]).unwrap());
        g.weight("wide", &[16, 9, 3, 3]);
        g.values("pair", &[2], &[0.0, 1.0]);
        g.op_with(op, inputs, "b", attributes);
        g.op("Relu", &["b"], "y");
        g.output("y").build()
    };
    let cases = [
        behind("Conv", &["a", "wide"], &[]),
        behind("Gather", &["a", "far"], &[("axis", Attr::Int(1))]),
        behind("Transpose", &["a"], &[("perm", Attr::Ints(vec![0, 1, 9, 2]))]),
        behind("Reshape", &["a", "odd"], &[]),
        behind("Concat", &["a", "x"], &[("axis", Attr::Int(5))]),
        behind("MaxPool", &["a"], &[("kernel_shape", Attr::Ints(vec![2, 2])), ("strides", Attr::Ints(vec![0, 0]))]),
        // Sizes that the model declares.
        behind("ConstantOfShape", &["huge"], &[]),
        behind("Expand", &["a", "huge"], &[]),
        behind("Pad", &["a", "pads"], &[]),
        behind("Split", &["a", "odd"], &[("axis", Attr::Int(1))]),
        behind("Slice", &["a", "far", "far", "far"], &[]),
        behind("LogSoftmax", &["a"], &[("axis", Attr::Int(4))]),
        behind("OneHot", &["a", "far", "pair"], &[("axis", Attr::Int(-7))]),
        behind("LayerNormalization", &["a", "wide"], &[("axis", Attr::Int(-7))]),
        behind("LayerNormalization", &["a", "wide"], &[("axis", Attr::Int(1 << 40))]),
        behind("MaxPool", &["a"], &[("kernel_shape", Attr::Ints(vec![2, 2])), ("pads", Attr::Ints(vec![1 << 40; 4]))]),
    ];
    for (k, model) in cases.iter().enumerate() {
        let path = save(model, &folder, &format!("{k}.onnx"));
        let error = fails(&path, &[&images()], &["--preprocess", "half", "--effort", "0"]);
        assert!(error.contains("node `") && error.contains("_b`") || error.contains("tensor `b`"), "{k}: {error}");
        let of_its_code = [
            "unify", "Unify", "analyse", "Translating", "out of bounds", "out of range", "unexpectedly", "Val(",
            "Illegal combination",
        ];
        assert!(!of_its_code.iter().any(|words| error.contains(words)), "{k}: {error}");
    }
}

/// A model whose Add does not fit a Range of `limit` numbers, which the engine finds out while it runs.
fn with_range(limit: i64) -> ModelProto {
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 32, 32]);
    g.conv("x", 3, 16, 3, 1, "a");
    for (name, value) in [("start", 0), ("limit", limit), ("delta", 1)] {
        g.tensor(onnx::tensor::from_i64(name, &[], &[value]).unwrap());
    }
    g.op("Range", &["start", "limit", "delta"], "range");
    g.op_with("Cast", &["range"], "numbers", &[("to", Attr::Int(1))]);
    g.op("Add", &["a", "numbers"], "y");
    g.output("y").build()
}

#[test]
fn a_fault_of_the_model_on_a_sample_is_none_of_the_data() {
    let folder = TempDir::new().unwrap();
    let options = ["--preprocess", "half", "--effort", "0"];
    let error = fails(&save(&with_range(7), &folder, "m.onnx"), &[&images()], &options);
    assert!(error.contains("(Add): ") && error.contains("hint: run the sample in ONNX Runtime"), "{error}");
    let error = fails(&save(&with_range(1 << 26), &folder, "m.onnx"), &[&images()], &options);
    assert!(error.contains("range is 0 to 67108864 by 1, expected at most 16777216 elements"), "{error}");
}

/// Of sizes that follow from several nodes, each of which may declare its own.
#[test]
fn tensors_of_too_many_values_are_refused_before_a_run() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(17);
    g.input("x", &[1, 3, 32, 32]);
    g.tensor(onnx::tensor::from_i64("repeats", &[4], &[7, 1_000_000, 4, 2]).unwrap());
    g.op("Tile", &["x", "repeats"], "tiled");
    g.op_with("ReduceMax", &["tiled"], "y", &[]);
    let path = save(&g.output("y").build(), &folder, "m.onnx");
    for command in ["eval", "calibrate"] {
        let mut command = mqq_on(command, &path);
        let ran = run(command.arg("--data").arg(images()).args(["--preprocess", "half"]));
        assert!(ran.code == 1 && ran.stderr.contains("expected at most 1073741824 elements"), "{}", ran.stderr);
    }
}

fn mqq_on(command: &str, model: &Path) -> Command {
    let mut mqq = mqq();
    mqq.arg(command).arg(model);
    if command == "calibrate" {
        mqq.args(["-b", "tensorrt"]);
    }
    mqq
}

#[test]
fn a_negative_size_is_told_in_plain_words() {
    let folder = TempDir::new().unwrap();
    let model = changed(|model| model.graph.as_mut().unwrap().initializer[0].dims[0] = -5);
    let error = fails(&save(&model, &folder, "m.onnx"), &[&images()], &["--preprocess", "half"]);
    assert!(error.contains("-5") && error.contains("expected no negative number\n"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_are_named() {
    use std::os::unix::fs::symlink;
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    symlink("missing/q.onnx", at("file.onnx")).unwrap();
    symlink("missing", at("folder")).unwrap();
    for (output, said) in [
        ("file.onnx", "file.onnx`: is a link into `"),
        ("folder/q.onnx", "folder` is a link to a folder that does not exist"),
    ] {
        let ran = run(mqq().arg("prepare").arg(digits()).args(["-b", "tensorrt", "-o"]).arg(at(output)));
        assert!(ran.code == 2 && ran.stderr.contains(said), "{output}: {} {}", ran.code, ran.stderr);
        assert!(ran.stderr.contains("hint: make the folder that the link names"), "{}", ran.stderr);
    }
}

#[test]
fn a_size_of_more_bits_than_onnx_has_is_refused() {
    let ran = run(mqq().arg("inspect").arg(digits()).args(["--shape", "input=18446744073709551615x3x32x32"]));
    assert!(ran.code == 2 && ran.stderr.contains("--shape is `input=18446744073709551615x3x32x32`"), "{}", ran.stderr);
}

#[test]
fn ids_outside_of_the_vocabulary_are_named() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(17);
    g.weight("table", &[10, 4]);
    g.input("ids", &[1, 3]);
    g.op("Gather", &["table", "ids"], "rows");
    g.weight("w", &[4, 5]);
    g.op("MatMul", &["rows", "w"], "y");
    let mut model = g.output("y").build();
    let input = &mut model.graph.as_mut().unwrap().input[0];
    input.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().elem_type = Some(7);
    let path = save(&model, &folder, "m.onnx");
    for (id, is_inside) in [(9, true), (-10, true), (10, false), (-11, false), (1 << 40, false)] {
        let ids = folder.path().join("ids.pb");
        fs::write(&ids, onnx::tensor::from_i64("ids", &[1, 3], &[0, id, 1]).unwrap().encode_to_vec()).unwrap();
        match is_inside {
            true => {
                let out = folder.path().join("q.onnx");
                let args = ["calibrate", "-b", "onnxruntime", "-o"];
                run(mqq().args(args).arg(out).arg(&path).arg("--data").arg(&ids)).done();
            }
            false => {
                let error = fails(&path, &[&ids], &[]);
                let expected = format!("node `Gather_rows` (Gather): index is {id}, expected -10 to 9");
                assert!(error.contains(&expected) && error.contains("ids.pb"), "{error}");
            }
        }
    }
}

#[test]
fn names_do_not_control_the_terminal() {
    let folder = TempDir::new().unwrap();
    let evil = "\x1b[2J\u{9b}31m\nerror: forged\u{202e}";
    let long = "n".repeat(1 << 20);
    for name in [evil, &long] {
        let model = changed(|model| {
            let graph = model.graph.as_mut().unwrap();
            graph.node[1].name = Some(name.into());
            graph.node[1].op_type = Some(name.into());
            graph.node[0].output[0] = name.into();
            graph.node[1].input[0] = name.into();
        });
        let path = save(&model, &folder, "m.onnx");
        let (data, unknown) = (images().display().to_string(), format!("--{name}"));
        let commands: [&[&str]; 5] = [
            &["inspect", "-v", "-b", "tensorrt"],
            &["calibrate", "-b", "tensorrt", "--data", &data],
            &["calibrate", "-b", "tensorrt", "--json", "--data", &data],
            &["calibrate", "-b", name, "--data", &data],
            &["inspect", &unknown],
        ];
        for args in commands.iter().filter(|args| !args.iter().any(|arg| arg.contains(&long))) {
            let ran = run(mqq().args(*args).arg(&path));
            let text = ran.stdout + &ran.stderr;
            assert!(text.chars().all(|c| c == '\n' || !mqq::diag::is_unprintable(c)), "{args:?}: {text:?}");
            assert!(!text.lines().any(|line| line.starts_with("error: forged")), "{text}");
            assert!(text.lines().all(|line| line.len() < 20_000), "{args:?}");
        }
    }
}

#[test]
fn texts_are_limited_in_depth_and_expansion() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Brackets in a comment do not count.
    let commented = at("commented.yaml");
    fs::write(&commented, format!("# {}\nscale: 0.00392\n", "[".repeat(100))).unwrap();
    let args = ["calibrate", "-b", "tensorrt", "--effort", "0", "--data"];
    let out = at("q.onnx");
    run(mqq().args(args).arg(images()).arg("--preprocess").arg(&commented).arg("-o").arg(out).arg(digits())).done();
    let bomb: String =
        (1..10).map(|k| format!("a{k}: &a{k} [{}]\n", vec![format!("*a{}", k - 1); 10].join(", "))).collect();
    let cases = [
        (format!("x: {}", "[".repeat(100_000)), "nested deeper than 64 levels"),
        (format!("x: {}", "{a: ".repeat(3_000)), "nested deeper than 64 levels"),
        (format!("x: \"\n# \": {}", "[".repeat(3_000)), "nested deeper than 64 levels"),
        ("- ".repeat(100_000) + "x", "nested deeper than 64 levels"),
        (format!("a0: &a0 [x, x]\n{bomb}"), "more than 100000 values with its aliases expanded"),
        ("#".repeat(2 << 20), "expected at most 1048576"),
    ];
    for (k, (text, expected)) in cases.iter().enumerate() {
        let yaml = at(&format!("{k}.yaml"));
        fs::write(&yaml, text).unwrap();
        let yaml = yaml.display().to_string();
        let error = fails(&digits(), &[&images()], &["--preprocess", &yaml]);
        assert!(error.contains(expected) && error.contains(&yaml), "{error}");
        let error = fails(&digits(), &[&images()], &["--preprocess", "half", "--effort", "1", "--head", &yaml]);
        assert!(error.contains(expected), "{error}");
        let ran = run(mqq().args(["backends", &yaml]));
        assert!(ran.code != 0 && ran.stderr.contains(expected), "{}", ran.stderr);
    }
    // Aliases as people use them.
    fs::write(at("good.yaml"), "mean: &x [0.5]\nstd: *x\nscale: 1/255\n").unwrap();
    assert!(mqq::foreign::read_yaml(&at("good.yaml")).is_ok());
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_files() {
    let folder = TempDir::new().unwrap();
    for name in ["d.npy", "d.npz", "d.png", "d.txt", "d.csv", "t.yaml"] {
        let path = folder.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let pipe = path.display().to_string();
        let error = match name {
            "t.yaml" => fails(&digits(), &[&images()], &["--preprocess", &pipe]),
            _ => fails(&digits(), &[&path], &["--preprocess", "half"]),
        };
        assert!(error.contains(name) && error.contains("is not a regular file"), "{name}: {error}");
    }
    let device = folder.path().join("d.pb");
    std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
    let error = fails(&digits(), &[&device], &["--preprocess", "half"]);
    assert!(error.contains("is not a regular file"), "{error}");
}

#[test]
fn headers_and_checksums_of_arrays_are_checked() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_noise(&at("good.npy"), &[4, 3, 32, 32], 1);
    let good = fs::read(at("good.npy")).unwrap();
    let nested = format!("{{'descr': {}('a', '<f4'){}, 'shape': (1,)}}\n", "[".repeat(40), "]".repeat(40));
    let nested = [&b"\x93NUMPY\x01\0"[..], &(nested.len() as u16).to_le_bytes(), nested.as_bytes()].concat();
    let long = [&b"\x93NUMPY\x02\0"[..], &u32::MAX.to_le_bytes(), &good[10..]].concat();
    for (bytes, expected) in [(nested, "nested deeper than 8 levels"), (long, "header has 4294967295 bytes")] {
        fs::write(at("x.npy"), bytes).unwrap();
        let error = fails(&digits(), &[&at("x.npy")], &[]);
        assert!(error.contains("x.npy`: ") && error.contains(expected), "{error}");
    }
    crate::data::write_npz_stored(&at("x.npz"), &[("input", good.clone())]);
    let mut archive = fs::read(at("x.npz")).unwrap();
    let middle = archive.len() / 2;
    archive[middle] ^= 1;
    fs::write(at("x.npz"), archive).unwrap();
    let error = fails(&digits(), &[&at("x.npz")], &[]);
    assert!(error.contains("x.npz`: ") && error.to_lowercase().contains("checksum"), "{error}");
}

#[cfg(unix)]
#[test]
fn external_data_are_in_the_folder_or_in_the_cache() {
    use std::os::unix::fs::symlink;
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut model = onnx::load(&digits()).unwrap();
    let tensor = &mut model.graph.as_mut().unwrap().initializer[0];
    let data = tensor.raw_data.take().unwrap();
    tensor.data_location = Some(1);
    tensor.external_data = vec![StringStringEntryProto { key: Some("location".into()), value: Some("w.bin".into()) }];
    for made in ["snapshots/1", "blobs", "other"] {
        fs::create_dir_all(at(made)).unwrap();
    }
    fs::write(at("blobs/abc"), &data).unwrap();
    fs::write(at("other/abc"), &data).unwrap();
    let models = ["snapshots/1", "other"].map(|name| {
        onnx::save(&model, &at(name).join("m.onnx")).unwrap();
        at(name)
    });
    symlink("../../blobs/abc", models[0].join("w.bin")).unwrap();
    assert!(onnx::load_whole(&models[0].join("m.onnx")).is_ok());
    fs::remove_file(models[0].join("w.bin")).unwrap();
    symlink("../../other/abc", models[0].join("w.bin")).unwrap();
    symlink("../blobs/abc", models[1].join("w.bin")).unwrap();
    for folder in &models {
        let error = fails(&folder.join("m.onnx"), &[&images()], &["--preprocess", "half"]);
        assert!(error.contains("expected a file in the model's folder or below it"), "{error}");
    }
    fs::remove_file(models[1].join("w.bin")).unwrap();
    symlink("abc", models[1].join("w.bin")).unwrap();
    assert!(onnx::load_whole(&models[1].join("m.onnx")).is_ok());
}

#[cfg(target_os = "linux")]
#[test]
fn limits_of_the_system_are_errors_and_leave_nothing() {
    let folder = TempDir::new().unwrap();
    let limited = |limit: &str, threads: &str| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]);
        command.arg(assert_cmd::cargo::cargo_bin!("mqq")).arg("calibrate").arg(digits());
        command.args(["-b", "tensorrt", "--preprocess", "half", "--threads", threads, "--out-dir"]).arg(folder.path());
        let output = command.arg("--data").arg(images()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let bytes = || {
        let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
        let both = (read("digits_cnn.tensorrt.onnx"), read("digits_cnn.tensorrt.json"));
        fs::remove_file(folder.path().join("digits_cnn.tensorrt.onnx")).unwrap();
        fs::remove_file(folder.path().join("digits_cnn.tensorrt.json")).unwrap();
        both
    };
    assert_eq!(limited("true", "1").0, Some(0));
    let expected = bytes();
    assert_eq!(limited("ulimit -s 64", "1").0, Some(0));
    assert!(bytes() == expected);
    let mut n_failed = 0;
    for limit in ["ulimit -f 8", "ulimit -v 40000", "ulimit -v 60000", "ulimit -v 80000", "ulimit -v 120000"] {
        let (code, stderr) = limited(limit, "1");
        match code {
            Some(0) => assert!(bytes() == expected, "{limit}: another model"),
            // Below some limit the program cannot be started.
            Some(127) | None if limit.contains("-v 40000") => {}
            _ => {
                n_failed += 1;
                assert!(code == Some(1) && stderr.contains("error: "), "{limit}: {code:?} {stderr}");
                assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{limit}: {stderr}");
            }
        }
    }
    assert!(n_failed >= 2);
}

#[test]
fn a_model_and_a_sidecar_of_two_runs_are_told() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let calibrate = |more: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(digits()).args(["-b", "tensorrt", "--preprocess", "half", "--effort", "0"]);
        let ran = run(command.arg("--data").arg(images()).arg("-o").arg(at("q.onnx")).args(more));
        ran.stdout + &ran.stderr
    };
    let check = || run(mqq().arg("check").arg(at("q.onnx")).args(["-b", "tensorrt"])).stdout;
    let sidecar = |text: &str| {
        calibrate(&[]);
        let kept = fs::read(at("q.json")).unwrap();
        calibrate(&["--limit", "3"]);
        if text == "mixed" {
            fs::write(at("q.json"), kept).unwrap();
        }
    };
    sidecar("whole");
    assert!(!check().contains("sidecar"), "{}", check());
    sidecar("mixed");
    assert!(check().contains("warning [sidecar]"), "{}", check());
    let other = fs::read(at("q.json")).unwrap();
    let said = calibrate(&["--skip-existing", "--limit", "3"]);
    assert!(said.contains("came from two different runs") && !said.contains("skipped"), "{said}");
    assert!(calibrate(&["--skip-existing", "--limit", "3"]).contains("results exist, skipped"));
    fs::write(at("q.json"), other).unwrap();
    let said = calibrate(&["--skip-existing", "--limit", "3"]);
    assert!(said.contains("came from two different runs") && !said.contains("skipped"), "{said}");
    assert!(!check().contains("sidecar"));
}
