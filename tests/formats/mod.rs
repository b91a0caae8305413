//! Formats of other tools: golden files, export against emit, and ranges read back.

mod ranges;
use crate::support::command::{Ran, mqq, run};
use crate::support::{Attr, GraphBuilder, noise, repository, write_npy};
use assert_cmd::Command;
use mqq::backends;
use mqq::export::{FORMATS, Format};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn done(command: &mut Command) -> Ran {
    run(command).done()
}

fn files(folder: &Path) -> BTreeSet<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    fs::read_dir(folder).unwrap().map(|entry| name(entry.unwrap())).collect()
}

/// Weights that lie on a grid of 8 bits with the scale 2^-9, and reach its end.
fn weight(g: &mut GraphBuilder, name: &str, shape: &[usize]) -> String {
    let n: usize = shape.iter().product();
    let mut values: Vec<f32> = (0..n).map(|i| ((i * 37 + 11) % 241) as f32 - 120.0).map(|q| q / 512.0).collect();
    values[0] = 127.0 / 512.0;
    g.values(name, shape, &values)
}

/// A Conv with Relu, a depthwise Conv with a residual Add, a classifier.
fn model(folder: &Path) -> PathBuf {
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 3, 8, 8]);
    let conv = |g: &mut GraphBuilder, x: &str, group: i64, shape: &[usize], y: &str| {
        let w = weight(g, &format!("{y}_weight"), shape);
        let b = g.weight(&format!("{y}_bias"), &[shape[0]]);
        let attributes =
            [("group", Attr::Int(group)), ("pads", Attr::Ints(vec![1; 4])), ("kernel_shape", Attr::Ints(vec![3; 2]))];
        g.op_with("Conv", &[x, &w, &b], y, &attributes)
    };
    conv(&mut g, "x", 1, &[4, 3, 3, 3], "conv1_out");
    g.op("Relu", &["conv1_out"], "relu1_out");
    let attributes = [("kernel_shape", Attr::Ints(vec![2; 2])), ("strides", Attr::Ints(vec![2; 2]))];
    g.op_with("MaxPool", &["relu1_out"], "pool_out", &attributes);
    conv(&mut g, "pool_out", 4, &[4, 1, 3, 3], "conv2_out");
    g.ops("add_out = Add conv2_out pool_out; mean_out = GlobalAveragePool add_out; flat_out = Flatten mean_out");
    let w = weight(&mut g, "fc_weight", &[5, 4]);
    let b = g.weight("fc_bias", &[5]);
    g.op_with("Gemm", &["flat_out", &w, &b], "y", &[("transB", Attr::Int(1))]);
    g.output("y");
    let path = folder.join("model.onnx");
    mqq::onnx::save(&g.build(), &path).unwrap();
    path
}

fn digits(backend: &str, folder: &Path) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", backend]);
    command.arg("--out-dir").arg(folder).args(["--effort", "0"]);
    command
}

fn with_data(command: &mut Command) -> &mut Command {
    command.args(["--preprocess", "half"]).arg("--data").arg(repository("calib_data/calib"))
}

fn golden(name: &str) -> PathBuf {
    repository("tests/golden/formats").join(name)
}

/// The table and the ranges that a format's golden file is made with.
fn case_of(format: &str) -> (&'static str, &'static str) {
    match format {
        "snpe" | "ppl" | "pplcuda" | "tengine" | "ort-json" | "openvino-fq" | "tidl" | "encodings-0.6.1"
        | "encodings-1.0.0" | "encodings-2.0.0" => ("uint8", "ranges"),
        "vitis" => ("int8_per_tensor", "ranges_power_of_two"),
        "stpu" | "tidl-quant-params" => ("int8_per_tensor", "ranges"),
        _ => ("int8", "ranges"),
    }
}

fn calibrate(model: &Path, (table, ranges): (&str, &str), folder: &Path) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(model).arg("--out-dir").arg(folder);
    command.arg("--backend").arg(golden(&format!("tables/{table}.yaml")));
    command.arg("--ranges-from").arg(golden(&format!("{ranges}.json")));
    command
}

fn emitted(format: &Format, model: &Path, folder: &Path) -> (PathBuf, Vec<u8>) {
    let (table, ranges) = case_of(format.name);
    let mut command = calibrate(model, (table, ranges), folder);
    done(command.args(["--emit", format.name, "--quiet"]));
    let sidecar = folder.join(format!("model.{table}.json"));
    let bytes = fs::read(sidecar.with_extension(format.suffix)).unwrap();
    (sidecar, bytes)
}

/// `MQQ_UPDATE_GOLDEN=1` writes the files anew.
#[test]
fn every_format_gives_its_golden_file_and_export_gives_the_same() {
    let folder = TempDir::new().unwrap();
    let model = model(folder.path());
    let update = std::env::var_os("MQQ_UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    // Node data have errors of tensors, which differ in their last digits from processor to processor.
    for format in FORMATS.iter().filter(|format| format.name != "model-explorer") {
        let out = TempDir::new().unwrap();
        let (sidecar, bytes) = emitted(format, &model, out.path());
        let path = golden(&format!("model.{}", format.suffix));
        if update {
            fs::write(&path, &bytes).unwrap();
        }
        if fs::read(&path).ok().as_ref() != Some(&bytes) {
            wrong.push(format!("{}: {}", format.name, String::from_utf8_lossy(&bytes)));
        }
        let exported = out.path().join("exported");
        let mut command = mqq();
        command.arg("export").arg(&sidecar).args(["--format", format.name, "-o"]);
        done(command.arg(&exported).arg("--model").arg(&model));
        assert!(fs::read(&exported).unwrap() == bytes, "{}", format.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn names_and_endings_are_all_different() {
    let names: BTreeSet<&str> = FORMATS.iter().map(|format| format.name).collect();
    let endings: BTreeSet<&str> = FORMATS.iter().map(|format| format.suffix).collect();
    assert_eq!((names.len(), endings.len()), (FORMATS.len(), FORMATS.len()));
    assert!(!endings.contains("json") && !endings.contains("onnx") && !names.contains("sidecar"));
    let listed = done(mqq().args(["export", "--list"])).stdout;
    assert!(names.iter().all(|name| listed.contains(name)), "{listed}");
}

#[test]
fn what_a_format_cannot_hold_is_an_error_that_names_the_tensor_and_nothing_is_written() {
    let folder = TempDir::new().unwrap();
    let model = model(folder.path());
    let cases = [
        ("vitis", "int8_per_tensor", "tensor `x`: scale is 0.0"),
        ("vitis", "int8", "tensor `x`: scale is 0.0"),
        ("stpu", "int8", "tensor `conv1_out_weight`: has 4 scales along axis 0, expected one"),
        ("tidl-quant-params", "int8", "tensor `conv1_out_weight`: has 4 scales"),
    ];
    for (format, table, expected) in cases {
        let out = TempDir::new().unwrap();
        let mut command = calibrate(&model, (table, "ranges"), out.path());
        // A format that can be written stands before the one that cannot.
        let ran = run(command.args(["--emit", "ort-json,encodings-2.0.0", "--emit", format]));
        assert_eq!(ran.code, 1, "{format}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("format `{format}`")), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{format}: {}", ran.stderr);
        assert!(ran.stderr.starts_with(&format!("error: `{}`", model.display())));
        assert!(files(out.path()).is_empty(), "{format}: {:?}", files(out.path()));
    }
    // Where no type of the table fits, before anything is calibrated; later, from a sidecar, with the tensor's name.
    done(&mut calibrate(&model, ("uint8", "ranges"), folder.path()));
    let sidecar = folder.path().join(files(folder.path()).into_iter().find(|name| name.ends_with("json")).unwrap());
    for format in
        ["trt-cache", "mqbench-tensorrt", "ort-flatbuffers", "ort-cache", "ppq", "stpu", "vitis", "ncnn", "mnn"]
    {
        let out = TempDir::new().unwrap();
        let ran = run(calibrate(&model, ("uint8", "ranges"), out.path()).args(["--emit", format]));
        assert_eq!(ran.code, 2, "{format}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(&format!("format `{format}` holds only symmetric int8 activations")),
            "{}",
            ran.stderr
        );
        let ran = run(mqq().arg("export").arg(&sidecar).args(["--format", format]).arg("-o").arg(out.path().join("f")));
        assert_eq!(ran.code, 1, "{format}: {}", ran.stderr);
        assert!(ran.stderr.contains("is uint8 with zero point"), "{format}: {}", ran.stderr);
        assert!(files(out.path()).is_empty(), "{format}: {:?}", files(out.path()));
    }
}

#[test]
fn emit_is_checked_before_any_work_and_the_same_each_time() {
    let folder = TempDir::new().unwrap();
    let model = model(folder.path());
    let out = TempDir::new().unwrap();
    let ran = run(calibrate(&model, ("int8", "ranges"), out.path()).args(["--emit", "trt-cashe"]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("did you mean `trt-cache`?"), "{}", ran.stderr);
    let ran = run(mqq().args(["export", "none.json", "--format", "ncn"]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("did you mean `ncnn`?"), "{}", ran.stderr);
    let table = fs::read_to_string(golden("tables/int8.yaml")).unwrap();
    let bad = folder.path().join("bad.yaml");
    fs::write(&bad, table.replace("emit: [sidecar]", "emit: [sidecar, ncnm]")).unwrap();
    let ran = run(mqq().arg("backends").arg(&bad));
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("did you mean `ncnn`?"), "{}", ran.stderr);
    let asks = folder.path().join("asks.yaml");
    fs::write(&asks, table.replace("emit: [sidecar]", "emit: [sidecar, ncnn, ppq]")).unwrap();
    let twice: Vec<Vec<Vec<u8>>> = (0..2)
        .map(|_| {
            let out = TempDir::new().unwrap();
            let mut command = mqq();
            command.arg("calibrate").arg(&model).arg("--out-dir").arg(out.path()).arg("--json");
            command.arg("--backend").arg(&asks).arg("--ranges-from").arg(golden("ranges.json"));
            let ran = done(&mut command);
            let report = ran.json();
            assert_eq!(report["results"][0]["emitted"].as_object().unwrap().len(), 2);
            assert_eq!(
                files(out.path()).into_iter().collect::<Vec<_>>(),
                ["model.int8.act_quant_info.json", "model.int8.json", "model.int8.ncnn.table", "model.int8.onnx"]
            );
            files(out.path()).iter().map(|f| fs::read(out.path().join(f)).unwrap()).collect()
        })
        .collect();
    assert!(twice[0] == twice[1]);
}

#[test]
fn export_refuses_what_it_cannot_read() {
    let folder = TempDir::new().unwrap();
    let model = model(folder.path());
    done(&mut calibrate(&model, ("int8", "ranges"), folder.path()));
    let sidecar = folder.path().join("model.int8.json");
    let text = fs::read_to_string(&sidecar).unwrap();
    let export = |text: &str, format: &str, model: Option<&Path>| {
        let path = folder.path().join("edited.json");
        fs::write(&path, text).unwrap();
        let mut command = mqq();
        command.arg("export").arg(&path).args(["--format", format]);
        if let Some(model) = model {
            command.arg("--model").arg(model);
        }
        let ran = run(&mut command);
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        (ran.code, ran.stderr)
    };
    assert_eq!(export(&text, "ppq", None).0, 0);
    let version = format!("\"schema_version\": \"{}\"", mqq::sidecar::SCHEMA_VERSION);
    let edits = [
        (version.as_str(), "\"schema_version\": \"4.0\"", "expected 1.1 to 3.x"),
        (version.as_str(), "\"schema_version\": \"1.0\"", "calibrate again"),
        (version.as_str(), "\"schema_version\": 7", "has no string `schema_version`"),
        ("\"output_dtype\": \"int8\"", "\"output_dtype\": \"int99\"", "output_dtype is `int99`"),
        ("\"axis\": 0", "\"axis\": null", "y_scale is a list without an axis"),
        ("\"y_zero_point\": 0", "\"y_zero_point\": []", "y_zero_point has 0 numbers"),
        ("\"y_scale\": 0.", "\"y_scale\": -0.", "y_scale is not one or more positive numbers"),
        ("\"schema_version\"", "schema_version", "does not parse as JSON"),
        ("\"graph\"", "\"grph\"", "`: missing key `graph`"),
        ("\"output_dtype\": \"int8\"", "\"output_dtype\": 8", "encodings.0.output_dtype: found `8`, expected text"),
    ];
    for (from, to, expected) in edits {
        assert!(text.contains(from), "{from}");
        let (code, stderr) = export(&text.replace(from, to), "ppq", None);
        assert_eq!(code, 1, "{to}: {stderr}");
        assert!(stderr.contains(expected), "{to}: {stderr}");
        assert!(stderr.starts_with("error: `"), "{stderr}");
    }
    assert_eq!(export(&text.replace(&version, "\"schema_version\": \"1.99\""), "ppq", None).0, 0);
    let (code, stderr) = export(&text, "deploy", None);
    assert!(code == 2 && stderr.contains("hint: pass it with --model"), "{stderr}");
    let (code, stderr) = export(&text, "deploy", Some(&repository("fixtures/digits_cnn.onnx")));
    assert!(code == 1 && stderr.contains("is not the float model of the sidecar"), "{stderr}");
    let renamed = text.replace("\"Conv_conv1_out\"", "\"elsewhere\"");
    let (code, stderr) = export(&renamed, "openvino-fq", Some(&model));
    assert!(code == 1 && stderr.contains("the model has no node `elsewhere` that reads it"), "{stderr}");
    let turned = text.replace("\"axis\": 0", "\"axis\": 9");
    let (code, stderr) = export(&turned, "encodings-2.0.0", None);
    assert!(code == 1 && stderr.contains("scales along axis 9"), "{stderr}");
    let spaced = text.replace("\"relu1_out\"", "\"relu1 out\"");
    let (code, stderr) = export(&spaced, "ort-cache", None);
    assert!(code == 1 && stderr.contains("`relu1 out`: its name has white space"), "{stderr}");
}

/// Every table's own formats can hold its plans, and its sidecar has all that a second run needs.
#[test]
fn every_backend_gives_the_formats_that_its_table_names() {
    for (backend, _) in backends::BUILT_IN {
        let table = mqq::backends::resolve(backend).unwrap();
        let folder = TempDir::new().unwrap();
        done(with_data(&mut digits(backend, folder.path())).args(["--limit", "8", "--quiet"]));
        let formats = mqq::export::by_names(table.emit.iter().map(String::as_str)).unwrap();
        for format in formats {
            let path = folder.path().join(format!("digits_cnn.{backend}.{}", format.suffix));
            assert!(fs::metadata(&path).unwrap().len() > 20, "{}", path.display());
        }
        let again = TempDir::new().unwrap();
        let name = format!("digits_cnn.{backend}.onnx");
        let sidecar = folder.path().join(&name).with_extension("json");
        done(digits(backend, again.path()).arg("--ranges-from").arg(&sidecar).arg("--quiet"));
        let models = [&folder, &again].map(|folder| fs::read(folder.path().join(&name)).unwrap());
        assert!(models[0] == models[1], "{backend}");
    }
}

#[test]
fn what_tuning_changed_is_in_the_graphs_and_export_gives_the_same() {
    let emitted = |backend: &str, effort: &str, folder: &Path| {
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx"));
        command.args(["-b", backend, "--emit", "deploy,openvino-fq", "--effort", effort, "--out-dir"]);
        done(with_data(command.arg(folder)));
        folder.join(format!("digits_cnn.{backend}.json"))
    };
    let exported = |sidecar: &Path, format: &str, folder: &Path| {
        let mut command = mqq();
        command.arg("export").arg(sidecar).args(["--format", format, "-o"]);
        command.arg(folder.join("again")).arg("--model");
        run(command.arg(repository("fixtures/digits_cnn.onnx")))
    };
    let mut graphs = BTreeSet::new();
    // Corrected biases, then learned rounding too; in xint8 of weights with one scale, by bias grids as well.
    for (backend, effort) in [("tensorrt", "0"), ("tensorrt", "1"), ("tensorrt", "3"), ("xint8", "1"), ("snpe", "1")] {
        let folder = TempDir::new().unwrap();
        let sidecar = emitted(backend, effort, folder.path());
        for (format, ending) in [("deploy", "deploy.onnx"), ("openvino-fq", "openvino.onnx")] {
            let ran = exported(&sidecar, format, folder.path());
            assert_eq!(ran.code, 0, "{backend} {effort}: {}", ran.stderr);
            let graph = fs::read(sidecar.with_extension(ending)).unwrap();
            assert!(fs::read(folder.path().join("again")).unwrap() == graph, "{backend} {effort}");
            assert!(graphs.insert(graph), "{backend} {effort} {format} is as one before");
        }
        let text = fs::read_to_string(&sidecar).unwrap();
        let mut parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        let n_rounded = parsed["tuning"]["n_rounded"].as_u64().unwrap_or(0);
        assert_eq!(n_rounded > 0, effort == "3" || backend != "tensorrt", "{backend} {effort}");
        if n_rounded == 0 {
            continue;
        }
        let encodings = parsed["param_encodings"].as_array_mut().unwrap();
        let first = encodings.iter_mut().find(|encoding| encoding.get("rounding").is_some());
        let first = first.unwrap().as_object_mut().unwrap();
        let name = first["name"].as_str().unwrap().to_string();
        first["rounding"] = "AAAA".into();
        let broken = folder.path().join("broken.json");
        fs::write(&broken, parsed.to_string()).unwrap();
        let ran = exported(&broken, "deploy", folder.path());
        assert_eq!(ran.code, 1);
        assert!(ran.stderr.contains(&format!("initializer `{name}`")), "{}", ran.stderr);
        assert!(ran.stderr.contains("`rounding`"), "{}", ran.stderr);
    }
}

/// Weights without learned rounding beside one that has it keep their float values in both.
#[test]
fn export_gives_the_same_where_only_some_weights_are_learned() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(13);
    g.input("x", &[1, 3, 32, 32]);
    let pads = [("pads", Attr::Ints(vec![1; 4]))];
    let w = weight(&mut g, "w1", &[4, 3, 3, 3]);
    g.op_with("Conv", &["x", &w], "conv", &pads);
    g.ops("relu = Relu conv; mean = GlobalAveragePool relu; flat = Flatten mean");
    let w = weight(&mut g, "w2", &[10, 4]);
    let attributes = [("transB", Attr::Int(1)), ("alpha", Attr::Float(0.5))];
    g.op_with("Gemm", &["flat", &w], "y", &attributes);
    g.output("y");
    let model = folder.path().join("model.onnx");
    mqq::onnx::save(&g.build(), &model).unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut command = mqq();
    command.arg("calibrate").arg(&model).args(["-b", "onnxruntime-vnni", "--effort", "3"]);
    // With 4 bits it is sure to pay.
    command.args(["--set", "types.wgt8.bits=4", "--set", "min_opset=21"]);
    command.args(["--emit", "deploy", "-o"]).arg(at("q.onnx"));
    done(with_data(&mut command));
    let sidecar: serde_json::Value = serde_json::from_str(&fs::read_to_string(at("q.json")).unwrap()).unwrap();
    let weights = sidecar["param_encodings"].as_array().unwrap();
    let learned = weights.iter().filter(|encoding| encoding.get("rounding").is_some()).count();
    assert!(learned == 1 && weights.len() > 1, "{weights:?}");
    let mut command = mqq();
    command.arg("export").arg(at("q.json")).args(["--format", "deploy", "-o"]).arg(at("again"));
    done(command.arg("--model").arg(&model));
    assert!(fs::read(at("again")).unwrap() == fs::read(at("q.deploy.onnx")).unwrap());
}

/// The output of a Flatten or Dropout after a convolution is quantized; the file names the convolution's output.
#[test]
fn a_convolution_may_end_the_network_for_stpu() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("x.npy");
    fs::write(&data, npy_ramp(&[4, 3, 8, 8])).unwrap();
    for ops in [&[][..], &["Relu"], &["Flatten"], &["Dropout"], &["Relu", "Dropout", "Flatten"]] {
        let mut g = GraphBuilder::new(13);
        g.input("x", &[1, 3, 8, 8]);
        let mut last = g.conv("x", 3, 4, 3, 1, if ops.is_empty() { "y" } else { "conv" });
        for (i, op) in ops.iter().enumerate() {
            let output = if i + 1 == ops.len() { "y".to_owned() } else { format!("t{i}") };
            last = g.op(op, &[&last], &output);
        }
        g.output("y");
        let path = folder.path().join("model.onnx");
        mqq::onnx::save(&g.build(), &path).unwrap();
        let mut command = mqq();
        command.arg("calibrate").arg(&path).args(["-b", "stpu", "--quiet", "--data"]).arg(&data);
        done(command.arg("--out-dir").arg(folder.path()));
        let file = fs::read(folder.path().join("model.stpu.stpu_minmax.json")).unwrap();
        let ranges: serde_json::Value = serde_json::from_slice(&file).unwrap();
        // A Dropout is bypassed.
        let is_last = ops.iter().all(|op| *op == "Dropout");
        let of_conv = if is_last { &ranges["y"] } else { &ranges["conv"] };
        assert_eq!(of_conv["max"], ranges["y"]["max"], "{ops:?}");
        assert!(of_conv["emin"].is_i64(), "{ops:?}");
    }
}

/// A `.npy` file of float32 that rise from -1 to 1.
fn npy_ramp(shape: &[usize]) -> Vec<u8> {
    let n: usize = shape.iter().product();
    let dims: String = shape.iter().map(|dim| format!("{dim},")).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({dims}), }}");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(118u16.to_le_bytes());
    file.extend(format!("{header:<117}\n").bytes());
    file.extend((0..n).flat_map(|i| (2.0 * i as f32 / n as f32 - 1.0).to_le_bytes()));
    file
}

/// Exporters share equal constants, such as the 0 of each attention's guard against NaN.
#[test]
fn a_constant_with_several_scales_is_left_out_of_encodings() {
    let folder = TempDir::new().unwrap();
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", &[1, 4, 6, 6]);
    let shared = g.weight("shared", &[4, 4, 3, 3]);
    let pads = [("pads", Attr::Ints(vec![1; 4]))];
    let a = g.op_with("Conv", &[&x, &shared], "a", &pads);
    // The output channels are another axis here.
    let b = g.op_with("ConvTranspose", &[&a, &shared], "b", &pads);
    let own = g.weight("own", &[4, 4, 1, 1]);
    let y = g.op("Conv", &[&b, &own], "y");
    g.output(&y);
    let model = folder.path().join("m.onnx");
    fs::write(&model, prost::Message::encode_to_vec(&g.build())).unwrap();
    write_npy(&folder.path().join("x.npy"), &[8, 4, 6, 6], &noise(8 * 144, 5));
    let mut command = mqq();
    command.arg("calibrate").arg(&model).args([
        "-b",
        "qnn-htp",
        "--effort",
        "0",
        "--emit",
        "encodings-0.6.1,encodings-1.0.0,encodings-2.0.0",
    ]);
    done(command.arg("--data").arg(folder.path().join("x.npy")));
    for (ending, key) in [("0.6.1", "param_encodings"), ("1.0.0", "param_encodings"), ("2.0.0", "encodings")] {
        let text = fs::read_to_string(folder.path().join(format!("m.qnn-htp.{ending}.encodings"))).unwrap();
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        let names: Vec<&str> = match &found[key] {
            serde_json::Value::Object(map) => map.keys().map(String::as_str).collect(),
            list => list.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect(),
        };
        assert!(names.contains(&"own") && !names.contains(&"shared"), "{ending}: {names:?}");
    }
}
