//! Wrong names, data that cannot be read, and results that are not what they seem: what newcomers run into.

use crate::data::write_npz_stored;
use crate::support::command::{Ran, mqq, run};
use crate::support::{GraphBuilder, repository};
use assert_cmd::Command;
use image::{ImageFormat, RgbImage};
use std::fs;
use std::path::Path;

use tempfile::TempDir;

fn calibrate(backend: &str, data: &Path, folder: &Path) -> Command {
    let mut command = mqq();
    command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", backend, "--effort", "0"]);
    command.arg("--data").arg(data).arg("--out-dir").arg(folder);
    command
}

fn digits() -> std::path::PathBuf {
    repository("calib_data/calib")
}

fn refused(command: &mut Command, code: i32, expected: &str) -> Ran {
    let ran = run(command);
    assert_eq!(ran.code, code, "{}", ran.stderr);
    assert!(ran.stderr.contains(expected), "{}\nexpected: {expected}", ran.stderr);
    ran
}

#[test]
fn a_backend_has_its_name_in_any_case_and_near_ones_are_suggested() {
    let folder = TempDir::new().unwrap();
    for name in ["TensorRT", "TRT", "OnnxRuntime"] {
        let ran = run(calibrate(name, &digits(), folder.path()).args(["--preprocess", "half", "--limit", "4"]));
        assert_eq!(ran.code, 0, "{name}: {}", ran.stderr);
    }
    for (name, suggested) in [
        ("esp32", "did you mean `esp-dl`?"),
        ("ryzen", "did you mean `xint8` or `xint8-a16`?"),
        ("tensort", "did you mean `tensorrt`?"),
        ("zzz", "`mqq backends` lists them"),
    ] {
        refused(&mut calibrate(name, &digits(), folder.path()), 2, suggested);
    }
}

#[test]
fn a_wrong_option_with_json_leaves_an_error_object() {
    let folder = TempDir::new().unwrap();
    let ran = refused(calibrate("tensorrt", &digits(), folder.path()).args(["--json", "--nosuch"]), 2, "--nosuch");
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["error"], "unexpected argument '--nosuch' found");
    let ran = refused(calibrate("tensorrt", &digits(), folder.path()).args(["--json", "--limit", "x"]), 2, "--limit");
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(report["error"].as_str().unwrap().starts_with("invalid value 'x' for '--limit <N>'"), "{report}");
    let ran = refused(calibrate("tensorrt", &digits(), folder.path()).arg("--nosuch"), 2, "--nosuch");
    assert_eq!(ran.stdout, "");
}

#[test]
fn preprocessing_that_was_not_asked_for_or_has_no_effect_is_a_warning() {
    let folder = TempDir::new().unwrap();
    let ran = run(&mut calibrate("tensorrt", &digits(), folder.path()));
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("no preprocessing is given, so defaults are used: images"), "{}", ran.stderr);
    let array = folder.path().join("x.npy");
    crate::support::write_npy(&array, &[4, 3, 32, 32], &crate::support::noise(4 * 3 * 32 * 32, 1));
    let ran = run(calibrate("tensorrt", &array, folder.path()).args(["--preprocess", "half"]));
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("the preprocessing options have no effect"), "{}", ran.stderr);
    for ran in [
        run(&mut calibrate("tensorrt", &array, folder.path())),
        run(calibrate("tensorrt", &digits(), folder.path()).args(["--preprocess", "half"])),
    ] {
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    }
    let ran = run(mqq().arg("presets"));
    assert!(ran.stdout.lines().any(|line| line.starts_with("imagenet ")), "{}", ran.stdout);
}

#[test]
fn strict_makes_warnings_an_error_and_writes_nothing() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    for (args, expected) in [
        (["--exclude", "*"], "no node was quantized: the written model is the float model"),
        (["--exclude", "nothere"], "`nothere` matches no node name and no operator type of the model"),
    ] {
        let mut command = calibrate("tensorrt", &digits(), &out);
        refused(command.args(["--preprocess", "half", "--strict"]).args(args), 3, expected);
        assert!(!out.exists());
        let ran = run(calibrate("tensorrt", &digits(), &out).args(["--preprocess", "half"]).args(args));
        assert!(ran.code == 0 && ran.stderr.contains(expected), "{}", ran.stderr);
        fs::remove_dir_all(&out).unwrap();
    }
    let ran = run(calibrate("tensorrt", &digits(), &out).args(["--preprocess", "half", "--strict"]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn a_picture_that_cannot_be_decoded_is_an_error_or_counted() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join("data").join(name);
    let out = folder.path().join("out");
    fs::create_dir_all(at("more")).unwrap();
    let picture = RgbImage::from_fn(64, 64, |x, y| image::Rgb([x as u8 * 4, y as u8 * 4, 0]));
    picture.save_with_format(at("more/whole.jpg"), ImageFormat::Jpeg).unwrap();
    let whole = fs::read(at("more/whole.jpg")).unwrap();
    for n in [whole.len() / 2, whole.len() - 2] {
        fs::write(at("cut.jpg"), &whole[..n]).unwrap();
        refused(&mut calibrate("tensorrt", &at(""), &out), 1, "cut.jpg`: is cut off: ");
    }
    // Bytes after the end of an image are ignored.
    fs::write(at("cut.jpg"), [&whole[..], b"more"].concat()).unwrap();
    assert_eq!(run(&mut calibrate("tensorrt", &at(""), &out)).code, 0);
    fs::write(at("new.avif"), b"\0\0\0\x1cftypavif\0\0\0\0").unwrap();
    refused(&mut calibrate("tensorrt", &at(""), &out), 1, "new.avif`: ");
    let ran = run(calibrate("tensorrt", &at(""), &out).arg("--skip-bad-data"));
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("skipped sample: ") && ran.stderr.contains("new.avif"), "{}", ran.stderr);
    assert!(ran.stdout.contains("calibration data  2 samples"), "{}", ran.stdout);
}

#[test]
fn folders_for_results_are_made_and_do_not_stay_empty() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("new/folder/x.onnx");
    let run_with = |data: &Path| {
        let mut command = mqq();
        command.arg("calibrate").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tvm", "--effort", "0"]);
        run(command.args(["--preprocess", "half", "--data"]).arg(data).arg("-o").arg(&output))
    };
    let bad = folder.path().join("bad.npy");
    fs::write(&bad, "none").unwrap();
    assert_eq!(run_with(&bad).code, 1);
    assert!(!folder.path().join("new").exists());
    let ran = run_with(&digits());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(output.exists() && output.with_extension("json").exists());
    assert!(ran.stdout.contains("load it with      tvm.relax.frontend.onnx.from_onnx"), "{}", ran.stdout);
}

#[test]
fn open_dimensions_have_the_shape_of_the_first_array() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut graph = GraphBuilder::new(17);
    for name in ["a", "b"] {
        graph.input(name, &[-1, 3, -1, -1]);
    }
    let sum = graph.op("Add", &["a", "b"], "sum");
    let y = graph.conv(&sum, 3, 4, 3, 1, "y");
    let model = graph.output(&y).build();
    mqq::onnx::save(&model, &at("open.onnx")).unwrap();
    let one = |name: &str, shape: &[usize]| {
        let file = at(name);
        crate::support::write_npy(&file, shape, &crate::support::noise(shape.iter().product(), 1));
        fs::read(file).unwrap()
    };
    let command = |shape: &[&str]| {
        let mut command = mqq();
        command.arg("calibrate").arg(at("open.onnx")).args(["-b", "tvm", "--effort", "0", "--data"]);
        command.arg(at("x.npz")).args(shape).arg("--out-dir").arg(at("out"));
        command
    };
    // Five samples, as one batch or with an axis of samples in front.
    let archive = |a: &[usize], b: &[usize]| write_npz_stored(&at("x.npz"), &[("a", one("a", a)), ("b", one("b", b))]);
    archive(&[5, 3, 12, 10], &[5, 1, 3, 12, 10]);
    let ran = run(&mut command(&[]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("5 samples"), "{}", ran.stdout);
    refused(&mut command(&["--shape", "aa=1x3x12x10"]), 1, "--shape names the input `aa`, expected one of: a, b");
    // An option wins, and an array of another rank says nothing.
    refused(&mut command(&["--shape", "a=1x3x9x9"]), 1, "array has shape [5, 3, 12, 10], input `a` takes [1, 3, 9, 9]");
    archive(&[5, 3, 12, 10], &[12, 10]);
    refused(&mut command(&[]), 1, "input `b` has the shape [?, 3, ?, ?], expected fixed dimensions");
}

#[test]
fn more_threads_than_cores_are_not_used() {
    let folder = TempDir::new().unwrap();
    let ran = run(calibrate("tensorrt", &digits(), folder.path()).args(["--preprocess", "half", "--threads", "999"]));
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("--threads is 999, but there are"), "{}", ran.stderr);
}

#[test]
fn inspect_begins_with_shapes_and_lists_fused_nodes_where_asked() {
    let inspect = |more: &[&str]| {
        let ran = run(mqq().arg("inspect").arg(repository("fixtures/digits_cnn.onnx")).args(["-b", "tvm"]).args(more));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
    };
    let text = inspect(&[]);
    assert!(text.contains("\n  input    input: float [N, 3, 32, 32]\n  output   logits: float [N, 10]\n"), "{text}");
    assert!(!text.contains("fused into"), "{text}");
    assert!(inspect(&["-v"]).contains("fused into"));
    let report: serde_json::Value = serde_json::from_str(&inspect(&["--json"])).unwrap();
    assert_eq!(report["input_types"], serde_json::json!(["float [N, 3, 32, 32]"]));
}

#[test]
fn the_share_of_multiply_adds_on_integers_is_said() {
    let folder = TempDir::new().unwrap();
    let share = |args: &[&str]| {
        let mut command = calibrate("tensorrt", &digits(), folder.path());
        let ran = run(command.args(["--preprocess", "half", "--json"]).args(args));
        let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        report["results"][0]["summary"]["integer_share"].as_f64().unwrap()
    };
    let (all, some) = (share(&[]), share(&["--exclude", "/stem/stem.0/Conv"]));
    // The one layer in float, Gemm, has 640 of some million.
    assert!(all > 0.99 && all < 1.0 && some < all - 0.05, "{all} {some}");
}

#[test]
fn pixel_values_that_fit_clearly_better_are_named() {
    let folder = TempDir::new().unwrap();
    let warned = |data: &Path, more: &[&str]| {
        let ran = run(calibrate("tensorrt", data, folder.path()).args(more));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stderr
    };
    let fits = "the network tells classes apart clearly better with --color rgb --scale 1/255 --mean 0.5 --std 0.5 (as in \
                `imagenet-tf`, `minus-one-to-one`, `half`): ";
    for preset in ["unit", "raw"] {
        let said = warned(&digits(), &["--preprocess", preset]);
        assert!(said.contains(fits) && said.contains(", on 24 images"), "{preset}: {said}");
    }
    // The right values; the check is off; too few images; arrays.
    let array = folder.path().join("x.npy");
    crate::support::write_npy(&array, &[30, 3, 32, 32], &crate::support::noise(30 * 3 * 32 * 32, 1));
    for said in [
        warned(&digits(), &["--preprocess", "half"]),
        warned(&digits(), &["--preprocess", "unit", "--no-preprocess-check"]),
        warned(&digits(), &["--preprocess", "unit", "--limit", "11"]),
        warned(&array, &[]),
    ] {
        assert_eq!(said, "");
    }
}

/// A network without class scores, whose normalizations are those of pixels from -1 to 1.
#[test]
fn normalizations_tell_the_scale() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut model = mqq::onnx::load_whole(&repository("fixtures/digits_cnn.onnx")).unwrap().model;
    let graph = model.graph.as_mut().unwrap();
    // The map in front of the pooling is the output.
    let pool = graph.node.iter().position(|node| node.op_type() == "GlobalAveragePool").unwrap();
    graph.output[0].name = Some(graph.node[pool].input[0].clone());
    graph.output[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().shape = None;
    graph.node.truncate(pool);
    mqq::onnx::save(&model, &at("map.onnx")).unwrap();
    let warned = |preset: &str| {
        let mut command = mqq();
        command.arg("calibrate").arg(at("map.onnx")).args(["-b", "tensorrt", "--effort", "0", "--preprocess", preset]);
        let ran = run(command.arg("--data").arg(digits()));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stderr
    };
    let said = warned("raw");
    assert!(
        said.contains("another scale of the pixels fits the network clearly better: --color rgb --scale 1/255 "),
        "{said}"
    );
    assert!(said.contains(" --mean 0.5 --std 0.5 (as in "), "{said}");
    assert!(said.contains("its 8 BatchNormalization nodes deviate by "), "{said}");
    assert_eq!(warned("half"), "");
}

#[test]
fn a_format_that_cannot_hold_the_types_is_refused_before_the_data_are_read() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("bad.png"), "no image").unwrap();
    let mut command = calibrate("onnxruntime", folder.path(), &folder.path().join("out"));
    refused(
        command.args(["--preprocess", "half", "--emit", "trt-cache"]),
        2,
        "format `trt-cache` holds symmetric int8",
    );
}
